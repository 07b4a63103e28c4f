"""The table of sentences about questions whose level stays below a cap: by relative errors, and by half widths.

Each row has named placeholders and an example of their values, as in `words.py`.
"""

from __future__ import annotations

from dpsql.receipts.sentence import Sentence

EPSILON_OF_CAP = Sentence(
    "epsilon {of_cap|is that of max_rho = 0.5}, because {source|released numbers} decide the level; rho and price are "
    "accounting, not a guarantee"
)
IS_CAP = Sentence("is that of {cap|max_rho = 0.5}")
COVERS_CAP = Sentence("covers {cap|max_rho = 0.5} and stored numbers of higher levels")
RELEASED_NUMBERS = Sentence("released numbers")
BOUNDS_OF_AUTO = Sentence("the bounds that AUTO found")

ASKED_HALF_WIDTHS = Sentence("asked for half widths of {widths|at most 50 for each count and sum (95 %)}")
ASKED_RELATIVE = Sentence("asked for a relative error of {target|at most 10 % for each count (95 %)}")
WITHIN_TARGET = Sentence(
    "{share|93.4 % of the groups} are within it{of_column| for cost} after {steps|7 steps}, at rho = {rho:.9g|0.0123}"
)
NOISE_WITHIN = Sentence(
    "noise is within it in {share|93.4 % of the groups}{of_column| for cost} after {steps|7 steps}, at rho = "
    "{rho:.9g|0.0123}"
)
MISSED_BY = Sentence(
    "{share|81 of 100 groups} are within {percent:g|10.0} %{of_column| for cost}, and {asked|90 are} asked for"
)
NOISE_MISSES = Sentence(
    "noise is within {percent:g|10.0} %{of_column| for cost} in {share|81 of 100 groups}, and {asked|90 are} asked for"
)
NONE_SHOWN = Sentence("no {what|group} is shown")
ENDED = Sentence("{why|why}; this is after {steps|7 steps}, at rho = {rho:.9g|0.0123}")
NOT_REACHED = Sentence("the target is not reached: {shown|50 % of the groups are within it}; {why|why}")
WITHIN_UNKNOWN = Sentence("NULL in truth values about the target: {why|up to 12 % of the rows could be left out}")
LACKS_PEOPLE = Sentence(
    "one group of {column|people} may lack up to {most|230} {units|patients}, too many to be sure of "
    "{percent:.6g|10.0} %"
)
MAY_CUT_SOME = Sentence(
    "bounds may cut {cut|rows or values} of {columns|cost}, and how much of one group is not measured"
)
FORECAST = Sentence("by a forecast from these numbers, a question at rho = {rho:.3g|0.011} would be within it")
COUNTS_ALL = Sentence("the target counts all groups, also those that {clause|LIMIT} leaves out")
SHOWN_BY_OTHERS = Sentence(
    "the share of groups counts all groups that this reader is shown, also groups of releases of others"
)
ON_ERRORS = (
    ASKED_HALF_WIDTHS,
    ASKED_RELATIVE,
    WITHIN_TARGET,
    NOISE_WITHIN,
    NOT_REACHED,
    WITHIN_UNKNOWN,
    FORECAST,
    COUNTS_ALL,
    SHOWN_BY_OTHERS,
)
"""Notes that stand under the heading ``error`` of a receipt."""
