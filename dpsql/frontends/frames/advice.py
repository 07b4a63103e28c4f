"""Advice in the words of pandas: hints of refusals, and names and advice in receipts."""

from __future__ import annotations

import contextlib
import dataclasses
import keyword
import re
from collections.abc import Callable, Iterator, Sequence

from dpsql.errors import Refusal, SchemaError, UnsupportedQueryError
from dpsql.frontends.frames.shape import Measure
from dpsql.session import Receipt, shown_call

_HINTS = {
    "bounds_missing": (
        "Write bounds=(<lowest value>, <highest value>): for sums and counts what one unit adds to one group, else "
        "what one row is. Counts, means and the like also take "
        "groupby(…, max_rows_per_group=<most rows of one unit in one group>)."
    ),
    "bounds_invalid": "Write bounds=(<lowest value>, <highest value>).",
    "privacy_level_missing": "Write groupby(…, epsilon=0.5) or groupby(…, rho=0.01).",
    "max_groups_missing": (
        "Write groupby(…, max_groups=<most groups of one unit>): a unit then counts in no more groups. With "
        "public_keys= it is not needed."
    ),
    "public_keys_missing": "List the values of every key in public_keys=.",
    "value_type": "Take another column, or convert it first with df.astype(…): columns of Python objects are texts.",
    "key_type": "Convert it first, as in df.astype({'key': 'str'}).",
}
"""Other things to write than in SQL, by the code of a refusal."""

_REFUSED = (
    (r"\(thresholds := false\)", "(thresholds=False)"),
    (r"dp_within_target\(.*\) goes", ".with_within_target() goes"),
    (r"\(composition = 'pure' without delta_budget\)", "(composition='pure' without delta_budget)"),
    (
        r"or declare CALL dp_unit\(.*, composition := 'zcdp'\) before .* is charged",
        r"or ask in a new unit, as dpsql.unit(…, composition='zcdp')",
    ),
    (
        r"or declare CALL dp_unit\(.*, epsilon_budget := (.*), composition := 'pure'\) before .* is charged",
        r"or ask in a new unit, as dpsql.unit(…, epsilon_budget=\1, composition='pure')",
    ),
)
"""Other words than in SQL, in what a refusal says of a unit."""

_WITH_DELTA = "dpsql.unit(…, composition='pure', delta_budget=1e-6)"
"""A unit without delta_budget that has private keys, too."""

_ADVICE = (
    (r"OPTIONS \(max_groups_contributed = (\d+)\)", r"groupby(…, max_groups=\1)"),
    (r"contribution_bounds_per_(?:group|row) => (\([^()]*\))", r"bounds=\1"),
    (r"the query says coverage = FALSE", "groupby says coverage=False"),
    (r"max_rows_per_unit := NULL", "no max_rows_per_unit"),
)
"""Other things to write than in SQL, by how a receipt advises them."""

_BOUNDS = ", contribution_bounds_per_"
_NUMBERS = re.compile(r"OPTIONS \(([^()A-Z]*)\)")
"""Options with numbers, as a hint advises them."""


@contextlib.contextmanager
def refused_in_words_of_pandas() -> Iterator[None]:
    """Rewrite what is raised inside: without places in a text, and with hints for who wrote none.

    Raises:
        UnsupportedQueryError, SchemaError: as they came, rewritten.

    """
    try:
        yield
    except UnsupportedQueryError as error:
        raise UnsupportedQueryError([_refusal(one) for one in error.refusals]) from None
    except SchemaError as error:
        place = f"{error.span}: " if error.span else ""
        raise SchemaError(str(error).removeprefix(place).removesuffix(error.hint).rstrip(), hint=error.hint) from None


def _refusal(refusal: Refusal) -> Refusal:
    """Return a refusal in the words of pandas."""
    # to leave something out is said alike in both
    hint = refusal.hint if refusal.hint.startswith("Leave ") else _HINTS.get(refusal.code, refusal.hint)
    if refusal.code == "public_keys_missing" and ", delta_budget := " in refusal.hint:
        hint = f"{hint} Or ask in a new unit, as {_WITH_DELTA}."
    if refusal.hint.startswith("Write count(DISTINCT "):
        hint = "Ask for nunique_units() to count units, or take another column."
    message, hint = _replaced(_REFUSED, refusal.message), _replaced(_REFUSED, _NUMBERS.sub(_of_groupby, hint))
    return dataclasses.replace(refusal, message=message, hint=hint, span=None)


def _of_groupby(options: re.Match[str]) -> str:
    """Return the arguments of ``groupby`` for options of SQL."""
    return f"groupby(…, {options[1].replace('max_groups_contributed', 'max_groups').replace(' = ', '=')})"


def _replaced(others: Sequence[tuple[str, str]], text: str) -> str:
    """Return a text with each pattern replaced by what stands beside it."""
    for pattern, instead in others:
        text = re.sub(pattern, instead, text)
    return text


def in_words_of_pandas(receipt: Receipt, measures: Sequence[Measure], written: Callable[[Measure], str]) -> Receipt:
    """Return a receipt that calls columns as the answer does, and advises what ``groupby`` and ``agg`` take.

    Args:
        receipt: with the names and the advice of SQL.
        measures: the columns of the answer.
        written: returns the call that asks for a measure.

    """
    named: dict[str, list[Measure]] = {}
    unbounded: dict[str, list[Measure]] = {}
    for one in measures:
        named.setdefault(shown_call(written(one)), []).append(one)
        if one.bounds is None or isinstance(one.bounds, str):
            plain = shown_call(written(dataclasses.replace(one, bounds=None)))
            unbounded.setdefault(plain, []).append(one)
    calls = [re.escape(call) for call in named]
    calls += [rf"{re.escape(call[:-1] + _BOUNDS)}(?:group|row) => \([^()]*\)\)" for call in unbounded]

    def in_pandas(call: re.Match[str]) -> str:
        if known := named.get(call[0]):
            return ", ".join(one.name for one in known)
        plain, _, bounds = call[0].rpartition(_BOUNDS)
        bounds = bounds.partition(" => ")[2].removesuffix(")")
        first = unbounded[f"{plain})"][0]
        if first.function == "quantile":
            return f"groupby(…)[{first.column!r}].quantile({first.share}, bounds={bounds})"
        return f"agg({', '.join(_argument(one, bounds) for one in unbounded[f'{plain})'])})"

    def rewritten(sentence: str) -> str:
        return _replaced(_ADVICE, re.sub("|".join(calls), in_pandas, sentence) if calls else sentence)

    return _rewritten(receipt, rewritten)


def _argument(measure: Measure, bounds: str) -> str:
    """Return the argument of ``agg`` that asks for a measure with bounds."""
    asked = f"({measure.column!r}, {measure.function!r}, {bounds})"
    if measure.name.isidentifier() and not keyword.iskeyword(measure.name):
        return f"{measure.name}={asked}"
    return f"**{{{measure.name!r}: {asked}}}"


def _rewritten(receipt: Receipt, rewritten: Callable[[str], str]) -> Receipt:
    """Return a receipt with other sentences, those of its grouping sets and rounds, too."""
    return dataclasses.replace(
        receipt,
        notes=tuple(map(rewritten, receipt.notes)),
        nothing_shown=tuple(map(rewritten, receipt.nothing_shown)),
        coverage=tuple(
            dataclasses.replace(one, of=rewritten(one.of), advice=rewritten(one.advice), unknown=rewritten(one.unknown))
            for one in receipt.coverage
        ),
        left_out=tuple(dataclasses.replace(one, of=rewritten(one.of)) for one in receipt.left_out),
        sets=tuple(dataclasses.replace(one, receipt=_rewritten(one.receipt, rewritten)) for one in receipt.sets),
    )
