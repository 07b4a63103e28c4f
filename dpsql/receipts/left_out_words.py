"""Sentences about rows, or amounts, that bounds leave out: the warning first, then the number, then the reason.

All numbers are those of `LeftOut`. Wordings come as lists, the longest first. A lower end is rounded down, and a part
that could be left out is rounded up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from dpsql.operations.dialect import quote
from dpsql.pictures.tables import short
from dpsql.receipts import phrases, words
from dpsql.release.left_out import SURE, LeftOut, LeftOutReceipt

Named: TypeAlias = tuple[str, LeftOutReceipt]
"""Rows left out, after the name of their grouping set; an empty name if there is one set."""

_LONGEST_NAME = 24
"""A longer name of a column is cut in a line."""
_HUGE = 1e4
"""Factors from here on have an exponent."""
_MUCH = 0.25
"""If a larger part could be left out, a line does not begin with the absence of a sign."""
_SOME = 0.1
"""If a larger part could be left out of a number, a warning about another number names it."""
_MOST_NAMED = 3
"""Largest number of columns whose factors stand in one line."""
_AMOUNT = "an amount of "
_WITHIN = words.WITHIN_UNKNOWN.partition("{")[0]
_BOUNDS = re.compile(r", contribution_\w+ => (?:\([^()]*\)|[^,()]+)")
"""Bounds in a call, which a line leaves out."""
_WORD = r"[A-Za-z][a-z]+"
"""A name of a unit that has a plural."""
_UNUSUAL = {"person": "people", "aircraft": "aircraft", "child": "children", "man": "men", "woman": "women"}


def too_low(found: Sequence[Named], rows: int | None = None, others: Sequence[str] = ()) -> list[str]:
    """Return wordings of the warning that numbers are too low, the worst column first; none if no number is.

    Args:
        found: of all columns.
        rows: number of rows of the answer, if the number of groups is told where it is larger.
        others: columns of other kinds that may be too low, too.

    """
    lows = _lows(found)
    if not lows:
        return []
    (of_set, worst), *more_lows = lows
    more = f"; {len(more_lows)} more are too low" if more_lows else _may_be(found, others)
    if len(more_lows) == 1:
        ((its_set, other),) = more_lows
        more = f"; {_cut(its_set) or _name(other)} is too low, too"
    name = f"{_cut(of_set)}: " * bool(of_set) + (f"{_name(worst)}: " if others or _is_named(worst, found) else "")
    groups = f" of {_groups(worst.found)}" if rows is not None and worst.found.groups > rows else ""
    whose = f" of busy {plural(worst.unit)}"
    full, plain = _left_out(worst, whose, groups), _left_out(worst, "", groups)
    wordings = [f"{name}{one}{end}" for end in (more, "") for one in (full, plain, plain.removeprefix(_AMOUNT))]
    return list(dict.fromkeys([*wordings, plain, _left_out(worst, "", "")]))


def whole(found: Sequence[Named], *, is_named: bool = False) -> list[str]:
    """Return wordings of the estimate of the whole numbers; none if no number is too low.

    Args:
        found: of all columns.
        is_named: whether to name the columns, because the answer has other numbers.

    """
    lows = _lows(found)
    if not lows:
        return []
    _, worst = lows[0]
    alike = _if_alike([one.found for _, one in lows])
    call = f": {_call(worst)}" if worst.column else ""
    if call and len({one.column for _, one in lows}) > 1:
        call = ": dp_unbounded"
    is_named = is_named or len(lows) > 1
    each = [f"{factor_of(one.found)} × {_numbers(of_set, one, is_named=is_named)}" for of_set, one in lows]
    heads = [f"about {phrases.listed(each)}"] if len(lows) <= _MOST_NAMED else []
    wordings = [f"{head}{alike}{end}" for head in (*heads, f"about {each[0]}") for end in (call, "")]
    # text that can be pasted is worth more than the noun
    short_one = f"about {factor_of(worst.found)} ×{alike}"
    wordings[1:1] = [f"{short_one}{call}"] if len(lows) == 1 else []
    return [*wordings, short_one]


def too_low_and_whole(found: Sequence[Named], rows: int) -> list[str]:
    """Return wordings of one line with the warning and the factor of the estimate; none if no number is too low."""
    warnings = too_low(found, rows)
    if not warnings:
        return []
    _, worst = _lows(found)[0]
    factor = factor_of(worst.found)
    wordings = (f"{one}; the whole is about {factor} × or more" for one in warnings)
    return [*wordings, f"the whole is about {factor} × {_numbers('', worst, is_named=len(found) > 1)} or more"]


def bounds(found: Sequence[Named], *, is_named: bool = False) -> list[str]:
    """Return wordings of what could be left out, for numbers of which none is known to be too low.

    Args:
        found: of all columns.
        is_named: whether to name the columns, because another line is about others.

    """
    clear = [one for _, one in found if one.found.could_be is not None]
    unclear = [one for _, one in found if one.found.could_be is None]
    if not unclear:
        named = [name for name in _names(clear) if name != "rows"]
        of = f" of {phrases.listed(named)}" if is_named and named else ""
        return [*_could_be(clear, of), *_could_be(clear)]
    only_rows = not any(one.is_amount for one in unclear)
    hidden = "too few rows are shown to say how many bounds leave out"
    if not only_rows:
        hidden = "too little is shown to say how much bounds leave out"
    # a lower end holds, however few rows are shown
    if sure := [one for one in unclear if one.found.is_of_shown and one.found.value > SURE * one.found.sigma]:
        one = sure[0]
        name = f"{_name(one)}: " * (len(found) > 1)
        nouns, few = ("an amount of", "too little is") if one.is_amount else ("", "too few are")
        least = " ".join([nouns, phrases.rounded_down(one.found.least, is_whole=not one.is_amount)]).strip()
        verb = "is left out" if one.is_amount else "rows are left out"
        hidden = f"{name}at least {least} {verb}; {few} shown to say how large a part that is"
        return list(dict.fromkeys((hidden, hidden.removeprefix(name))))
    if not clear:
        return [hidden]
    names = phrases.listed(list(dict.fromkeys(_name_in(named, found) for named in found if named[1] in unclear)))
    return [*(f"{names}: {hidden}; else {one}" for one in _could_be(clear)), f"{names}: {hidden}", hidden]


def light_bars(found: LeftOut) -> str:
    """Say what light bars behind the numbers of a picture are."""
    return f"light: about {factor_of(found)} × as much{_if_alike([found])}"


def sentence(one: LeftOutReceipt) -> str:
    """Return all that is known of one column, for the receipt."""
    found = one.found
    parts = []
    if found.is_too_low:
        parts += [f"numbers are too low: the whole is about {factor_of(found)} × as much{_if_alike([found])}"]
    if found.is_of_shown:
        number = "amount" if one.is_amount else "number of rows"
        noise = f"{short(found.value, 4)} (standard deviation {short(found.sigma, 4)})"
        parts += [f"the noisy {number} that bounds leave out of {_groups(found)} is {noise}"]
        if (least := phrases.rounded_down(found.least, is_whole=not one.is_amount)) != "0":
            parts += [f"at least {least} (95 %)"]
    else:
        parts += [f"what bounds leave out was measured in {_groups(found)} of another answer"]
    rows = "is" if one.is_amount else "row is" if found.cut == 1.0 else "rows are"
    most = f"{short(found.cut, 4)} {rows} counted here"
    parts += [f"of one unit ({one.unit}) at most {most}, and what one unit has beyond that is in no number"]
    if found.could_be is None:
        parts += ["too little is shown to compare with"]
    else:
        parts += [f"up to {most_of(found)} of the whole could be left out, and more beyond that cut"]
    name = f"{one.of}: " if one.is_amount or one.of != "rows" else ""
    return name + "; ".join(parts)


def within_unknown(one: LeftOutReceipt, error: float) -> str:
    """Say why truth values about a target are NULL.

    Args:
        one: of the column.
        error: the relative error that the question asks for.

    """
    could_be = one.found.could_be
    if one.found.is_too_low:
        why = f"numbers are too low, because {_nouns(one)} are left out"
    elif could_be is None:
        (why,) = bounds([("", one)])
    elif one.found.least > 0.0:
        why = f"{_nouns(one)} seem to be left out, and of one {_unit(one)} more than {one.found.cut:,.9g} may be"
    else:
        most = f"up to {most_of(one.found)} of the {_nouns(one)} could be left out"
        why = f"{most}, too much beside the noise to be sure of {100.0 * error:.6g} %"
    return words.WITHIN_UNKNOWN.format(why=why)


def lacks_people(column: str, most: float, unit: str, error: float) -> str:
    """Say that a number of people may lack too many.

    Args:
        column: its name.
        most: upper end of those whom one group lacks.
        unit: name of the privacy unit.
        error: the relative error that the question asks for.

    >>> lacks_people("people", 229.3, "patient", 0.1).partition(": ")[2]
    'one group of people may lack up to 230 patients, too many to be sure of 10 %'
    """
    most_said, units = f"{max(1, math.ceil(most)):,}", plural(unit)
    why = words.LACKS_PEOPLE.format(column=column, most=most_said, units=units, percent=100.0 * error)
    return words.WITHIN_UNKNOWN.format(why=why)


def may_cut_some(cut: str, columns: Sequence[str]) -> str:
    """Say that bounds may cut some of columns, and that nothing tells how much.

    Args:
        cut: ``rows``, ``values`` or both.
        columns: their names.

    >>> may_cut_some("rows or values", ["cost", "age"]).partition(": ")[2]
    'bounds may cut rows or values of cost and age, and how much of one group is not measured'
    """
    why = words.MAY_CUT_SOME.format(cut=cut, columns=phrases.listed(columns))
    return words.WITHIN_UNKNOWN.format(why=why)


def says_within(note: str) -> bool:
    """Check that a note says why truth values about a target are NULL, or which rows noisy counts chose."""
    return note.startswith(_WITHIN) or words.CHOSEN_BY_COUNTS in note


def says_rows_within(note: str) -> bool:
    """Check that such a note speaks of a measured number of rows, or of an amount, that bounds leave out."""
    others = tuple(_WITHIN + one.partition("{")[0] for one in (words.LACKS_PEOPLE, words.MAY_CUT_SOME))
    return note.startswith(_WITHIN) and not note.startswith(others)


def within_wordings(note: str) -> list[str]:
    """Return wordings of such a note on a line of its own."""
    if words.CHOSEN_BY_COUNTS in note:
        (within, has_error, _), missing = note.partition(" ("), note.partition(words.CHOSEN_BY_COUNTS)[2]
        return [note, *([f"{within}; {missing}"] if has_error else []), missing]
    why = note.removeprefix(_WITHIN)
    return [f"NULL: {one}" for one in dict.fromkeys((why, why.partition(" to be sure")[0], why.partition(", ")[0]))]


def plural(unit: str) -> str:
    """Return the plural of the name of a unit; of a name that is no word of lower-case letters, units with the name.

    >>> [plural(unit) for unit in ("patient", "person", "company", "box", "users", "patient_id")]
    ['patients', 'people', 'companies', 'boxes', 'users', 'units (patient_id)']
    """
    if not re.fullmatch(_WORD, unit) or len(unit) > _LONGEST_NAME:
        return f"units ({_cut(unit)})"
    if unit in _UNUSUAL:
        return _UNUSUAL[unit]
    if unit.endswith("s"):
        return unit
    if re.search(r"[^aeiou]y$", unit):
        return f"{unit[:-1]}ies"
    return f"{unit}es" if re.search(r"(x|z|ch|sh)$", unit) else f"{unit}s"


def factor_of(found: LeftOut) -> str:
    """Return the factor of an estimate, with two digits of what it adds.

    >>> [factor_of(LeftOut(value, 1.0, 1000.0, 9.0, 1.0, 3)) for value in (271.0, 34.2, 3456.0, 12_345.0)]
    ['1.27', '1.034', '4.5', '13']
    """
    added = found.factor - 1.0
    if added >= _HUGE:
        return f"{found.factor:.3g}"
    decimals = 0 if added <= 0.0 else min(6, max(0, 1 - math.floor(math.log10(added))))
    return f"{found.factor:,.{decimals}f}"


def most_of(found: LeftOut) -> str:
    """Return the part that could be left out in per cent, rounded up; from 1 % on in whole per cent."""
    percent = math.ceil(100.0 * (found.could_be or 0.0))
    return f"{percent} %" if percent > 1 else phrases.at_most(found.could_be or 0.0)


def _left_out(one: LeftOutReceipt, whose: str, groups: str) -> str:
    """Say what is left out of a number that is too low."""
    found, is_whole = one.found, not one.is_amount
    if not found.is_of_shown:
        share = short(min(99.0, 100.0 * (1.0 - 1.0 / found.factor)), 2)
        part = "the amount is" if one.is_amount else "these rows are"
        return f"probably about {share} % of {part} left out, measured in {_groups(found)} of another answer"
    least, about = (
        phrases.rounded_down(found.least, is_whole=is_whole),
        phrases.rounded_to(found.value, is_whole=is_whole),
    )
    numbers = f"probably {about} or more" if least == "0" else f"at least {least}, probably {about} or more"
    if one.is_amount:
        return f"{_AMOUNT}{numbers}{whose} is left out{groups}"
    return f"{numbers} {'row' if about == '1' else 'rows'}{whose} {'is' if about == '1' else 'are'} left out{groups}"


def _could_be(clear: Sequence[LeftOutReceipt], of: str = "") -> Iterator[str]:
    """Yield wordings of the largest part that could be left out of some numbers; ``of`` names them."""
    worst = max(clear, key=lambda one: one.found.could_be or 0.0)
    most, nouns = most_of(worst.found), _nouns_of_all(clear)
    cut, unit = f"{worst.found.cut:,.9g}", _unit(worst)
    rows = "" if worst.is_amount else f" row{'s' * (cut != '1')}"
    where = "" if worst.found.is_of_shown else f", by {_groups(worst.found)} of another answer"
    if worst.found.could_be and worst.found.could_be > _MUCH:
        head = f"up to {most} of the {nouns}{of} could be left out{where}"
    else:
        # a lower end above 0 is a sign, though no clear one
        sign = "no clear sign" if any(one.found.least > 0.0 for one in clear) else "no sign"
        head = f"{sign} that {nouns}{of} are left out{where}; up to {most} could be"
    yield f"{head}, if no {unit} lacks over {cut}{rows}"
    yield f"{head}, if no {unit} lacks over {cut}"
    yield f"{head}, if no unit lacks over {cut}"
    yield f"{head}, if none lacks over {cut}"
    yield head


def _if_alike(found: Sequence[LeftOut]) -> str:
    """Say on which condition estimates depend; that of a single group depends on none."""
    return ", or more" if all(one.groups == 1 for one in found) else ", or more, if groups are cut alike"


def _numbers(of_set: str, one: LeftOutReceipt, *, is_named: bool) -> str:
    """Return the noun of the numbers of a column, and of a grouping set."""
    if of_set:
        return f"{_name(one) if is_named else 'the numbers'} of {_cut(of_set)}"
    if not one.column and one.of == "rows":
        # what is computed from a count need not have its factor
        return "the counted rows"
    if is_named or not one.column:
        return _name(one)
    return "this number" if one.found.groups == 1 else "these numbers"


def _lows(found: Sequence[Named]) -> list[Named]:
    """Return the columns that are too low, the worst first."""
    lows = [(of_set, one) for of_set, one in found if one.found.is_too_low]
    return sorted(lows, key=lambda low: (-low[1].found.factor, -(low[1].found.could_be or 0.0)))


def _may_be(found: Sequence[Named], people: Sequence[str]) -> str:
    """Say which columns may be too low, too; an empty text if no other column lacks a part that counts."""
    others = [
        _name_in((of_set, one), found)
        for of_set, one in found
        if not one.found.is_too_low and (one.found.could_be or 1.0) > _SOME
    ]
    others += map(_cut, people)
    if len(others) > 1:
        return f"; {len(others)} more may be"
    return f"; {others[0]} may be, too" if others else ""


def _is_named(one: LeftOutReceipt, found: Sequence[Named]) -> bool:
    """Check that a line must say which column it is about."""
    return one.is_amount or one.of != "rows" or len({other.of for _, other in found}) > 1


def _name(one: LeftOutReceipt) -> str:
    return _cut(one.column or _BOUNDS.sub("", phrases.column_of(one.of)))


def _name_in(named: Named, found: Sequence[Named]) -> str:
    """Return the name of a column, with its grouping set or part if others have a column of the name."""
    of_set, one = named
    is_shared = any(other is not one and _name(other) == _name(one) for _, other in found)
    return f"{_name(one)} of {_cut(of_set)}" if of_set and is_shared else _name(one)


def _names(found: Sequence[LeftOutReceipt]) -> list[str]:
    return list(dict.fromkeys(map(_name, found)))


def _nouns(one: LeftOutReceipt) -> str:
    return "amounts" if one.is_amount else "rows"


def _nouns_of_all(found: Sequence[LeftOutReceipt]) -> str:
    return " or ".join(sorted({_nouns(one) for one in found}, reverse=True))


def _unit(one: LeftOutReceipt) -> str:
    return one.unit if re.fullmatch(_WORD, one.unit) and len(one.unit) <= _LONGEST_NAME else "unit"


def _groups(found: LeftOut) -> str:
    return phrases.number_of(found.groups, "group")


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _call(one: LeftOutReceipt) -> str:
    """Return the call that estimates the whole numbers of a column, after a name for a column that has none."""
    if "(" in one.column:
        # its own call may have bounds and a filter
        return "add AS n, dp_unbounded(n)"
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", one.column)
    return f"dp_unbounded({one.column if is_plain else quote(one.column)})"
