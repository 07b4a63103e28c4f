"""The table of sentences about questions whose level stays below a cap: by relative errors, and by half widths.

Each row has named placeholders and an example of their values, as in `words.py`.
"""

from __future__ import annotations

from dpsql.receipts.sentence import Sentence

EPSILON_OF_CAP = Sentence(
    "epsilon {of_cap}, because {source} decide the level; rho and price are accounting, not a guarantee",
    of_cap="is that of max_rho = 0.5",
    source="released numbers",
)
IS_CAP = Sentence("is that of {cap}", cap="max_rho = 0.5")
COVERS_CAP = Sentence("covers {cap} and stored numbers of higher levels", cap="max_rho = 0.5")
RELEASED_NUMBERS = Sentence("released numbers")
BOUNDS_OF_AUTO = Sentence("the bounds that AUTO found")

ASKED_HALF_WIDTHS = Sentence("asked for half widths of {widths}", widths="at most 50 for each count and sum (95 %)")
ASKED_RELATIVE = Sentence("asked for a relative error of {target}", target="at most 10 % for each count (95 %)")
WITHIN_TARGET = Sentence(
    "{share} are within it{of_column} after {steps}, at rho = {rho:.9g}",
    share="93.4 % of the groups",
    of_column=" for cost",
    steps="7 steps",
    rho=0.0123,
)
NOISE_WITHIN = Sentence(
    "noise is within it in {share}{of_column} after {steps}, at rho = {rho:.9g}",
    share="93.4 % of the groups",
    of_column=" for cost",
    steps="7 steps",
    rho=0.0123,
)
MISSED_BY = Sentence(
    "{share} are within {percent:g} %{of_column}, and {asked} asked for",
    share="81 of 100 groups",
    percent=10.0,
    of_column=" for cost",
    asked="90 are",
)
NOISE_MISSES = Sentence(
    "noise is within {percent:g} %{of_column} in {share}, and {asked} asked for",
    percent=10.0,
    of_column=" for cost",
    share="81 of 100 groups",
    asked="90 are",
)
NONE_SHOWN = Sentence("no {what} is shown", what="group")
ENDED = Sentence("{why}; this is after {steps}, at rho = {rho:.9g}", why="why", steps="7 steps", rho=0.0123)
NOT_REACHED = Sentence("the target is not reached: {shown}; {why}", shown="50 % of the groups are within it", why="why")
WITHIN_UNKNOWN = Sentence(
    "NULL in truth values about the target: {why}", why="up to 12 % of the rows could be left out"
)
LACKS_PEOPLE = Sentence(
    "one group of {column} may lack up to {most} {units}, too many to be sure of {percent:.6g} %",
    column="people",
    most="230",
    units="patients",
    percent=10.0,
)
MAY_CUT_SOME = Sentence(
    "bounds may cut {cut} of {columns}, and how much of one group is not measured", cut="rows or values", columns="cost"
)
FORECAST = Sentence("by a forecast from these numbers, a question at rho = {rho:.3g} would be within it", rho=0.011)
COUNTS_ALL = Sentence("the target counts all groups, also those that {clause} leaves out", clause="LIMIT")
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
