"""The table of sentences on averages, spreads and sums of both signs: rows that are counted, and values that are cut.

Each row is a sentence as in `words.py`. `column_coverage.py` chooses rows and fills them.
"""

from __future__ import annotations

from dpsql.receipts.sentence import Sentence

# Rows, or totals of both signs.

AT_MOST_OF_ALL = Sentence("at most {high} of all {nouns} are counted", high="35 %", nouns="its rows")
HAVE_PART = Sentence(
    "at least {least:,} and at most {most:,} units{unit} have {more}: they have at least {part} of all, and it is "
    "unknown what part of theirs is counted",
    least=646,
    most=2914,
    unit=" (patient)",
    more="more than 64 of its rows",
    part="34 %",
)
PART_HIDDEN = Sentence(
    "at least {least:,} and at most {most:,} units{unit} have {more}: it is unknown what part of theirs is counted",
    least=646,
    most=2914,
    unit=" (patient)",
    more="more than 64 of its rows",
)
MORE_ROWS = Sentence("more than {size} of {nouns}", size="64", nouns="its rows")
MORE_TOTALS = Sentence("{nouns} of more than {size} by size", nouns="totals", size="4,096")
OF_OTHERS = Sentence("of the other units {ends} of {nouns} are counted", ends="at least 91 %", nouns="its rows")
OF_UNITS = Sentence(
    "{ends} of {nouns} are counted for units{unit} with {size}",
    ends="at least 91 %",
    nouns="its rows",
    unit=" (patient)",
    size="up to 64 of them",
)
UP_TO_ROWS = Sentence("up to {size} of them", size="64")
UP_TO_ROW = Sentence("1 of them")
UP_TO_TOTALS = Sentence("up to {size}", size="4,096")
ITS_ROWS = Sentence("its rows")
BY_SIZE = Sentence("{nouns} (by size)", nouns="totals in a group")
PERHAPS_MORE = Sentence("at most {most:,} units have more, perhaps none", most=921)
AT_MOST_AND = Sentence("at most {high} and at least {low}", high="47 %", low="41 %")
ROWS_UNMEASURED = Sentence("it was not measured; ask for count(*) beside it")

# Values.

MAY_CUT = Sentence(
    "up to {share} of the units{unit} with {owned} may have {nouns} {cut}",
    share="9 %",
    unit=" (patient)",
    owned="totals",
    nouns="totals in a group",
    cut="cut at [0, 500]",
)
UNKNOWN_CUT = Sentence("it is unknown how many {nouns} are {cut}", nouns="values", cut="cut at [0, 500]")
NOISE_HIDES = Sentence(
    "{unknown}: noise hides the units at this level, ask with more epsilon or rho",
    unknown="it is unknown how many values are cut",
)
SUM_OF_ALL = Sentence("at most {high} of what its values add up to is counted", high="81 %")
OTHERS_CUT = Sentence("values outside {bounds}, if there are any, are cut", bounds="[0, 500]")
CUT_AT = Sentence("cut at {bounds}", bounds="[0, 500]")
SCALED_DOWN = Sentence("scaled down")

# Shorter wordings, for the lines below a printed answer and for logs.

HAVE_PART_SHORT = Sentence(
    "at least {least:,} units have {more}, with at least {part} of all; the counted part of theirs is not known",
    least=646,
    more="more than 64 of its rows",
    part="34 %",
)
PART_HIDDEN_SHORT = Sentence(
    "at least {least:,} units have {more}; the counted part of theirs is not known",
    least=646,
    more="more than 64 of its rows",
)
MAY_CUT_SHORT = Sentence(
    "up to {share} of units may have {nouns} {cut}", share="9 %", nouns="values", cut="cut at [0, 500]"
)
UNKNOWN_SHORT = Sentence("the counted part of {nouns} is not known", nouns="its rows")
MAY_LACK = Sentence("at least {least:,} units may have uncounted {nouns}", least=646, nouns="rows")
CUT_NOT_KNOWN = Sentence("unknown how many {nouns} are {cut}", nouns="values", cut="cut")
