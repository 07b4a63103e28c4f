"""Each option, clause and argument of a question, with a value that matters and a check of its effect.

`WANTED` is read from the lists that the program checks. A new option or kind without a row here is found by
`test_kind_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import dpsql
from dpsql.mechanism.registry import MECHANISMS
from dpsql.model.private_query import OPTION_NAMES
from dpsql.sql.clauses import INTERVAL_FUNCTIONS, NAMED_ARGUMENTS, UNBOUNDED_FUNCTIONS, WITHIN_TARGET, Clauses
from dpsql.sql.options import _WORDS
from tests.end_to_end.kind_questions import IN_PURE, IN_ZCDP, PROTECTED, Asked, Question


@dataclass(frozen=True)
class Case:
    """An option with a value, a clause or an argument.

    Attributes:
        change: adds it to a question.
        had_effect: checks an answer.
        words: a refusal names one of them.
        is_stored: whether the session has the answer without it, as for what changes the shown rows alone.
        declared: what is declared in the session before the question.
        needs_numbers: whether it changes a number. Keys alone with a number are another kind of query.

    """

    change: Callable[[Question], Question]
    had_effect: Callable[[Asked], bool]
    words: tuple[str, ...]
    is_stored: bool = False
    declared: tuple[str, ...] = ()
    needs_numbers: bool = False


def _option(had_effect: Callable[[Asked], bool], *without: str, **options: Any) -> Case:
    """Return the case of the first of some options, which needs the others, and some options to be left out."""
    first, value = next(iter(options.items()))
    words = (first, value) if isinstance(value, str) and value.isupper() else (first,)
    return Case(lambda question: question.of(*without, **options), had_effect, words)


def _mechanism(word: str) -> Case:
    return _option(lambda asked: word.lower() in asked.receipt.mechanism, mechanism=word)


def _of_running_totals(question: Question) -> Question:
    first, _, _ = question.keys.partition(",")
    changed = question.of(mechanism="FACTORISED_GAUSSIAN")
    return replace(changed, numbers=f"sum(count(*)) OVER (ORDER BY {first}) AS n", sums="")


def _of_patients(question: Question) -> Question:
    changed = question.of(mechanism="MISRA_GRIES", sketch_size=50)
    return replace(changed, numbers="count(DISTINCT patient) AS n", sums="")


def _of_extremes(question: Question) -> Question:
    return replace(question.of(extremes="quantile"), sums="max(cost, contribution_bounds_per_row => (0, 9)) AS s")


def _argument(name: str, value: str, had_effect: Callable[[Asked], bool], **options: Any) -> Case:
    """Return the case of an argument of the sum."""
    beside = ", contribution_bounds_per_group => (0, 40)" if name == "weight" else ""
    return Case(
        lambda question: replace(question.of(**options), sums=f"sum(cost{beside}, {name} => {value}) AS s"),
        had_effect,
        # two numbers do not go with method = CORRELATED
        (name, "one number", *(["AUTO"] if value == "AUTO" else []), *options.values()),
        needs_numbers=True,
    )


def _clause(had_effect: Callable[[Asked], bool], of_numbers: str, of_keys: str) -> Case:
    """Return the case of a clause about numbers, or about keys if there are no numbers."""
    return Case(
        lambda question: replace(question, end=of_numbers if question.numbers else of_keys),
        had_effect,
        (of_numbers.split(maxsplit=1)[0],),
        is_stored=True,
    )


def _beside(*names: str) -> Case:
    """Return the case of columns about the interval of the count."""
    columns = [f"{name}(n) AS {name}" for name in names]
    return Case(
        lambda question: replace(question, sums=", ".join(filter(None, (question.sums, *columns)))),
        lambda asked: {*names} <= {*asked.answer.columns} and len(asked.answer) == len(asked.plain),
        names,
    )


def _at_lower_level(question: Question) -> Question:
    level = {"rho": 0.25} if "rho" in question.options else {"target_half_width": 80}
    return question.of(**level, own_threshold=True)


def _by_norm(question: Question) -> Question:
    by_norm = question.of(bounding="NORM")
    if not question.numbers:
        return by_norm
    numbers, sums = "count(*, contribution_norm => 8) AS n", "sum(cost, contribution_norm => 30) AS s"
    return replace(by_norm, numbers=numbers, sums=sums)


def _default(**options: Any) -> Case:
    """Return the case of an option whose value is the default: the answer without it is served again."""
    return replace(
        _option(lambda asked: asked.receipt.reused and asked.rows[0] == asked.rows[1], **options), is_stored=True
    )


def _is_largest(asked: Asked) -> bool:
    """Check that an answer has the largest counts alone, by a method that bounds no groups and measures no coverage."""
    return asked.receipt.mechanism == "weighted_correlated_gaussian"


def _noise_of_sum(receipt: dpsql.Receipt) -> float:
    """Return the noise of the sum over that of the count."""
    sigmas = {one.name: one.sigma or 0.0 for one in receipt.columns}
    return sigmas["s"] / sigmas["n"]


OPTIONS: Mapping[str, Case] = {
    "epsilon": _option(
        lambda asked: asked.receipt.asked_by == "epsilon" and asked.receipt.rho < asked.was.rho, "rho", epsilon=0.8
    ),
    "delta": _option(lambda asked: asked.receipt.delta < asked.was.delta / 50, delta=1e-5),
    "rho": _option(lambda asked: abs(asked.receipt.rho - asked.was.rho / 2) < 1e-6, rho=0.5),
    "max_groups_contributed": _option(
        # stays have three wards, so that the bound is none
        lambda asked: asked.says("in at most 3 groups") or _is_largest(asked),
        max_groups_contributed=3,
    ),
    "max_groups_contributed = AUTO": _option(
        lambda asked: asked.says("AUTO chose max_groups") or _is_largest(asked), max_groups_contributed="AUTO"
    ),
    "group_selection_strategy = PUBLIC_GROUPS": _option(
        lambda asked: "w3" in asked.cells or _is_largest(asked), group_selection_strategy="PUBLIC_GROUPS"
    ),
    "group_selection_strategy = GAUSSIAN_THRESHOLD": _option(
        lambda asked: "w3" not in asked.cells and asked.receipt.charged_delta > 1e-6,
        group_selection_strategy="GAUSSIAN_THRESHOLD",
    ),
    "min_privacy_units_per_group": _option(
        lambda asked: len(asked.answer) < len(asked.plain), min_privacy_units_per_group=600
    ),
    "privacy_unit_column": _default(privacy_unit_column="patient"),
    "mechanism = GAUSSIAN": _mechanism("GAUSSIAN"),
    "mechanism = CORRELATED_GAUSSIAN": _mechanism("CORRELATED_GAUSSIAN"),
    "mechanism = DISCRETE_CORRELATED_GAUSSIAN": replace(
        _mechanism("DISCRETE_CORRELATED_GAUSSIAN"), declared=(IN_ZCDP,)
    ),
    "mechanism = FACTORISED_GAUSSIAN": replace(
        _mechanism("FACTORISED_GAUSSIAN"),
        change=_of_running_totals,
        # a total along private keys is computed of numbers, for which no target is
        words=("mechanism", "target_relative_error"),
        needs_numbers=True,
    ),
    "mechanism = GSHM": _mechanism("GSHM"),
    "mechanism = CSH": _option(lambda asked: asked.receipt.mechanism == "csh", mechanism="CSH", top_k=5),
    "mechanism = MISRA_GRIES, sketch_size": replace(
        _option(lambda asked: asked.receipt.max_keys == 50, mechanism="MISRA_GRIES", sketch_size=50),
        change=_of_patients,
        needs_numbers=True,
    ),
    "mechanism = KEYS_FIRST": _mechanism("KEYS_FIRST"),
    "mechanism = LAPLACE": replace(
        _option(lambda asked: asked.receipt.mechanism == "laplace", "rho", mechanism="LAPLACE", epsilon=1.0),
        declared=(IN_PURE,),
        words=("mechanism", "composition = 'pure'", "counts epsilon"),
    ),
    "top_k": _option(lambda asked: asked.says("only the 3 largest groups"), top_k=3),
    "rho_window": _option(lambda asked: abs(asked.receipt.rho / asked.was.rho - 1) > 0.01, rho_window=(0.01, 40.0)),
    "rho_ceiling": _option(lambda asked: asked.receipt.charged_rho > 1.5 * asked.was.charged_rho, rho_ceiling=2.0),
    "own_threshold": replace(
        _option(lambda asked: asked.receipt.charged_delta > 1e-4, own_threshold=True),
        change=_at_lower_level,
        is_stored=True,
    ),
    "as_of": replace(
        _option(lambda asked: asked.receipt.reused and asked.rows[0] == asked.rows[1], as_of="1"),
        is_stored=True,
        declared=("CALL dp_new_version('visits', version := '2')",),
    ),
    "refresh": replace(
        _option(lambda asked: asked.receipt.charged_rho > 0.8 * asked.was.charged_rho, refresh=True), is_stored=True
    ),
    "buckets": _option(lambda asked: asked.says("groups are added up"), buckets="ward"),
    "bounding = L0": _default(bounding="L0"),
    "bounding = L2": _option(lambda asked: asked.says("counts in each with weight sqrt(2 / n)"), bounding="L2"),
    "bounding = NORM": replace(
        _option(lambda asked: asked.says("scaled down to an l2 norm"), bounding="NORM"), change=_by_norm
    ),
    "extremes = QUANTILE": replace(
        _option(lambda asked: asked.says("not the maximum"), extremes="quantile"),
        change=_of_extremes,
        words=("quantile", "half width", "relative error"),
        needs_numbers=True,
    ),
    "other_group": _option(lambda asked: "rest" in asked.cells, other_group="rest"),
    "coverage": _option(lambda asked: bool(asked.receipt.kept) and not asked.was.kept, coverage=True),
    "coverage = FALSE": replace(
        _option(
            lambda asked: all("coverage = FALSE" in line or _is_largest(asked) for line in asked.receipt.kept),
            coverage=False,
        ),
        declared=(f"{PROTECTED}TRUE)",),
    ),
    "target_half_width": _option(lambda asked: asked.says("half widths of at most 50"), "rho", target_half_width=50),
    "confidence": _option(lambda asked: asked.says("99 %"), confidence=0.99),
    "max_rho": _option(lambda asked: asked.says("max_rho = 3") or asked.says("rho 3"), max_rho=3.0),
    "max_epsilon": _option(
        lambda asked: asked.says("max_epsilon = 3") or asked.receipt.asked_by == "epsilon", "max_rho", max_epsilon=3.0
    ),
    "target_relative_error": _option(lambda asked: asked.says("30 %"), "rho", target_relative_error=0.3, max_rho=2.0),
    "at_least": _option(lambda asked: asked.says("at least 60 % of the groups"), at_least=0.6),
    "method = CORRELATED": _option(_is_largest, method="CORRELATED"),
}
"""By the option; of an option that takes words, by each of its words."""
ARGUMENTS: Mapping[str, Case] = {
    "contribution_bounds_per_group": _argument(
        "contribution_bounds_per_group", "(0, 30)", lambda asked: asked.largest_sum in (30, 2 * 30)
    ),
    "contribution_bounds_per_group => AUTO": _argument(
        "contribution_bounds_per_group", "AUTO", lambda asked: "per_group => AUTO) in noisy" in str(asked.receipt)
    ),
    "contribution_bounds_per_row": _argument(
        "contribution_bounds_per_row", "(0, 6)", lambda asked: asked.largest_sum in (4 * 6, 2 * 4 * 6)
    ),
    "contribution_bounds_per_row => AUTO": _argument(
        "contribution_bounds_per_row", "AUTO", lambda asked: asked.says("per_row => AUTO) in noisy")
    ),
    "contribution_norm": replace(
        _argument("contribution_norm", "30", lambda asked: asked.says("an l2 norm of 30"), bounding="NORM"),
        change=_by_norm,
    ),
    "contribution_norm => AUTO": _argument(
        "contribution_norm", "AUTO", lambda asked: asked.says("norm => AUTO) from a noisy"), bounding="NORM"
    ),
    "weight": _argument("weight", "3", lambda asked: _noise_of_sum(asked.receipt) < _noise_of_sum(asked.was)),
}
"""By the name of the argument, also with AUTO as its value."""
CLAUSES: Mapping[str, Case] = {
    "where": Case(
        lambda question: replace(question, where="WHERE doctor <> 'd2'"),
        lambda asked: asked.rows[0] != asked.rows[1],
        ("WHERE",),
    ),
    "having": _clause(lambda asked: asked.is_part, "HAVING n > 1500", "HAVING doctor > 'd1'"),
    "qualify": _clause(
        lambda asked: asked.is_part and len(asked.answer) == 2,
        "QUALIFY row_number() OVER (ORDER BY n DESC) <= 2",
        "QUALIFY row_number() OVER (ORDER BY doctor DESC) <= 2",
    ),
    "order": _clause(
        lambda asked: asked.rows[0] != asked.rows[1] and set(asked.rows[0]) == set(asked.rows[1]),
        "ORDER BY n DESC",
        "ORDER BY doctor DESC",
    ),
    "limit": _clause(lambda asked: asked.rows[1] == asked.rows[0][:2], "LIMIT 2", "LIMIT 2"),
    "offset": _clause(lambda asked: asked.rows[1] == asked.rows[0][1:], "OFFSET 1", "OFFSET 1"),
}
"""By the field of `Clauses`."""
COLUMNS: Mapping[str, Case] = {
    "dp_interval_low, dp_interval_high": replace(_beside("dp_interval_low", "dp_interval_high"), is_stored=True),
    "dp_unbounded, dp_unbounded_low, dp_unbounded_high": _beside(*UNBOUNDED_FUNCTIONS),
    WITHIN_TARGET: _beside(WITHIN_TARGET),
}
"""By the functions of columns about intervals."""
CASES: Mapping[str, Case] = {**OPTIONS, **ARGUMENTS, **CLAUSES, **COLUMNS}
"""By the names of all that the case is about, with commas between."""

_OWN_PARTS = ("sources", "select", "group", "inside")
"""Fields of `Clauses` without which there is no question of a kind."""
WANTED = {
    *(name for name in OPTION_NAMES if name not in (*_WORDS, "mechanism")),
    *(f"{name} = {word}" for name, words in _WORDS.items() for word in words),
    *(f"mechanism = {one.word}" for one in MECHANISMS),
    "max_groups_contributed = AUTO",
    "coverage = FALSE",
    *NAMED_ARGUMENTS,
    *(f"{name} => AUTO" for name in NAMED_ARGUMENTS if name != "weight"),
    *(one.name for one in fields(Clauses) if one.name not in _OWN_PARTS),
    *INTERVAL_FUNCTIONS,
}
"""All that needs a case. An option that takes words has one for each word."""
