"""The table of sentences that receipts and the lines below a printed answer are made of.

Each row is a sentence with named placeholders and an example of their values, which a test renders. `phrases.py`
chooses rows by numbers. A note of a receipt stands under one of five headings, by `HEADINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.receipts import cap_words, row_words
from dpsql.receipts.sentence import Sentence

# Price and privacy.

CHARGED = Sentence("rho {rho} and threshold delta {delta}", rho="0.0175", delta="2.5e-09")
NOTHING_CHARGED = Sentence("nothing: all numbers were stored before")
SET_CHARGED = Sentence("({keys}): rho {rho}", keys="city", rho="0.0175")
RELEASE = Sentence(
    "{mechanism} on {table} (version {version}), privacy unit {unit}",
    mechanism="gshm",
    table="main.visits",
    version="1",
    unit="patient",
)
RHO = Sentence("rho {rho}", rho="0.0175")
SERVED_AT = Sentence("rho {rho}; the question asked for rho {asked}", rho="1", asked="0.2")
ALONE = Sentence("this answer alone has epsilon {epsilon} at delta {delta}", epsilon="1", delta="1e-08")
ALONE_AT_MOST = Sentence(
    "this answer alone has at most epsilon {epsilon} at delta {delta}", epsilon="8.5", delta="1e-08"
)
SET_LEVEL = Sentence("({keys}): {level}", keys="city", level="rho 0.0175")
KEYS_OF_RELEASE = Sentence(
    "rho is the level of the numbers; a release with a count of units at rho = {rho:.9g}, which epsilon and delta "
    "cover, has shown the keys",
    rho=0.5,
)
KEYS_OF_OTHERS = Sentence(
    "keys of independent releases that this reader holds are shown, too; epsilon and delta cover these releases, at "
    "rho = {rho:.9g} more",
    rho=0.3,
)
LATTICE_SEEN = Sentence(
    "these counts are derived from counts with discrete noise, whose whole numbers stay visible; epsilon and delta are "
    "those of the counts at rho = {rho:.9g}",
    rho=0.5,
)
LEVEL_CHOSEN = Sentence(
    "released numbers decided the level of stored numbers that serve this question; so epsilon and delta cover more "
    "than this level: rho = {rho:.9g} more, up to the cap of that decision",
    rho=0.3,
)

# Keys.

SHOWN_ABOVE = Sentence("a group is shown if its noisy count of units exceeds {threshold}", threshold="57.68")
SHOWN_ABOVE_LARGEST = Sentence(
    "a group is shown if its noisy count of units exceeds the largest group left out by more than {threshold}",
    threshold="57.68",
)
SET_SHOWN_ABOVE = Sentence("({keys}): shown above {threshold} units", keys="city", threshold="57.68")
ROUND_SELECTS = Sentence(
    "({keys}): shown above a noisy weight of {threshold}; a unit in n groups adds 1 / sqrt(n)", keys="1", threshold="57"
)
CLOCK = Sentence("days and hours of TIMESTAMPTZ values are those of time zone {zone}", zone="UTC")
FINER_GROUPS = Sentence("groups are sums of the groups by {keys}, in which units are bounded", keys="city, day")
ADDED_UP = Sentence("groups are added up from a release by finer keys, and a unit counts in each of its finer groups")
ALSO_EXCEEDS = Sentence(
    "only groups are shown whose noisy count of units exceeds {minimum} units by more than the threshold", minimum=20
)
OF_SKETCH = Sentence(
    "counts come from a sketch of {counters} counters: they may be too low by as much as the upper ends of their "
    "intervals say, and are too high by noise alone",
    counters=100,
)
OF_LARGEST = Sentence(
    "only the {groups} largest groups can be shown, and only if they exceed the next largest group by more than the "
    "threshold",
    groups=10,
)
ONE_ROUND = Sentence("keys were selected in one round, at rho = {level}", level="0.01")
ROUNDS = Sentence(
    "keys were selected in {count} rounds, at rho = {levels}; each round reads the rows of keys that no round before "
    "has selected",
    count=2,
    levels="0.01 and 0.09",
)
NUMBERS_APART = Sentence("{rounds}; numbers are a release of their own, on all rows", rounds="keys were selected")
ONE_THRESHOLD = Sentence(
    "a group is shown if round 1 (rho = {level}) selects it, or if its noisy count of {counted} exceeds {threshold}; "
    "counts just above that are often too high; more rounds do not pay",
    level="0.01",
    counted="units",
    threshold="72.65",
)
OTHER_ROW = Sentence(
    "the row {name!r} is a release of its own, of the rows outside the shown groups; its level is that of the groups, "
    "comes on top of it, and is paid once for each set of shown groups",
    name="other",
)
OTHER_ROW_HOLDS = Sentence(
    "the other row holds of one unit at most {groups} times as much as the unit may add to one group; it has no rows "
    "of groups that HAVING or LIMIT takes out",
    groups=4,
)
SETS_ADD_UP = Sentence("rows of a finer grouping set add up to those of a coarser one")
SETS_APART = Sentence("each grouping set is a release of its own, so its rows need not add up to those of another set")
NONE_PASSED = Sentence(
    "no noisy count passed the threshold of {thresholds} units ({unit})", thresholds="57.68", unit="patient"
)
NONE_PASSED_ANY = Sentence(
    "no noisy count passed the thresholds of {thresholds} units ({unit})", thresholds="9 and 7", unit="patient"
)
NONE_EXCEEDED = Sentence(
    "no noisy count exceeded the largest group left out by more than {thresholds} units ({unit})",
    thresholds="57.68",
    unit="patient",
)
BELOW_MINIMUM = Sentence(
    "no noisy count passed min_privacy_units_per_group = {minimum:,} units ({unit}); coarser keys help",
    minimum=20,
    unit="patient",
)
NO_LISTED_KEY = Sentence("the list of public keys is empty")
OTHER_KEYS = Sentence("coarser keys or public keys help")
AT_HIGHER_LEVEL = Sentence(
    "at {level} {subject} would be {threshold}{condition}; coarser keys or public keys help, too",
    level="epsilon = 4",
    subject="it",
    threshold="12.5",
    condition="",
)
SAME_BOUNDS = Sentence(", if AUTO chose the same bounds again")
OF_SETS = Sentence("groups by {sets}: {sentence}", sets='("city")', sentence="coarser keys help")
LEFT_OUT = Sentence("{clauses} left out {groups}", clauses="HAVING", groups="all 67 groups")

# Error.

COLUMN_WIDTH = Sentence("{column}: ± {half_width} (95 %)", column="visits", half_width="18.7")
COLUMN_BY_ROW = Sentence("{column}: differs by row", column="cost")
LARGEST_ERROR = Sentence("errors differ by row; the error of a column is the largest of them")
LARGEST_OF_SETS = Sentence("errors differ by grouping set; the error of a column is the largest of them")
PARTIAL_SUMS = Sentence(
    "noise was added to partial sums: long ranges and totals have little noise, single keys have much"
)
LEANS_UP = Sentence(
    "groups near the threshold are shown only if their noise is high, so their counts are often too high"
)
CELLS = Sentence("{columns}: read from {cells} cells, {widths}", columns="median(cost)", cells=64, widths="3 wide")
TRUTH_VALUE = Sentence(
    "a truth value is shown if the 95 % interval of the number of units that decides it lies above 0, and is NULL "
    "otherwise; the error of its column is that of this number of units"
)
UNKNOWN_IN = Sentence("NULL in {column}: the 95 % interval covers all of {domain}", column="cost", domain="[0, 500]")

# Bounds.

WITHOUT_UNIT = Sentence("rows where {column} is NULL are left out", column='"patient_id"')
COUNTS_IN = Sentence(
    "each unit counts in at most {groups}, which a secret hash chooses; a unit with more groups is left out of the "
    "others",
    groups="4 groups",
)
WEIGHTED = Sentence(
    "a unit in n groups, more than {groups}, counts in each with weight sqrt({groups} / n), in at most {most} groups",
    groups=4,
    most=8,
)
WEIGHTED_COUNTS = Sentence(
    "{weighted}; counts of such units are too low", weighted="a unit in n groups counts in each with weight sqrt(4 / n)"
)
WEIGHTED_SUMS = Sentence(
    "{weighted}; counts and sums over such units are too low",
    weighted="a unit in n groups counts in each with weight sqrt(4 / n)",
)
DISTINCT_VALUES = Sentence(
    "at most {values:.9g} distinct values of one unit count in a group; a secret hash chooses them", values=3
)
ROWS_SCALED = Sentence("rows of one unit in one group beyond {rows} are scaled down to {rows}", rows="5 rows")
ROWS_READ = Sentence("at most {rows} rows of a unit are read; a secret hash chooses them", rows=20)
ROWS_TO_NORM = Sentence(
    "rows of a unit in {column} are scaled down, with their values, to an l2 norm of {norm:.9g} over the groups of the "
    "unit",
    column="avg(cost)",
    norm=24,
)
SUM_TO_NORM = Sentence(
    "the part of a unit in the groups of {column}{less} is scaled down to an l2 norm of {norm:.9g}",
    column="sum(cost)",
    less="",
    norm=500,
)
LESS_CENTRE = Sentence(", less {centre:.9g} in each,", centre=50)
AUTO_GROUPS = Sentence(
    "AUTO chose max_groups = {groups} from a noisy histogram of units by their number of groups, {level}",
    groups=4,
    level="at rho = 0.01, a part of rho",
)
AUTO_NORM = Sentence(
    "AUTO chose a norm of {norm:.9g} for {column} from a noisy histogram of units by their norms over all groups, "
    "{level}; units with more are scaled down",
    norm=24,
    column="sum(cost)",
    level="at rho = 0.01, a part of rho",
)
AUTO_ROWS = Sentence(
    "AUTO lets at most {rows} of a unit count in a group, by their norms in a noisy histogram of units, {level}",
    rows="24 rows",
    level="at rho = 0.01, a part of rho",
)
AUTO_BOUNDS = Sentence(
    "AUTO found bounds [{low:.9g}, {high:.9g}] for {column} in noisy histograms of units by their largest and smallest "
    "values, {level}; values outside are clamped",
    low=0,
    high=500,
    column="sum(cost)",
    level="at rho = 0.01, a part of rho",
)
AUTO_NO_BOUNDS = Sentence(
    "AUTO found no bounds for {column}, {level}", column="sum(cost)", level="at rho = 0.01, a part of rho"
)
AUTO_LEVEL = Sentence("at rho = {rho:.9g}, a part of rho", rho=0.01)
AUTO_SURE = Sentence("{level}; it is paid once for this version of the table", level="at rho = 0.01, a part of rho")
AUTO_UNSURE = Sentence(
    "{level}; it is too noisy for a choice that lasts, so a query with more rho may get another",
    level="at rho = 0.01, a part of rho",
)
WITHOUT_BOUNDS = Sentence(
    "{column} is NULL, and not paid for: AUTO found no bounds, because {why}; write {cure}{higher}",
    column="sum(cost)",
    why="its values are out of the range that AUTO can tell",
    cure="sum(cost, contribution_bounds_per_row => (<lowest value>, <highest value>))",
    higher="",
)
OR_MORE_EPSILON = Sentence(", or ask with more epsilon or rho")
NOT_DRAWN = Sentence(
    "{column} is NULL, and not paid for: {why}; ask with more epsilon or rho",
    column="count(*)",
    why="units (patient) have so many rows that the noise cannot be drawn at this level",
)
ONE_ROW = Sentence(
    "{column} takes as much of a unit as one row may have within the bounds [{low:.9g}, {high:.9g}] of its values, "
    "because {why}",
    column="sum(cost)",
    low=0,
    high=500,
    why="too few units (patient) have values of one size",
)
NOT_FOUND: Mapping[str, Sentence] = {
    "few": Sentence("too few units ({unit}) have values of one size", unit="patient"),
    "zeros": Sentence("nearly all units ({unit}) have values that add up to 0", unit="patient"),
    "range": Sentence("its values are out of the range that AUTO can tell"),
    "noise": Sentence("units ({unit}) have so many rows that the noise cannot be drawn at this level", unit="patient"),
}
"""Why AUTO found no bounds, by `NotFound.reason`."""

# Coverage.

OF_COLUMN = Sentence("{column}: ", column="sum(cost)")
COUNTED = Sentence("{column}{ends} of {part}", column="", ends="at least 91 %", part="all rows are counted")
COUNTED_UNKNOWN = Sentence("it is unknown what part of {of} is counted: {why}", of="rows", why="see a note")
NUMBER_UP_TO = Sentence(
    "{nouns} are counted for units{unit} with up to {size} {sized}",
    nouns="its rows",
    unit=" (patient)",
    size="64",
    sized="of them",
)
ONLY_ONE = Sentence("{nouns} are counted for units{unit} with 1 {sized}", nouns="rows", unit=" (patient)", sized="row")
TOTALS_UP_TO = Sentence(
    "{nouns} up to {size} per unit{unit} is counted", nouns="totals", size="4,096", unit=" (patient)"
)
ALL_OF_NUMBER = Sentence("all {nouns} are counted", nouns="rows")
ALL_OF_TOTALS = Sentence("the {nouns} of all units{unit} is counted", nouns="totals", unit=" (patient)")
SOME_BEYOND = Sentence("at least {least:,} and at most {most:,} units have more", least=646, most=2914)
MAYBE_BEYOND = Sentence("at most {most:,} units have more, perhaps none", most=921)
PART_KNOWN = Sentence(
    "{units}: they have at least {part} of all, and it is unknown what part of theirs is counted",
    units="at most 921 units have more",
    part="34 %",
)
PART_UNKNOWN = Sentence(
    "{units}, and it is unknown what part of all these units have", units="at most 921 units have more"
)
LARGER_BOUNDS = Sentence("larger bounds keep more, with more noise")
MORE_GROUPS = Sentence("OPTIONS (max_groups_contributed = {groups}) {keeps}", groups=4, keeps="keeps about 95 %")
MORE_ROWS = Sentence(
    "count({counted}, contribution_bounds_per_group => (0, {rows})) {keeps}",
    counted="*",
    rows=64,
    keeps="keeps about 95 %",
)
KEEPS_MUCH = Sentence("keeps about 95 % of what is measured, with {noise:.2g} times the noise", noise=1.4)
BOUNDS_RAISE = Sentence(
    "its bounds begin above 0, and raise smaller values; write contribution_bounds_per_{form} => (0, {high:.9g})",
    form="group",
    high=1024,
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
COVERS = Sentence("{intervals} covers the noise with 95 % probability", intervals="±")
COVER = Sentence("{intervals} cover the noise with 95 % probability", intervals="low and high")
WIDTH = Sentence("± {half_width} for {column}", half_width="18.7", column="aircraft")
WIDTHS = Sentence("the noise is {widths} with 95 % probability", widths="± 18.7 for aircraft")
NOT_BOUNDS = Sentence(", not uncounted rows or values cut by bounds")
NOT_CUT = Sentence(", not what bounds cut")
NOT_LEFT_OUT = Sentence(", not what is left out")
ALSO_NULL = Sentence("NULL: no value is known")
ALL_UNKNOWN_IN = Sentence("NULL in {columns}: the 95 % intervals cover all possible values", columns="mean and spread")
NULLS = Sentence("NULL in some columns; {receipt_at} says why", receipt_at="answer.receipt")
UP_TO_SIZE = Sentence("at least {low} is counted up to {size} per unit", low="91 %", size="4,096")
ENDS_OF_SHARE = Sentence("{low} to {high}", low="91 %", high="98 %")
LOW_OF_SHARE = Sentence("at least {low}", low="91 %")
MORE_THAN_THAT = Sentence("at least {count:,} units have more", count=646)
THEIRS = Sentence(", with at least {part} of all; the counted part of theirs is not known", part="34 %")
THEIRS_UNTOLD = Sentence(", with at least {part} of all (counted part unknown)", part="34 %")
THEIRS_SHORT = Sentence(", with at least {part} of all", part="34 %")
THEIRS_UNKNOWN = Sentence(", with an unknown part of all")
UNKNOWN = Sentence("{of}: the counted part is not known: {why}", of="rows", why="see answer.receipt")
ONE_COLUMN = Sentence("one column")
SEE = Sentence("see {receipt_at}", receipt_at="answer.receipt")
MORE = Sentence("{count} more in {receipt_at}", count=2, receipt_at="answer.receipt")
NOTHING = Sentence("no group is shown; {receipt_at} says why", receipt_at="answer.receipt")
MISSED = Sentence("the target is not reached; {receipt_at} says why", receipt_at="answer.receipt")
GUARANTEE = Sentence("epsilon {epsilon} at delta {delta}", epsilon="1", delta="1e-08")
AT_MOST = Sentence("at most {level}", level="rho 0.5")
CHARGED_FOR = Sentence("{charged}, for an answer with {level}", charged="rho 0.01", level="rho 0.0175")
STORED = Sentence("nothing: served as stored, with {level}", level="rho 0.0175")
SPENT = Sentence("spent so far: {level} {spent} of {budget}", level="epsilon", spent="0.80", budget="3")
SPENT_SHORT = Sentence("spent: {spent} of {budget}", spent="0.80", budget="3")
ROOM = Sentence(", room for {count:,} more such questions", count=10)
ROOM_SHORT = Sentence(", room for {count:,} questions", count=10)
ROOM_FOR_ONE = Sentence(", room for 1 more such question")
NO_ROOM = Sentence(", no room for one more")
NOTES = Sentence("{count} notes in {receipt_at}", count=2, receipt_at="answer.receipt")
NOTES_ALONE = Sentence("{count}, in {receipt_at}", count=2, receipt_at="answer.receipt")
ONE_NOTE = Sentence("1 note in {receipt_at}", receipt_at="answer.receipt")
GROUPS_ABOVE = Sentence("shown if their noisy count of units exceeds {threshold}", threshold="57.68")
GROUPS_ABOVE_LARGEST = Sentence(
    "shown if their noisy count of units exceeds the largest left out by {threshold}", threshold="57.68"
)
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
