"""The table of sentences that receipts and the lines below a printed answer are made of.

Each row is a sentence with named placeholders and an example of their values, which a test renders. `phrases.py`
chooses rows by numbers. A note of a receipt stands under one of five headings, by `HEADINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.receipts import cap_words, row_words
from dpsql.receipts.sentence import Sentence

# Price and privacy.

CHARGED = Sentence("rho {rho|0.0175} and threshold delta {delta|2.5e-09}")
NOTHING_CHARGED = Sentence("nothing: all numbers were stored before")
SET_CHARGED = Sentence("({keys|city}): rho {rho|0.0175}")
RELEASE = Sentence("{mechanism|gshm} on {table|main.visits} (version {version|1}), privacy unit {unit|patient}")
RHO = Sentence("rho {rho|0.0175}")
SERVED_AT = Sentence("rho {rho|1}; the question asked for rho {asked|0.2}")
ALONE = Sentence("this answer alone has epsilon {epsilon|1} at delta {delta|1e-08}")
ALONE_AT_MOST = Sentence("this answer alone has at most epsilon {epsilon|8.5} at delta {delta|1e-08}")
SET_LEVEL = Sentence("({keys|city}): {level|rho 0.0175}")
KEYS_OF_RELEASE = Sentence(
    "rho is the level of the numbers; a release with a count of units at rho = {rho:.9g|0.5}, which epsilon and delta "
    "cover, has shown the keys"
)
KEYS_OF_OTHERS = Sentence(
    "keys of independent releases that this reader holds are shown, too; epsilon and delta cover these releases, at "
    "rho = {rho:.9g|0.3} more"
)
LATTICE_SEEN = Sentence(
    "these counts are derived from counts with discrete noise, whose whole numbers stay visible; epsilon and delta are "
    "those of the counts at rho = {rho:.9g|0.5}"
)
LEVEL_CHOSEN = Sentence(
    "released numbers decided the level of stored numbers that serve this question; so epsilon and delta cover more "
    "than this level: rho = {rho:.9g|0.3} more, up to the cap of that decision"
)

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

# Bounds.

WITHOUT_UNIT = Sentence('rows where {column|"patient_id"} is NULL are left out')
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

# Coverage.

OF_COLUMN = Sentence("{column|sum(cost)}: ")
COUNTED = Sentence("{column|}{ends|at least 91 %} of {part|all rows are counted}")
COUNTED_UNKNOWN = Sentence("it is unknown what part of {of|rows} is counted: {why|see a note}")
NUMBER_UP_TO = Sentence("{nouns|its rows} are counted for units{unit| (patient)} with up to {size|64} {sized|of them}")
ONLY_ONE = Sentence("{nouns|rows} are counted for units{unit| (patient)} with 1 {sized|row}")
TOTALS_UP_TO = Sentence("{nouns|totals} up to {size|4,096} per unit{unit| (patient)} is counted")
ALL_OF_NUMBER = Sentence("all {nouns|rows} are counted")
ALL_OF_TOTALS = Sentence("the {nouns|totals} of all units{unit| (patient)} is counted")
SOME_BEYOND = Sentence("at least {least:,|646} and at most {most:,|2914} units have more")
MAYBE_BEYOND = Sentence("at most {most:,|921} units have more, perhaps none")
PART_KNOWN = Sentence(
    "{units|at most 921 units have more}: they have at least {part|34 %} of all, and it is unknown what part of theirs "
    "is counted"
)
PART_UNKNOWN = Sentence("{units|at most 921 units have more}, and it is unknown what part of all these units have")
LARGER_BOUNDS = Sentence("larger bounds keep more, with more noise")
MORE_GROUPS = Sentence("OPTIONS (max_groups_contributed = {groups|4}) {keeps|keeps about 95 %}")
MORE_ROWS = Sentence("count({counted|*}, contribution_bounds_per_group => (0, {rows|64})) {keeps|keeps about 95 %}")
KEEPS_MUCH = Sentence("keeps about 95 % of what is measured, with {noise:.2g|1.4} times the noise")
BOUNDS_RAISE = Sentence(
    "its bounds begin above 0, and raise smaller values; write contribution_bounds_per_{form|group} => (0, "
    "{high:.9g|1024})"
)
COVERAGE_GONE = Sentence(
    "it was not measured while the rows were available; ask about the current version of the table"
)
COVERAGE_OF_LEVELS = Sentence("it was measured at too many other levels; ask at one of these, or at a higher level")
TOO_FEW = Sentence("noise hides the units at this level; ask with more epsilon or rho, or for fewer columns")
COVERAGE_OFF = Sentence("the query says coverage = FALSE; leave it out")
COVERAGE_OF_SETS = Sentence("the grouping sets are added up from groups by more keys; ask about each set by itself")
COVERAGE_OF_LARGEST = Sentence("the groups that top_k leaves out depend on all units together; leave top_k out")
COVERAGE_AT_CEILING = Sentence("rho_ceiling draws each number once, at the ceiling; leave rho_ceiling out")
COVERAGE_OF_CUT_UNITS = Sentence(
    "max_rows_per_unit cuts the rows of a unit; the curator can declare the table with max_rows_per_unit := NULL"
)

# Lines below a printed answer.

HALF_WIDTHS = Sentence("±")
ENDS = Sentence("low … high")
END_COLUMNS = Sentence("columns with ends")
COVERS = Sentence("{intervals|±} covers the noise with 95 % probability")
COVER = Sentence("{intervals|low and high} cover the noise with 95 % probability")
WIDTH = Sentence("± {half_width|18.7} for {column|aircraft}")
WIDTHS = Sentence("the noise is {widths|± 18.7 for aircraft} with 95 % probability")
NOT_BOUNDS = Sentence(", not uncounted rows or values cut by bounds")
NOT_CUT = Sentence(", not what bounds cut")
NOT_LEFT_OUT = Sentence(", not what is left out")
ALSO_NULL = Sentence("NULL: no value is known")
ALL_UNKNOWN_IN = Sentence("NULL in {columns|mean and spread}: the 95 % intervals cover all possible values")
NULLS = Sentence("NULL in some columns; {receipt_at|answer.receipt} says why")
UP_TO_SIZE = Sentence("at least {low|91 %} is counted up to {size|4,096} per unit")
ENDS_OF_SHARE = Sentence("{low|91 %} to {high|98 %}")
LOW_OF_SHARE = Sentence("at least {low|91 %}")
MORE_THAN_THAT = Sentence("at least {count:,|646} units have more")
THEIRS = Sentence(", with at least {part|34 %} of all; the counted part of theirs is not known")
THEIRS_UNTOLD = Sentence(", with at least {part|34 %} of all (counted part unknown)")
THEIRS_SHORT = Sentence(", with at least {part|34 %} of all")
THEIRS_UNKNOWN = Sentence(", with an unknown part of all")
UNKNOWN = Sentence("{of|rows}: the counted part is not known: {why|see answer.receipt}")
ONE_COLUMN = Sentence("one column")
SEE = Sentence("see {receipt_at|answer.receipt}")
MORE = Sentence("{count|2} more in {receipt_at|answer.receipt}")
NOTHING = Sentence("no group is shown; {receipt_at|answer.receipt} says why")
MISSED = Sentence("the target is not reached; {receipt_at|answer.receipt} says why")
GUARANTEE = Sentence("epsilon {epsilon|1} at delta {delta|1e-08}")
AT_MOST = Sentence("at most {level|rho 0.5}")
CHARGED_FOR = Sentence("{charged|rho 0.01}, for an answer with {level|rho 0.0175}")
STORED = Sentence("nothing: served as stored, with {level|rho 0.0175}")
SPENT = Sentence("spent so far: {level|epsilon} {spent|0.80} of {budget|3}")
SPENT_SHORT = Sentence("spent: {spent|0.80} of {budget|3}")
ROOM = Sentence(", room for {count:,|10} more such questions")
ROOM_SHORT = Sentence(", room for {count:,|10} questions")
ROOM_FOR_ONE = Sentence(", room for 1 more such question")
NO_ROOM = Sentence(", no room for one more")
NOTES = Sentence("{count|2} notes in {receipt_at|answer.receipt}")
NOTES_ALONE = Sentence("{count|2}, in {receipt_at|answer.receipt}")
ONE_NOTE = Sentence("1 note in {receipt_at|answer.receipt}")
GROUPS_ABOVE = Sentence("shown if their noisy count of units exceeds {threshold|57.68}")
GROUPS_ABOVE_LARGEST = Sentence("shown if their noisy count of units exceeds the largest left out by {threshold|57.68}")
EPSILONS_DO_NOT_ADD_UP = Sentence(
    "epsilon_spent and epsilon_next do not add up to epsilon_budget: epsilon grows like the square root of rho, and "
    "rho adds up"
)
"""Note of a budget."""

HEADINGS: Mapping[str, tuple[Sentence, ...]] = {
    "privacy": (KEYS_OF_RELEASE, KEYS_OF_OTHERS, LATTICE_SEEN, LEVEL_CHOSEN, cap_words.EPSILON_OF_CAP),
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
    ),
    "error": (
        LARGEST_ERROR,
        LARGEST_OF_SETS,
        PARTIAL_SUMS,
        LEANS_UP,
        CELLS,
        TRUTH_VALUE,
        *cap_words.ON_ERRORS,
        *row_words.OF_ROWS,
    ),
}
"""Notes by the heading of a receipt that they stand under; all others stand under ``bounds``."""
