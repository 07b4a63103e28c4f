"""The table of sentences on coverage: the parts of columns that are counted, and values that are cut.

`phrases.py`, `coverage_lines.py` and `bounds_line.py` choose rows and fill them.
"""

from __future__ import annotations

from dpsql.receipts.sentence import Sentence

# Counts, and sums of values from 0 on.

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

# Advice, and reasons why nothing is known.

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
COVERAGE_OF_PURE = Sentence("with composition = 'pure' it is not measured")
COVERAGE_OF_METHOD = Sentence(
    "at most {rows|3 rows} of one {unit|person} count in a group, and method = CORRELATED does not measure how many "
    "have more"
)
COVERAGE_OF_SETS = Sentence("the grouping sets are added up from groups by more keys; ask about each set by itself")
COVERAGE_OF_LARGEST = Sentence("the groups that top_k leaves out depend on all units together; leave top_k out")
COVERAGE_AT_CEILING = Sentence("rho_ceiling draws each number once, at the ceiling; leave rho_ceiling out")
COVERAGE_OF_CUT_UNITS = Sentence(
    "max_rows_per_unit cuts the rows of a unit; the curator can declare the table with max_rows_per_unit := NULL"
)

# Averages, spreads and sums of both signs: their rows, or totals.

AT_MOST_OF_ALL = Sentence("at most {high|35 %} of all {nouns|its rows} are counted")
HAVE_PART = Sentence(
    "at least {least:,|646} and at most {most:,|2914} units{unit| (patient)} have {more|more than 64 of its rows}: "
    "they have at least {part|34 %} of all, and it is unknown what part of theirs is counted"
)
PART_HIDDEN = Sentence(
    "at least {least:,|646} and at most {most:,|2914} units{unit| (patient)} have {more|more than 64 of its rows}: it "
    "is unknown what part of theirs is counted"
)
ROWS_ABOVE = Sentence("more than {size|64} of {nouns|its rows}")
TOTALS_ABOVE = Sentence("{nouns|totals} of more than {size|4,096} by size")
OF_OTHERS = Sentence("of the other units {ends|at least 91 %} of {nouns|its rows} are counted")
OF_UNITS = Sentence(
    "{ends|at least 91 %} of {nouns|its rows} are counted for units{unit| (patient)} with {size|up to 64 of them}"
)
UP_TO_ROWS = Sentence("up to {size|64} of them")
UP_TO_ROW = Sentence("1 of them")
UP_TO_TOTALS = Sentence("up to {size|4,096}")
ITS_ROWS = Sentence("its rows")
BY_SIZE = Sentence("{nouns|totals in a group} (by size)")
AT_MOST_AND = Sentence("at most {high|47 %} and at least {low|41 %}")
ROWS_UNMEASURED = Sentence("it was not measured; ask for count(*) beside it")

# Values that are cut.

MAY_CUT = Sentence(
    "up to {share|9 %} of the units{unit| (patient)} with {owned|totals} may have {nouns|totals in a group} "
    "{cut|cut at [0, 500]}"
)
UNKNOWN_CUT = Sentence("it is unknown how many {nouns|values} are {cut|cut at [0, 500]}")
NOISE_HIDES = Sentence(
    "{unknown|it is unknown how many values are cut}: noise hides the units at this level, ask with more epsilon or rho"
)
SUM_OF_ALL = Sentence("at most {high|81 %} of what its values add up to is counted")
OTHERS_CUT = Sentence("values outside {bounds|[0, 500]}, if there are any, are cut")
CUT_AT = Sentence("cut at {bounds|[0, 500]}")
SCALED_DOWN = Sentence("scaled down")

# Shorter wordings, for the lines below a printed answer and for logs.

HAVE_PART_SHORT = Sentence(
    "at least {least:,|646} units have {more|more than 64 of its rows}, with at least {part|34 %} of all; the counted "
    "part of theirs is not known"
)
PART_HIDDEN_SHORT = Sentence(
    "at least {least:,|646} units have {more|more than 64 of its rows}; the counted part of theirs is not known"
)
MAY_CUT_SHORT = Sentence("up to {share|9 %} of units may have {nouns|values} {cut|cut at [0, 500]}")
UNKNOWN_SHORT = Sentence("the counted part of {nouns|its rows} is not known")
MAY_LACK = Sentence("at least {least:,|646} units may have uncounted {nouns|rows}")
CUT_NOT_KNOWN = Sentence("unknown how many {nouns|values} are {cut|cut}")

# The line below a printed answer.

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
