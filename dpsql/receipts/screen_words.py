"""The table of sentences in the lines below a printed answer, which `screen.py` chooses and fills."""

from __future__ import annotations

from dpsql.receipts.sentence import Sentence

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
PROBABILITY, PROBABILITY_SHORT = " with 95 % probability", " (95 %)"
COVER_BRIEFLY = Sentence("95 % intervals cover noise alone")
FOR_EACH_UNIT = Sentence("at most this for each unit ({units|patient and nurse})")
NO_INTERVAL = Sentence("no interval for {columns|ratio}")
NONE_FOR_SOME = Sentence("none for some")
EXTREMES = Sentence("quantile of the rows, not the {extremes|minimum and maximum}")
HOLD = "intervals hold with 95 %"
LESS_FOR = Sentence(", less for rows that {clause|HAVING} picks")
LESS_FOR_SOME = Sentence(", less for picked rows")
"""Both of the probability in the line below a printed answer."""
ALL_INTERVALS = Sentence("intervals")
ALSO_NULL = Sentence("NULL: no value is known")
ALSO_HIDDEN_VALUES = Sentence("values may be hidden")
ALSO_HIDDEN = Sentence("NULL may be a group that is not shown")
HIDDEN_BRIEFLY = Sentence("groups may be hidden")
NULL_BRIEFLY = Sentence("NULL: not known")
ALL_UNKNOWN_IN = Sentence("NULL in {columns|mean and spread}: the 95 % intervals cover all possible values")
NULLS = Sentence("NULL in some columns; {receipt_at|answer.receipt} says why")
MORE = Sentence("{count|2} more in {receipt_at|answer.receipt}")
NOTHING = Sentence("no group is shown; {receipt_at|answer.receipt} says why")
MISSED = Sentence("the target is not reached; {receipt_at|answer.receipt} says why")
GUARANTEE = Sentence("epsilon {epsilon|1} at delta {delta|1e-08}")
AT_MOST = Sentence("at most {level|rho 0.5}")
CHARGED_FOR = Sentence("{charged|rho 0.01}, for an answer with {level|rho 0.0175}")
STORED = Sentence("nothing: served as stored, with {level|rho 0.0175}")
STORED_ABOVE = Sentence("nothing: served as stored, with {level|epsilon 0.7} (asked: {asked|0.5})")
"""Of a unit with composition = 'pure'."""
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
