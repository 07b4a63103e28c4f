"""The table of sentences of receipts, plans and budgets.

`coverage_words.py` has those on coverage, and `screen_words.py` those below a printed answer. `phrases.py` chooses rows
by numbers. A note of a receipt stands under one of five headings, by `HEADINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.receipts.sentence import Sentence

# Price and privacy.

CHARGED = Sentence("{amount|rho} {level|0.0175} and threshold delta {delta|2.5e-09}")
NOTHING_CHARGED = Sentence("nothing: all numbers were stored before")
SET_CHARGED = Sentence("({keys|city}): {level|rho 0.0175}")
RELEASE = Sentence("{mechanism|gshm} on {table|main.visits} (version {version|1}), privacy unit {unit|patient}")
LEVEL = Sentence("{amount|rho} {level|0.0175}")
SERVED_AT = Sentence("{served|rho 1}; the question asked for {asked|rho 0.2}")
ALONE = Sentence("this answer alone has epsilon {epsilon|1} at delta {delta|1e-08}")
ALONE_AT_MOST = Sentence("this answer alone has at most epsilon {epsilon|8.5} at delta {delta|1e-08}")
SET_LEVEL = Sentence("({keys|city}): {level|rho 0.0175}")
KEYS_OF_RELEASE = Sentence(
    "{amount|rho} is the level of the numbers; a release with a count of units at {amount|rho} = {level:.9g|0.5}, "
    "which epsilon and delta cover, has shown the keys"
)
KEYS_OF_OTHERS = Sentence(
    "keys of independent releases that this reader holds are shown, too; epsilon and delta cover these releases, at "
    "{amount|rho} = {level:.9g|0.3} more"
)
LATTICE_SEEN = Sentence(
    "these counts are derived from counts with discrete noise, whose whole numbers stay visible; epsilon and delta are "
    "those of the counts at rho = {rho:.9g|0.5}"
)
LEVEL_CHOSEN = Sentence(
    "released numbers decided the level of stored numbers that serve this question; so epsilon and delta cover more "
    "than this level: rho = {rho:.9g|0.3} more, up to the cap of that decision"
)
EPSILON_OF_CAP = Sentence(
    "epsilon {of_cap|is that of max_rho = 0.5}, because {source|released numbers} decide the level; rho and price are "
    "accounting, not a guarantee"
)
IS_CAP = Sentence("is that of {cap|max_rho = 0.5}")
COVERS_CAP = Sentence("covers {cap|max_rho = 0.5} and stored numbers of higher levels")
RELEASED_NUMBERS = Sentence("released numbers")
BOUNDS_OF_AUTO = Sentence("the bounds that AUTO found")

# Keys.

SHOWN_ABOVE = Sentence("a group is shown if its noisy count of units exceeds {threshold|57.68}")
SHOWN_ABOVE_LARGEST = Sentence(
    "a group is shown if its noisy count of units exceeds the largest group left out by more than {threshold|57.68}"
)
SET_SHOWN_ABOVE = Sentence("({keys|city}): shown above {threshold|57.68} units")
ROUND_SELECTS = Sentence(
    "({keys|1}): shown above a noisy weight of {threshold|57}; a unit in n groups adds 1 / sqrt(n)"
)
CLOCK = Sentence("days and hours of TIMESTAMPTZ values are those of time zone {zone|UTC}")
FINER_GROUPS = Sentence("groups are sums of the groups by {keys|city, day}, in which units are bounded")
ADDED_UP = Sentence("groups are added up from a release by finer keys, and a unit counts in each of its finer groups")
ALSO_EXCEEDS = Sentence(
    "only groups are shown whose noisy count of units exceeds {minimum|20} units by more than the threshold"
)
OF_SKETCH = Sentence(
    "counts come from a sketch of {counters|100} counters: they may be too low by as much as the upper ends of their "
    "intervals say, and are too high by noise alone"
)
OF_LARGEST = Sentence(
    "only the {groups|10} largest groups can be shown, and only if they exceed the next largest group by more than the "
    "threshold"
)
ONE_ROUND = Sentence("keys were selected in one round, at rho = {level|0.01}")
ROUNDS = Sentence(
    "keys were selected in {count|2} rounds, at rho = {levels|0.01 and 0.09}; each round reads the rows of keys that "
    "no round before has selected"
)
NUMBERS_APART = Sentence("{rounds|keys were selected}; numbers are a release of their own, on all rows")
ONE_THRESHOLD = Sentence(
    "a group is shown if round 1 (rho = {level|0.01}) selects it, or if its noisy count of {counted|units} exceeds "
    "{threshold|72.65}; counts just above that are often too high; more rounds do not pay"
)
OTHER_ROW = Sentence(
    "the row {name!r|other} is a release of its own, of the rows outside the shown groups; its level is that of the "
    "groups, comes on top of it, and is paid once for each set of shown groups"
)
OTHER_ROW_HOLDS = Sentence(
    "the other row holds of one unit at most {groups|4} times as much as the unit may add to one group; it has no rows "
    "of groups that HAVING or LIMIT takes out"
)
SETS_ADD_UP = Sentence("rows of a finer grouping set add up to those of a coarser one")
SETS_APART = Sentence("each grouping set is a release of its own, so its rows need not add up to those of another set")
PART_IS = Sentence("part {number|1} of the text is {text|SELECT count(*) AS n FROM visits}")
OF_PARTS = Sentence("{parts|part 1}: {note|rows where city is NULL are left out}")
LARGEST_OF_PARTS = Sentence("errors differ by part; the error of a column is the largest of them")
OF_UNIT = Sentence(
    "of unit {unit|patient} {level|rho 0.1} was charged, and this answer alone has epsilon {epsilon|1} at delta "
    "{delta|1e-08}"
)
HIDDEN_GROUPS = Sentence("NULL (or 0 for it), and rows of EXCEPT or NOT IN, may be groups that an answer does not show")
HIDDEN_VALUES = Sentence(
    "{columns|mode(kind)}: a value whose count passed no threshold is left out (NULL without any), and may have rows"
)
COMPARED_WITH = Sentence(
    "rows of part {number|2} are compared with {value|52.42}, a noisy number: {text|SELECT avg(cost) FROM visits}"
)
NO_INTERVAL = Sentence("no interval is known of {columns|ratio}, which the text computes from released numbers")
EXTREME = Sentence(
    "{columns|lowest}: {quantile|1 %} quantile of the rows, not the {extreme|minimum}; "
    "values outside {bounds|[0, 500]} are cut"
)
SEARCHED = Sentence("a pattern is searched in the first 1,000 characters of a text")
NONE_PASSED = Sentence("no noisy count passed the threshold of {thresholds|57.68} units ({unit|patient})")
NONE_PASSED_ANY = Sentence("no noisy count passed the thresholds of {thresholds|9 and 7} units ({unit|patient})")
NONE_EXCEEDED = Sentence(
    "no noisy count exceeded the largest group left out by more than {thresholds|57.68} units ({unit|patient})"
)
BELOW_MINIMUM = Sentence(
    "no noisy count passed min_privacy_units_per_group = {minimum:,|20} units ({unit|patient}); coarser keys help"
)
NO_LISTED_KEY = Sentence("the list of public keys is empty")
OTHER_KEYS = Sentence("coarser keys or public keys help")
AT_HIGHER_LEVEL = Sentence(
    "at {level|epsilon = 4} {subject|it} would be {threshold|12.5}{condition|}; coarser keys or public keys help, too"
)
SAME_BOUNDS = Sentence(", if AUTO chose the same bounds again")
OF_SETS = Sentence('groups by {sets|("city")}: {sentence|coarser keys help}')
LEFT_OUT = Sentence("{clauses|HAVING} left out {groups|all 67 groups}")

# Error.

COLUMN_WIDTH = Sentence("{column|visits}: ± {half_width|18.7} (95 %)")
COLUMN_BY_ROW = Sentence("{column|cost}: differs by row")
LARGEST_ERROR = Sentence("errors differ by row; the error of a column is the largest of them")
LARGEST_OF_SETS = Sentence("errors differ by grouping set; the error of a column is the largest of them")
PARTIAL_SUMS = Sentence(
    "noise was added to partial sums: long ranges and totals have little noise, single keys have much"
)
LEANS_UP = Sentence(
    "groups near the threshold are shown only if their noise is high, so their counts are often too high"
)
CELLS = Sentence("{columns|median(cost)}: read from {cells|64} cells, {widths|3 wide}")
TRUTH_VALUE = Sentence(
    "a truth value is shown if the 95 % interval of the number of units that decides it lies above 0, and is NULL "
    "otherwise; the error of its column is that of this number of units"
)
UNKNOWN_IN = Sentence("NULL in {column|cost}: the 95 % interval covers all of {domain|[0, 500]}")

# Error: targets.

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

# Error: the largest counts by method = CORRELATED.

CHOSEN_BY_COUNTS = "chosen by noisy counts: "
"""Words in a note on the rows of such an answer, and no other."""
LARGEST_ARE_WITHIN = Sentence(
    "{count|all 100 rows are within 10 % (95 %), }chosen by noisy counts: {missing|all groups are shown}"
)
LARGER_MAY_BE_MISSING = Sentence("a larger group may be missing, of up to {most:,|250} {units|people}")
SMALLER_ARE_MISSING = Sentence("a group that is not shown has up to {most:,|250} {units|people}")
LARGEST_SHOWN = Sentence(
    "{count|57 of} the {asked|100 largest groups by noisy counts} {are|are} within {percent:g|10.0} %{of|} "
    "({confidence:.0f|95.0} %)"
)
NO_OTHER_WITHIN = Sentence("no other count is within it at {cap|max_rho = 0.2}")
HIDDEN_BY_MINIMUM = Sentence("groups of at most {minimum:,|20} units ({unit|person}) are not shown")
NONE_WITHIN = Sentence(
    "no count is within {percent:g|10.0} %; if the largest one is about {count:,|1200}, a question at "
    "{cap|max_rho = 0.8} returns it"
)
NONE_WITHIN_UNKNOWN = Sentence(
    "no count is within {percent:g|10.0} %, and noise hides how large they are; dp_explain says which counts a level "
    "returns"
)

# Error: rows that clauses pick by their noisy numbers.

LIMIT_WIDENS = Sentence(
    "the rows of LIMIT have the {side|largest} noisy numbers; so their intervals are wider than that of a group named "
    "before"
)
LIMIT_WIDENED = Sentence(
    "LIMIT picks the {side|largest} noisy numbers: for that, intervals of {columns|n} are {factor:.3g|1.55} times as "
    "wide"
)
NEAR_THRESHOLD = Sentence(
    "counts near the threshold of {threshold:.3g|31.4} are shown if their noise is large: for that, intervals of "
    "{columns|n} are up to {factor:.3g|2.31} times as wide"
)
PICKED = Sentence(
    "{clause|HAVING} picks rows by noisy numbers; an interval holds for a group named before, and less often for these "
    "rows"
)
RANKED = Sentence(
    "a window orders groups by noisy numbers; an interval holds for a group named before, and less often for one "
    "picked by its place"
)
ASKED_OF_ONE = Sentence("the half widths that were asked for hold for a group named before, not for the rows of LIMIT")

# Bounds.

WITHOUT_UNIT = Sentence('rows where {column|"patient_id"} is NULL are left out')
SINGLE_ROW = Sentence(
    "a join takes one row of each unit ({unit|person}) from {tables|main.people}; if a unit has more there, an unknown "
    "part is missing"
)
COUNTS_IN = Sentence(
    "each unit counts in at most {groups|4 groups}, which a secret hash chooses; a unit with more groups is left out "
    "of the others"
)
WEIGHTED = Sentence(
    "a unit in n groups, more than {groups|4}, counts in each with weight sqrt({groups} / n), in at most {most|8} "
    "groups"
)
WEIGHTED_COUNTS = Sentence(
    "{weighted|a unit in n groups counts in each with weight sqrt(4 / n)}; counts of such units are too low"
)
WEIGHTED_SUMS = Sentence(
    "{weighted|a unit in n groups counts in each with weight sqrt(4 / n)}; counts and sums over such units are too low"
)
DISTINCT_VALUES = Sentence(
    "at most {values:.9g|3} distinct values of one unit count in a group; a secret hash chooses them"
)
ROWS_SCALED = Sentence("rows of one unit in one group beyond {rows|5 rows} are scaled down to {rows}")
ROWS_READ = Sentence("at most {rows|20} rows of a unit are read; a secret hash chooses them")
ROWS_TO_NORM = Sentence(
    "rows of a unit in {column|avg(cost)} are scaled down, with their values, to an l2 norm of {norm:.9g|24} over the "
    "groups of the unit"
)
SUM_TO_NORM = Sentence(
    "the part of a unit in the groups of {column|sum(cost)}{less|} is scaled down to an l2 norm of {norm:.9g|500}"
)
LESS_CENTRE = Sentence(", less {centre:.9g|50} in each,")
AUTO_GROUPS = Sentence(
    "AUTO chose max_groups = {groups|4} from a noisy histogram of units by their number of groups, "
    "{level|at rho = 0.01, a part of rho}"
)
AUTO_NORM = Sentence(
    "AUTO chose a norm of {norm:.9g|24} for {column|sum(cost)} from a noisy histogram of units by their norms over all "
    "groups, {level|at rho = 0.01, a part of rho}; units with more are scaled down"
)
AUTO_ROWS = Sentence(
    "AUTO lets at most {rows|24 rows} of a unit count in a group, by their norms in a noisy histogram of units, "
    "{level|at rho = 0.01, a part of rho}"
)
AUTO_BOUNDS = Sentence(
    "AUTO found bounds [{low:.9g|0}, {high:.9g|500}] for {column|sum(cost)} in noisy histograms of units by their "
    "largest and smallest values, {level|at rho = 0.01, a part of rho}; values outside are clamped"
)
AUTO_NO_BOUNDS = Sentence("AUTO found no bounds for {column|sum(cost)}, {level|at rho = 0.01, a part of rho}")
AUTO_LEVEL = Sentence("at rho = {rho:.9g|0.01}, a part of rho")
AUTO_SURE = Sentence("{level|at rho = 0.01, a part of rho}; it is paid once for this version of the table")
AUTO_UNSURE = Sentence(
    "{level|at rho = 0.01, a part of rho}; it is too noisy for a choice that lasts, so a query with more rho may get "
    "another"
)
WITHOUT_BOUNDS = Sentence(
    "{column|sum(cost)} is NULL, and not paid for: AUTO found no bounds, because "
    "{why|its values are out of the range that AUTO can tell}; write "
    "{cure|sum(cost, contribution_bounds_per_row => (<lowest value>, <highest value>))}{higher|}"
)
OR_MORE_EPSILON = Sentence(", or ask with more epsilon or rho")
NOT_DRAWN = Sentence(
    "{column|count(*)} is NULL, and not paid for: "
    "{why|units (patient) have so many rows that the noise cannot be drawn at this level}; ask with more epsilon or rho"
)
ONE_ROW = Sentence(
    "{column|sum(cost)} takes as much of a unit as one row may have within the bounds [{low:.9g|0}, {high:.9g|500}] of "
    "its values, because {why|too few units (patient) have values of one size}"
)
NOT_FOUND: Mapping[str, Sentence] = {
    "few": Sentence("too few units ({unit|patient}) have values of one size"),
    "zeros": Sentence("nearly all units ({unit|patient}) have values that add up to 0"),
    "range": Sentence("its values are out of the range that AUTO can tell"),
    "noise": Sentence("units ({unit|patient}) have so many rows that the noise cannot be drawn at this level"),
}
"""Why AUTO found no bounds, by `NotFound.reason`."""

# Budgets.

EPSILONS_DO_NOT_ADD_UP = Sentence(
    "epsilon_spent and epsilon_next do not add up to epsilon_budget: epsilon grows like the square root of rho, and "
    "rho adds up"
)
"""Note of a budget."""
EPSILONS_ADD_UP = Sentence(
    "with composition = 'pure' epsilon adds up, and there is no rho: rho_budget, rho_spent, rho_left and rho_held are "
    "NULL"
)
"""Note of a budget of such a unit."""
OWN_AMOUNTS = Sentence(
    "amounts that are spent are yours alone, and what is left is left of your budget_part: a reader with a rho_limit "
    "sees no amount of the unit. The curator sees all"
)
"""Note of a budget as a reader with a limit sees it, who has a part of it."""
OWN_AMOUNTS_NO_PART = Sentence(
    "amounts that are spent are yours alone, and what is left is NULL: a reader with a rho_limit sees no amount of the "
    "unit. The curator sees all, and can declare a budget_part for you"
)
"""Note of a budget as a reader with a limit sees it, who has no part of it."""
NOT_SHOWN = Sentence("not shown to a reader with a rho_limit, who has no budget_part")
"""A number of a plan that is about all of a unit's budget."""

HEADINGS: Mapping[str, tuple[Sentence, ...]] = {
    "price": (OF_UNIT,),
    "privacy": (KEYS_OF_RELEASE, KEYS_OF_OTHERS, LATTICE_SEEN, LEVEL_CHOSEN, EPSILON_OF_CAP, PART_IS),
    "keys": (
        CLOCK,
        FINER_GROUPS,
        ADDED_UP,
        ALSO_EXCEEDS,
        OF_SKETCH,
        OF_LARGEST,
        ONE_ROUND,
        ROUNDS,
        NUMBERS_APART,
        ONE_THRESHOLD,
        OTHER_ROW,
        OTHER_ROW_HOLDS,
        SETS_ADD_UP,
        SETS_APART,
        HIDDEN_GROUPS,
        HIDDEN_VALUES,
    ),
    "error": (
        EXTREME,
        NO_INTERVAL,
        COMPARED_WITH,
        LARGEST_ERROR,
        LARGEST_OF_SETS,
        LARGEST_OF_PARTS,
        PARTIAL_SUMS,
        LEANS_UP,
        CELLS,
        TRUTH_VALUE,
        ASKED_HALF_WIDTHS,
        ASKED_RELATIVE,
        WITHIN_TARGET,
        NOISE_WITHIN,
        NOT_REACHED,
        WITHIN_UNKNOWN,
        FORECAST,
        COUNTS_ALL,
        SHOWN_BY_OTHERS,
        LARGEST_ARE_WITHIN,
        LIMIT_WIDENS,
        LIMIT_WIDENED,
        NEAR_THRESHOLD,
        PICKED,
        RANKED,
        ASKED_OF_ONE,
    ),
}
"""Notes by the heading of a receipt that they stand under; all others stand under ``bounds``."""
