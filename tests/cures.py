"""Cures: the SQL that a hint gives, taken out of it and applied to the text that was refused.

A hint gives SQL after the words "write", "add" or "declare", or says which options to "leave out"; every CALL,
every OPTIONS (…) and every call with named arguments counts. Each of its cures mends the refusal alone, and has one of
these forms:

    CALL dp_…(…) [and CALL dp_…(…)]   declared before the text is asked again
    OPTIONS (…) [in place of a]       options that are added, or take the place of those of the same names, and of a
    leave a, b and c out              options that are taken away, if these are names of options
    name => value                     an argument of the call at the refusal's place, instead of arguments like it
    f(…) [FILTER (…)] [OVER (…)]      instead of the call at the refusal's place
    a + b, CASE …, x in its place     an expression, likewise; it ends at a comma or a word of the sentence
    x, f(…) with GROUP BY x [ORDER …] likewise, and the clauses that the text then has
    ORDER BY … LIMIT n                at the end of the text, or instead of the clauses that are there
    SELECT …, WITH …, FROM dp_…(…)    instead of the whole text

What stands between words otherwise is an example, and no cure. A value in a cure may be a blank, as in
``max_rows_per_group := <most rows of one unit in one group>``. `filled` puts a value in place of each blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpsql.errors import Span
from dpsql.model.private_query import OPTION_NAMES
from dpsql.operations import blanks
from dpsql.sql.options import OF_THE_POLICY

_VERB = re.compile(r"\b(?:[Ww]rite|[Aa]dd|[Dd]eclare) (?=\S)|(?=\bCALL dp_)|(?=\bOPTIONS \()|(?=\b\w+\([^)]*=>)")
_LEAVE = re.compile(r"\bleave ([\w ,=]+?) out\b", re.IGNORECASE)
_CALL = re.compile(r"(\w+) ?\(")
_OPTIONS = re.compile(r"(?:SELECT WITH DIFFERENTIAL_PRIVACY )?OPTIONS \(")
_TEXT = re.compile(r"SELECT .*\S FROM \w|WITH .*SELECT |FROM dp_|SELECT (?!WITH )")
_INSTEAD = re.compile(r" in place of (\w+(?:, \w+)*(?: and \w+)?)")
_ARGUMENT = re.compile(r"(\w+) => ")
_CLAUSES = re.compile(r"(?:ORDER BY .*? )?LIMIT \d+")
_AFTER_CALL = re.compile(r"\s*(?:FILTER|OVER|WITHIN GROUP)\s*\(", re.IGNORECASE)
_GROUPED = re.compile(r"(.+?) with (GROUP BY .+?)(?:\.(?: |$)|, and )")
_EXPRESSION = re.compile(r"[(\d]|CASE |INTERVAL |DATE '|-?[\w.]+ (?:[-+*/<>&]|IS |LIKE |ILIKE |NOT )|\S.* in its place")
"""Beginnings of an expression that is no call."""
_OPERATOR = re.compile(r" (?:[-+*/<>=&]+|IS|LIKE|ILIKE|NOT) ")
_END = re.compile(r"\.(?: |$)|[,;:] | (?:for|if|to|once|with|in|and|or|near|where|WHERE)\b")


VALUES_OF_BLANKS = {
    blanks.MOST_GROUPS: "4",
    blanks.MOST_ROWS: "10",
    blanks.MOST_VALUES: "10",
    blanks.ROWS_NORM: "14",
    blanks.SUM_NORM: "2000",
    **dict(zip(blanks.VALUES, ("0", "500"), strict=True)),
    blanks.LEAST_POSITIVE: "0.5",
    **dict(zip(blanks.SUMS, ("0", "500"), strict=True)),
    **dict(zip(blanks.DAYS, ("DATE '2020-01-01'", "DATE '2030-01-01'"), strict=True)),
    **dict(zip(blanks.LEVELS, ("0.01", "1"), strict=True)),
    blanks.KEYS: "'1', '2'",
    blanks.LARGEST_GROUPS: "200",
    blanks.EPSILON: "0.5",
    blanks.RHO: "0.5",
    blanks.REASON: "'made up'",
    blanks.HIGHEST_RHO: "0.05",
    blanks.EPSILON_BUDGET: "3",
    blanks.DELTA_BUDGET: "1e-6",
}
"""A value for each blank that a cure of dpsql has."""


def filled(sql: str) -> str:
    """Return SQL with a value in place of each blank."""
    for words, value in VALUES_OF_BLANKS.items():
        sql = sql.replace(words, value)
    return sql


class NotACureError(ValueError):
    """What a hint tells people to write has none of the known forms, or cannot be applied."""


@dataclass(frozen=True)
class Cure:
    """One way to mend a text: its form, what the hint says, and the SQL or the names of options."""

    form: str
    sql: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether it is a text without blanks, which can be pasted as it stands."""
        return not any(words in one for one in self.sql for words in VALUES_OF_BLANKS)

    def filled(self) -> Cure:
        """Return the cure with a value in place of each blank."""
        return replace(self, sql=tuple(map(filled, self.sql)))


@dataclass(frozen=True)
class Question:
    """A text with the options that are given beside it, and what is declared before it is asked."""

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    declarations: tuple[str, ...] = ()


def cures_of(hint: str) -> Iterator[Cure]:
    """Yield every cure that a hint gives.

    Raises:
        NotACureError: after "write", "add" or "declare" stands something of no known form.

    """
    given = ""
    for found in _VERB.finditer(hint):
        if rest := hint[found.end() :]:
            cure = _cure(rest)
            # SQL after a verb is found a second time, by itself
            if not all(sql in given for sql in cure.sql):
                yield cure
            given += " ".join(cure.sql)
    for found in _LEAVE.finditer(hint):
        names = re.split(r", | and ", found[1])
        if set(names) <= {*OPTION_NAMES, *OF_THE_POLICY}:
            yield Cure("leave out", tuple(names))


def _cure(rest: str) -> Cure:
    if rest.startswith("CALL "):
        calls = []
        while rest.startswith("CALL "):
            calls.append(_balanced(rest, rest.index("(")))
            rest = rest[len(calls[-1]) :].removeprefix(" and ")
        return Cure("declare", tuple(calls))
    if _TEXT.match(rest):
        return Cure("text", (re.split(r"\.(?: |$)| for those ", rest)[0],))
    if found := _OPTIONS.match(rest):
        whole = _balanced(rest, found.end() - 1)
        instead = _INSTEAD.match(rest, len(whole))
        left = re.split(r", | and ", instead[1]) if instead else []
        return Cure("options", (whole[found.end() - 9 :], *left))
    if found := _CLAUSES.match(rest):
        return Cure("clauses", (found[0],))
    if found := _ARGUMENT.match(rest):
        value = rest[found.end() :]
        if value.startswith("<"):
            return Cure("argument", (found[1], value[: value.index(">") + 1]))
        value = _balanced(value, 0) if value.startswith("(") else re.match(r"[\w.]+", value)[0].rstrip(".")  # type: ignore[index]
        return Cure("argument", (found[1], value))
    if found := _GROUPED.match(rest):
        return Cure("grouped", (found[1], found[2]))
    if found := _CALL.match(rest):
        call = _whole_call(rest, 0)
        return Cure("call", (_expression(rest) if _OPERATOR.match(rest, len(call)) else call,))
    if _EXPRESSION.match(rest):
        return Cure("call", (_expression(rest),))
    raise NotACureError(f"no form: {rest!r}")


def _expression(text: str) -> str:
    """Return the expression that a text begins with: what stands before the first word of the sentence."""
    depth, quoted = 0, False
    for place, letter in enumerate(text):
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter in "([") - (letter in ")]")
        if not depth and not quoted and _END.match(text, place):
            return text[:place]
    return text


def _balanced(text: str, opening: int) -> str:
    """Return the beginning of a text up to the parenthesis that closes the one at a place."""
    depth, quoted = 0, False
    for place in range(opening, len(text)):
        letter = text[place]
        quoted ^= letter == "'"
        if not quoted and letter in "([":
            depth += 1
        elif not quoted and letter in ")]":
            depth -= 1
            if not depth:
                return text[: place + 1]
    raise NotACureError(f"no closing parenthesis: {text!r}")


def _whole_call(text: str, start: int) -> str:
    """Return the call that begins at a place, with FILTER and OVER."""
    found = _CALL.match(text, start)
    if not found:
        raise NotACureError(f"no call at {text[start:]!r}")
    call = _balanced(text, found.end() - 1)
    while after := _AFTER_CALL.match(text, len(call)):
        call = _balanced(text, after.end() - 1)
    if quotient := re.match(r" / (?=\w+\()", text[len(call) :]):
        begins = len(call) + quotient.end()
        call = text[:begins] + _whole_call(text, begins)
    return call[start:]


def mended(question: Question, cure: Cure, span: Span | None) -> Question:
    """Return the question with one cure applied.

    Args:
        question: what was refused.
        cure: of one of its refusals.
        span: the place of that refusal.

    Raises:
        NotACureError: there is nothing in the text that it could be applied to.

    """
    text, options = question.text, question.options
    match cure.form:
        case "declare":
            return Question(text, options, cure.sql)
        case "options":
            given = dict(_listed(cure.sql[0]))
            changes = {**dict.fromkeys(cure.sql[1:]), **given}
            left = {name: value for name, value in options.items() if name not in changes}
            return Question(_with_options(text, changes), left)
        case "leave out":
            left = {name: value for name, value in options.items() if name not in cure.sql}
            return Question(_with_options(text, dict.fromkeys(cure.sql)), left)
        case "text":
            return Question(cure.sql[0], options)
        case "clauses":
            begins = cure.sql[0].split()[0]
            cut = re.search(rf"\b{begins}\b(?!.*\))", text, re.IGNORECASE)
            return Question(f"{(text[: cut.start()] if cut else text).rstrip()} {cure.sql[0]}", options)
    if span and not _CALL.search(text[span.start : span.end + 1]) and text[span.start : span.end].isidentifier():
        # a word that other databases call without parentheses
        return Question(text[: span.start] + cure.sql[0] + text[span.end :], options)
    start = _call_at(text, span)
    call = _whole_call(text, start)
    if cure.form == "grouped":
        return Question(_grouped(text[:start] + cure.sql[0] + text[start + len(call) :], cure.sql[1]), options)
    new = cure.sql[0] if cure.form == "call" else _with_argument(call, *cure.sql)
    return Question(text[:start] + new + text[start + len(call) :], options)


def _grouped(text: str, clauses: str) -> str:
    """Return a text with GROUP BY, or with more keys in the one that it has; ORDER BY and LIMIT come at the end."""
    keys, *order = clauses.removeprefix("GROUP BY ").partition(" ORDER BY ")
    if order[0]:
        text = re.sub(r"(?: ORDER BY| LIMIT)(?!.*\)).*$", "", text)
    found = re.search(r"\bGROUP BY .+?(?= HAVING| ORDER BY| LIMIT|$)", text)
    before = re.search(r"(?= HAVING| ORDER BY| LIMIT|$)", text)
    place = found.end() if found else before.start() if before else len(text)
    return f"{text[:place]}{',' if found else ' GROUP BY'} {keys}{text[place:]}{''.join(order)}"


def _call_at(text: str, span: Span | None) -> int:
    """Return where the innermost call begins that holds a place, or begins there."""
    if span is None:
        raise NotACureError("a refusal without a place")
    if _CALL.match(text, span.start):
        return span.start
    begins = [found.start() for found in _CALL.finditer(text[: span.start])]
    holding = [start for start in begins if start + len(_whole_call(text, start)) >= span.end]
    if not holding:
        raise NotACureError(f"no call at {text[span.start :]!r}")
    return holding[-1]


def _with_argument(call: str, name: str, value: str) -> str:
    """Return a call with one named argument more, instead of those that bound or weigh the same."""
    opening = call.index("(")
    inside = _balanced(call, opening)
    kind = "contribution_bounds" if name.startswith("contribution_bounds") else name
    left = [part for part in _split(inside[opening + 1 : -1]) if not re.match(rf"{kind}\w*\s*(=>|:=|=)", part)]
    return f"{call[:opening]}({', '.join([*left, f'{name} => {value}'])}){call[len(inside) :]}"


def _listed(options: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of ``OPTIONS (…)``."""
    for part in _split(options[options.index("(") + 1 : -1]):
        name, _, value = part.partition("=")
        yield name.strip(), value.strip()


def _split(text: str) -> list[str]:
    """Return the parts of a list, which commas separate outside of parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _with_options(text: str, changes: Mapping[str, str | None]) -> str:
    """Return a text with options added, changed or, where the value is None, taken away."""
    found = re.search(r"\bOPTIONS\s*\(", text)
    if found:
        clause = _balanced(text, found.end() - 1)[found.start() :]
        options: dict[str, str | None] = {**dict(_listed(clause)), **changes}
        return text.replace(clause, _clause(options), 1)
    if not any(changes.values()):
        return text
    depth = 0
    for word in re.finditer(r"[()]|\bSELECT\b( DISTINCT\b)?", text, re.IGNORECASE):
        depth += (word[0] == "(") - (word[0] == ")")
        if not depth and word[0].upper().startswith("SELECT"):
            return f"{text[: word.start() + 6]} WITH DIFFERENTIAL_PRIVACY {_clause(changes)}{text[word.start() + 6 :]}"
    raise NotACureError(f"no SELECT: {text!r}")


def _clause(options: Mapping[str, str | None]) -> str:
    listed = [f"{name} = {value}" for name, value in options.items() if value is not None]
    return f"OPTIONS ({', '.join(listed)})"
