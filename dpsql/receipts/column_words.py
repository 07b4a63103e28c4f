"""The table of sentences on averages, spreads and sums of both signs: rows that are counted, and values that are cut.

Each row is a sentence as in `words.py`. `column_coverage.py` chooses rows and fills them.
"""

from __future__ import annotations

from dpsql.receipts.sentence import Sentence

# Rows, or totals of both signs.

AT_MOST_OF_ALL = Sentence("at most {high|35 %} of all {nouns|its rows} are counted")
HAVE_PART = Sentence(
    "at least {least:,|646} and at most {most:,|2914} units{unit| (patient)} have {more|more than 64 of its rows}: "
    "they have at least {part|34 %} of all, and it is unknown what part of theirs is counted"
)
PART_HIDDEN = Sentence(
    "at least {least:,|646} and at most {most:,|2914} units{unit| (patient)} have {more|more than 64 of its rows}: it "
    "is unknown what part of theirs is counted"
)
MORE_ROWS = Sentence("more than {size|64} of {nouns|its rows}")
MORE_TOTALS = Sentence("{nouns|totals} of more than {size|4,096} by size")
OF_OTHERS = Sentence("of the other units {ends|at least 91 %} of {nouns|its rows} are counted")
OF_UNITS = Sentence(
    "{ends|at least 91 %} of {nouns|its rows} are counted for units{unit| (patient)} with {size|up to 64 of them}"
)
UP_TO_ROWS = Sentence("up to {size|64} of them")
UP_TO_ROW = Sentence("1 of them")
UP_TO_TOTALS = Sentence("up to {size|4,096}")
ITS_ROWS = Sentence("its rows")
BY_SIZE = Sentence("{nouns|totals in a group} (by size)")
PERHAPS_MORE = Sentence("at most {most:,|921} units have more, perhaps none")
AT_MOST_AND = Sentence("at most {high|47 %} and at least {low|41 %}")
ROWS_UNMEASURED = Sentence("it was not measured; ask for count(*) beside it")

# Values.

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
