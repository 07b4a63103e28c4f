"""Reasons why a query has no private answer, and the table of what it cannot have together.

All reasons are collected (`Refusals`), so that they are reported at once. In the table, a thing is an option that is
given, by its name; an option with its word, as in ``mechanism = CSH``; or what is known of the query, of its keys,
aggregates or mechanism (`Known`). Whoever reads a part of a query calls `refuse_combinations` with the things that are
known by then. The pages show the table: ``python -m tests.documents.reference``.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from sqlglot import exp

from dpsql.errors import Refusal, UnsupportedQueryError
from dpsql.operations import blanks
from dpsql.operations.dialect import span_of

CODES: dict[str, str] = {
    "after": "around private queries, something that is not computed from their answers and public tables",
    "aggregate": "an aggregate function without a private form",
    "aggregate_argument": "an argument that an aggregate does not take",
    "bounds_missing": "an aggregate whose contribution per unit is not bounded",
    "bounds_invalid": "bounds that are not two finite numbers in order",
    "buckets": "buckets that the query cannot be added up from",
    "clause": "a clause that has no private form",
    "group_by_form": "a form of GROUP BY that has no private form",
    "interval_argument": "dp_interval_low, dp_unbounded or dp_within_target of what is not the alias of one aggregate",
    "key_type": "a group key whose type cannot be released",
    "limit_form": "a LIMIT or OFFSET that is not a whole number",
    "literal": "a literal that cannot be cast to the type of what it is compared or computed with",
    "max_groups_missing": "neither policy nor query says how many groups one unit may touch",
    "mechanism": "a mechanism that cannot answer this query, or that lacks what it needs",
    "nested_aggregate": "an aggregate inside an aggregate",
    "no_aggregate": "a query that releases rows and no aggregate",
    "not_grouped": "a column that is neither grouped nor aggregated",
    "order_by_form": "an ORDER BY term that is no expression over the result's columns",
    "option": "an option that is unknown, doubled or out of range",
    "privacy_level_missing": "neither policy nor query says how private the answer shall be",
    "public_keys_missing": "keys without a public list, where PUBLIC_GROUPS or a unit without thresholds needs one",
    "row_function": "a function that is not on the allow-list of row expressions",
    "row_type": "a type that row expressions cannot be computed with",
    "row_syntax": "syntax that is not allowed inside a row expression",
    "source": "a source, or a join of sources, whose rows are not each one unit's",
    "running_total": "a window over aggregates that is no running total along public keys",
    "single_units": "private groups of one unit each, of which hardly any could ever be shown",
    "size": "more values, parts or statistics than a query may have",
    "star": "a star in the select list",
    "window": "a window over rows, or one over the noisy result that has no form",
    "value_type": "an aggregate over a type that it does not take",
}


@dataclass
class Refusals:
    """A list that grows while a query is read; ``raise_if_any`` ends it."""

    text: str
    found: list[Refusal] = field(default_factory=list)
    zones: set[str] = field(default_factory=set)
    """Time zones whose clocks the text reads of timestamps with a zone, without naming them."""

    def add(self, code: str, node: exp.Expr | None, message: str, hint: str, analyst_hint: str | None = None) -> None:
        """Note one refusal; ``code`` is a key of CODES."""
        if code not in CODES:
            raise KeyError(code)
        span = span_of(node, self.text) if node is not None else None
        refusal = Refusal(code, message, hint, span, analyst_hint)
        if refusal not in self.found:
            self.found.append(refusal)

    def refuse(self, code: str, node: exp.Expr | None, message: str, hint: str) -> NoReturn:
        """Note a refusal after which nothing more can be said, and raise all of them."""
        self.add(code, node, message, hint)
        self.raise_if_any()
        raise AssertionError("a refusal was just added")

    def raise_if_any(self, beyond: int = 0) -> None:
        """Raise UnsupportedQueryError with all refusals in the order of the text, if there are more than ``beyond``."""
        if len(self.found) > beyond:
            self.found.sort(key=lambda refusal: refusal.span.start if refusal.span else -1)
            raise UnsupportedQueryError(self.found)


Known = Literal[
    "epsilon", "GROUPING SETS", "no GROUP BY", "HAVING", "as_of an earlier version", "a ceiling at another level",
    "a lower ceiling of the policy, or limit of the reader",
    "public keys", "private keys", "no text key", "no max_groups_contributed", "private keys without top_k or LIMIT",
    "AUTO bounds", "running totals", "running totals along another key", "running totals or buckets",
    "neither running totals nor buckets", "averages, spreads or quantiles", "quantiles", "DISTINCT values",
    "DISTINCT values or quantiles", "more than count(DISTINCT unit)", "count(DISTINCT unit), units in several groups",
    "min_privacy_units_per_group, units in several groups", "sketch", "one of MISRA_GRIES and sketch_size alone",
    "the largest groups alone", "mode or histogram",
    "keys alone", "a ceiling", "a unit without thresholds",
    "a mechanism without GROUPING SETS", "a mechanism without AUTO", "a mechanism without bounding = L2",
    "a mechanism without public keys", "a mechanism without private keys",
    "a mechanism without running totals or buckets", "composition = gaussian",
    "a mechanism without composition = gaussian", "no target", "no target_relative_error", "no max_rho",
    "a window without max_rho", "AUTO without max_rho",
]  # fmt: skip
"""Things that are no options as they stand in the text."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A thing that does not go with others.

    Attributes:
        thing: something that a query has.
        beside: things of which it can have none then.
        code: of the refusal, a key of `CODES`.
        message: why they do not go together; names in braces are filled in.
        hint: what to write instead.
        analyst_hint: hint for an analyst, who cannot declare anything. None if ``hint`` is for everybody.

    """

    thing: str
    beside: tuple[str, ...]
    code: str
    message: str
    hint: str
    analyst_hint: str | None = None


COMBINATIONS = (
    Combination("rho", ("epsilon",), "option",
        "rho and epsilon are two ways to say the same.",
        "Give one of them."),
    Combination("target_half_width", ("rho", "epsilon"), "option",
        "a half width takes the place of a level: rho follows from it.",
        "Leave rho and epsilon out; max_rho or max_epsilon refuses what costs more."),
    Combination("target_relative_error", ("rho", "epsilon"), "option",
        "a relative error takes the place of a level: rho rises until the numbers are within it.",
        "Leave rho and epsilon out; max_rho or max_epsilon says how much it may take."),
    Combination("target_relative_error", ("target_half_width",), "option",
        "target_half_width and target_relative_error are two targets.",
        "Give one of them."),
    Combination("target_relative_error", ("no max_rho",), "option",
        "the rho that a relative error takes depends on the data, and nothing says how much it may take.",
        "Write OPTIONS (max_rho = 0.1) or OPTIONS (max_epsilon = 1)."),
    Combination("at_least", ("no target_relative_error",), "option",
        "at_least is the share of the groups that are within target_relative_error.",
        "Leave at_least out. It goes with target_relative_error."),
    Combination("confidence", ("no target",), "option",
        "confidence is that of a target.",
        "Leave confidence out. It goes with target_half_width or target_relative_error."),
    Combination("max_rho", ("no target",), "option",
        "max_rho goes with target_half_width or target_relative_error.",
        "Write OPTIONS (rho = {max_rho}) in place of max_rho."),
    Combination("max_epsilon", ("no target",), "option",
        "max_epsilon goes with target_half_width or target_relative_error.",
        "Write OPTIONS (epsilon = {max_epsilon}) in place of max_epsilon."),
    Combination("max_rho", ("max_epsilon",), "option",
        "max_rho and max_epsilon are two ways to say the same.",
        "Leave max_epsilon out."),
    Combination("target_half_width", ("AUTO without max_rho",), "option",
        "the rho that these half widths take depends on bounds that AUTO finds, and nothing says how much it may take.",
        "{cure}."),
    Combination("a ceiling", ("max_rho", "max_epsilon"), "option",
        "with a rho_ceiling each number is drawn, and paid for, at the ceiling.",
        "Leave max_rho and max_epsilon out."),
    Combination("target_half_width", ("keys alone", "mechanism = KEYS_FIRST", "other_group"), "option",
        "half widths are for numbers of one release, and here keys or other rows are released beside them.",
        "Write OPTIONS (rho = 0.1) in place of target_half_width."),
    Combination("target_relative_error", ("GROUPING SETS", "other_group", "keys alone"), "option",
        "a relative error is for the numbers of one set of keys.",
        "Ask for numbers with one GROUP BY and without other_group, or write OPTIONS (rho = 0.1) in place of {given}."),
    Combination("target_relative_error", ("mechanism = KEYS_FIRST", "mechanism = CSH", "top_k", "sketch_size"),
        "mechanism", "private keys pass the thresholds of a window with target_relative_error.",
        "Leave mechanism, top_k and sketch_size out."),
    Combination("target_relative_error", ("a mechanism without composition = gaussian",), "mechanism",
        "steps of a question by relative error have Gaussian noise.",
        "Leave mechanism out."),
    Combination("target_relative_error", ("a ceiling",), "option",
        "with a rho_ceiling each number is drawn, and paid for, at the ceiling, and no level rises.",
        "Write OPTIONS (rho = 0.1) in place of {given}."),
    Combination("target_relative_error", ("as_of", "own_threshold"), "option",
        "the level rises in steps: rows of the current version are read, and thresholds are those of a window.",
        "Leave as_of and own_threshold out."),
    Combination("target_relative_error", ("a window without max_rho",), "option",
        "a window beside a relative error goes with max_rho, and holds it.",
        "Leave rho_window out, or write OPTIONS (rho_window = [{low:.9g}, {high:.9g}], max_rho = {most:.9g}) "
        "in place of max_epsilon."),
    Combination("rho_window", ("epsilon",), "option",
        "a window is a range of rho, so it goes with rho.",
        "Give rho instead of epsilon."),
    Combination("rho_window", ("a ceiling at another level",), "option",
        "a window ends at the ceiling.",
        "Write OPTIONS (rho_window = [{low:.9g}, {ceiling:.9g}])."),
    Combination("rho_ceiling", ("a lower ceiling of the policy, or limit of the reader",), "option",
        "the ceiling is above what the policy draws, or this reader may be shown.",
        "Write OPTIONS (rho_ceiling = {limit:.9g}), or leave rho_ceiling out."),
    Combination("own_threshold", ("public keys",), "option",
        "public keys pass no threshold.",
        "Leave own_threshold out; every listed key is shown."),
    Combination("rho_window", ("public keys",), "option",
        "a window is for the thresholds of private keys, and public keys pass none.",
        "Leave rho_window out; lower levels of public keys cost nothing without it."),
    Combination("refresh", ("as_of an earlier version",), "option",
        "an earlier version cannot be refreshed: its rows are gone.",
        "Leave refresh or as_of out."),
    Combination("keys alone", ("public keys",), "option",
        "every key of a public list is shown, with or without rows.",
        "Look at the list itself{by_threshold}."),
    Combination("keys alone", ("GROUPING SETS", "other_group", "buckets"), "option",
        "keys alone are selected for one set of keys.",
        "Ask for one set of keys without other_group and buckets, or for count(*) with GROUP BY."),
    Combination("keys alone", ("max_groups_contributed = AUTO", "bounding", "mechanism", "top_k", "sketch_size"),
        "option", "keys without numbers are selected in rounds, in which a unit spreads its weight over its keys.",
        "Leave max_groups_contributed, bounding, mechanism, top_k and sketch_size out, or ask for count(*) with "
        "GROUP BY."),
    Combination("keys alone", ("rho_window", "rho_ceiling", "a ceiling", "own_threshold"), "option",
        "each round of key selection is drawn once, at a level of its own.",
        "Leave rho_window, rho_ceiling and own_threshold out, or ask for count(*) with GROUP BY."),
    Combination("mechanism = KEYS_FIRST", ("GROUPING SETS", "other_group", "buckets", "running totals"), "option",
        "keys are selected first for one set of keys, and its numbers are released once.",
        "Leave mechanism out, or ask with one GROUP BY, and without other_group, buckets and running totals."),
    Combination("mechanism = KEYS_FIRST", ("top_k", "sketch_size"), "mechanism",
        "keys that are selected in rounds are no largest ones.",
        "Leave top_k and sketch_size out, or leave mechanism out."),
    Combination("mechanism = KEYS_FIRST", ("quantiles",), "mechanism",
        "a key that is selected later gets noise on its numbers, and none on the cells of a quantile.",
        "Leave mechanism out, or ask for quantiles apart."),
    Combination("mechanism = KEYS_FIRST", ("no max_groups_contributed",), "max_groups_missing",
        "neither policy nor query says in how many groups one unit may count.",
        f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}, mechanism = KEYS_FIRST)."),
    Combination("mechanism = KEYS_FIRST", ("rho_window", "rho_ceiling", "a ceiling", "own_threshold"), "option",
        "each round of key selection is drawn once, at a level of its own.",
        "Leave rho_window, rho_ceiling and own_threshold out, or leave mechanism out."),
    Combination("GROUPING SETS", ("max_groups_contributed = AUTO",), "option",
        "AUTO chooses for one set of keys.",
        f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}), or ask with one GROUP BY."),
    Combination("GROUPING SETS", ("buckets",), "buckets",
        "buckets add one set of keys up.",
        "Leave buckets out, or ask with one GROUP BY."),
    Combination("GROUPING SETS", ("top_k", "sketch_size", "a mechanism without GROUPING SETS"), "mechanism",
        "the largest groups, and keys that are selected first, are those of one set of keys.",
        "Leave mechanism, top_k and sketch_size out, or ask with one GROUP BY."),
    Combination("AUTO bounds", ("GROUPING SETS",), "bounds_invalid",
        "AUTO finds bounds for one set of keys.",
        "Name bounds, or contribution_norm of each count and sum with bounding = NORM, or ask with one GROUP BY."),
    Combination("AUTO bounds", ("a mechanism without AUTO", "the largest groups alone"), "mechanism",
        "AUTO goes with GAUSSIAN, CORRELATED_GAUSSIAN or GSHM.",
        "Leave mechanism and top_k out, or name bounds."),
    Combination("other_group", ("GROUPING SETS", "no GROUP BY"), "option",
        "other_group is for one set of keys in GROUP BY.",
        "Leave other_group out, or ask with one GROUP BY."),
    Combination("other_group", ("buckets",), "option",
        "of buckets every key is shown, so that there is no other group.",
        "Leave other_group out."),
    Combination("other_group", ("max_groups_contributed = AUTO",), "option",
        "sums of other groups are bounded by max_groups, which AUTO leaves open.",
        f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}), or leave other_group out."),
    Combination("other_group", ("AUTO bounds",), "bounds_invalid",
        "AUTO finds bounds of what a unit adds to the groups, not to the other group.",
        "Name bounds, or leave other_group out."),
    Combination("other_group", ("bounding = NORM",), "option",
        "the other group adds up groups, and a norm bounds no such sum.",
        "Leave other_group out, or ask without bounding and contribution_norm."),
    Combination("other_group", ("public keys",), "option",
        "keys of a public list are all shown, so that there is no other group.",
        "Leave other_group out."),
    Combination("other_group", ("no text key",), "option",
        "no key is a text, so that no column can name the other group.",
        "Cast a key, as in GROUP BY CAST(year AS VARCHAR)."),
    Combination("other_group", ("no max_groups_contributed",), "option",
        "sums of other groups are bounded by max_groups, and this query has none.",
        f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}), or leave other_group out."),
    Combination("group_selection_strategy = PUBLIC_GROUPS", ("private keys",), "public_keys_missing",
        "{key} has no public list of keys.",
        "{declare_or_leave} group_selection_strategy out.",
        "Leave group_selection_strategy out, or ask the curator for public keys of {key}."),
    Combination("a unit without thresholds", ("private keys",), "public_keys_missing",
        "{subject}, and the budget of unit {unit} keeps no delta for thresholds (thresholds := false).",
        "{cure}.",
        "{cure_of_analysts}."),
    Combination("buckets", ("private keys",), "buckets",
        "the bucket column and all other keys need a public list of keys.",
        "{declare_or_leave} buckets out.",
        "Leave buckets out, or ask the curator for public keys of these columns."),
    Combination("buckets", ("running totals",), "buckets",
        "running totals and buckets go along a key in two ways.",
        "Ask for one of them."),
    Combination("buckets", ("DISTINCT values",), "buckets",
        "a value in two buckets would count twice.",
        "Leave count(DISTINCT …) and sum(DISTINCT …) out, or buckets."),
    Combination("buckets", ("count(DISTINCT unit), units in several groups",), "buckets",
        "a unit in two buckets would count twice.",
        "Write OPTIONS (max_groups_contributed = 1), count rows, or leave buckets out."),
    Combination("buckets", ("min_privacy_units_per_group, units in several groups",), "buckets",
        "units in several buckets would count several times towards min_privacy_units_per_group.",
        "Write OPTIONS (max_groups_contributed = 1), or leave buckets out."),
    Combination("mode or histogram", ("other_group",), "option",
        "the values of mode and histogram are keys, and other_group would be one of them.",
        "Leave other_group out."),
    Combination("mode or histogram", ("top_k", "sketch_size"), "option",
        "top_k keeps the largest pairs of a group and a value, and most values would be missing.",
        "Leave top_k and sketch_size out, or write GROUP BY with the value in place of mode and histogram."),
    Combination("running totals", ("HAVING",), "running_total",
        "HAVING would take groups out of a running total.",
        "Leave it out, and filter the answer."),
    Combination("running totals", ("averages, spreads or quantiles",), "running_total",
        "a running total of averages, spreads or quantiles is none.",
        "Take the total of sum and count."),
    Combination("running totals", ("running totals along another key",), "running_total",
        "two running totals of one query run along different keys.",
        "Ask them apart."),
    Combination("DISTINCT values or quantiles", ("bounding = L2",), "mechanism",
        "distinct values and the rows of a quantile have no weight: they count or they do not.",
        "Leave bounding = L2 out, or ask for them apart."),
    Combination("bounding = L2", ("a mechanism without bounding = L2", "top_k", "sketch_size"), "mechanism",
        "bounding = L2 goes with independent noise, on keys that nothing selects.",
        "Leave mechanism, top_k and sketch_size out, or leave bounding out."),
    Combination("bounding = L2", ("no max_groups_contributed",), "max_groups_missing",
        "bounding = L2 needs the number of groups in which a unit counts fully.",
        f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}, bounding = L2)."),
    Combination("DISTINCT values or quantiles", ("bounding = NORM",), "mechanism",
        "values that others have too, and the rows of a quantile, are not scaled down: they count or they do not.",
        "Leave bounding = NORM out, or ask for them apart."),
    Combination("bounding = NORM", ("a mechanism without bounding = L2", "top_k", "sketch_size"), "mechanism",
        "bounding = NORM goes with independent noise, on keys that nothing selects, or that KEYS_FIRST selects.",
        "Leave mechanism, top_k and sketch_size out, or ask without bounding and contribution_norm."),
    Combination("bounding = NORM", ("no max_groups_contributed",), "max_groups_missing",
        "a norm bounds no number of groups, and neither policy nor query does.",
        f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}, bounding = NORM)."),
    Combination("max_groups_contributed = AUTO", ("a mechanism without AUTO", "top_k", "sketch_size"), "mechanism",
        "max_groups_contributed = AUTO goes with GAUSSIAN, CORRELATED_GAUSSIAN or GSHM.",
        "Leave mechanism, top_k and sketch_size out, or name the number of groups."),
    Combination("public keys", ("top_k", "sketch_size"), "mechanism",
        "every listed key is answered, so there is nothing to pre-select.",
        "Leave mechanism, top_k and sketch_size out; ORDER BY and LIMIT on the answer cost nothing."),
    Combination("public keys", ("a mechanism without public keys",), "mechanism",
        "{mechanism} chooses which keys are shown, and here all of them are.",
        "Leave mechanism out, and hide small groups with min_privacy_units_per_group, which costs nothing."),
    Combination("composition = gaussian", ("a mechanism without composition = gaussian",), "mechanism",
        "the budget of unit {unit} is exact for Gaussian noise alone, and {mechanism} draws other noise.",
        "Leave mechanism out, or declare CALL dp_unit({unit}, composition := 'zcdp') before anything of the unit is "
        "charged.",
        "Leave mechanism out."),
    Combination("mechanism = CSH", ("private keys without top_k or LIMIT",), "mechanism",
        "CSH needs a number of keys that is enforced for any data.",
        "Leave mechanism out. With one set of keys, CSH goes with top_k."),
    Combination("private keys", ("a mechanism without private keys",), "mechanism",
        "{mechanism} noises every key of a public list, and these keys have none.",
        "Write OPTIONS (mechanism = GSHM), or leave mechanism out. Keys with a public list in dp_domain go with it.",
        "Write OPTIONS (mechanism = GSHM), or ask the curator for public keys of these columns."),
    Combination("private keys without top_k or LIMIT", ("no max_groups_contributed",), "max_groups_missing",
        "neither policy nor query says how many groups one unit may touch.",
        f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}){{largest}}."),
    Combination("mechanism = FACTORISED_GAUSSIAN", ("neither running totals nor buckets",), "mechanism",
        "FACTORISED_GAUSSIAN noises running totals, and this query has none.",
        "Leave mechanism out, or ask for sum(…) OVER (ORDER BY key)."),
    Combination("running totals or buckets", ("quantiles",), "running_total",
        "quantiles go neither with running totals nor with buckets.",
        "Ask for them apart."),
    Combination("running totals or buckets", ("a mechanism without running totals or buckets",), "mechanism",
        "noise that is common to all keys adds up in a running total.",
        "Leave mechanism out, or name GAUSSIAN or FACTORISED_GAUSSIAN."),
    Combination("sketch", ("one of MISRA_GRIES and sketch_size alone", "top_k"), "mechanism",
        "mechanism = MISRA_GRIES and sketch_size belong together, without top_k.",
        "Leave mechanism, sketch_size and top_k out. A sketch takes mechanism = MISRA_GRIES and sketch_size."),
    Combination("sketch", ("more than count(DISTINCT unit)",), "mechanism",
        "a Misra-Gries sketch counts distinct units and nothing else.",
        "Ask for count(DISTINCT …) of the privacy unit alone, or leave mechanism and sketch_size out."),
)  # fmt: skip
"""In the order in which refusals of one place are noted."""


def that_hold(known: Mapping[Known, object]) -> frozenset[str]:
    """The things that a query has, of those that it may have."""
    return frozenset(thing for thing, holds in known.items() if holds)


def refuse_combinations(
    things: AbstractSet[str],
    known: AbstractSet[str],
    node: exp.Expr | None,
    refusals: Refusals,
    *,
    first: bool = False,
    **words: object,
) -> bool:
    """Note a refusal for each of some things that does not go with another one that the query has.

    Args:
        things: those that are asked about.
        known: the things that the query has.
        node: where the refusals point to.
        refusals: collects.
        first: note the first one and no more.
        words: what stands for the names in messages and hints.

    Returns:
        Whether there is one.

    """
    asked = things & known
    found = [one for one in COMBINATIONS if one.thing in asked and not known.isdisjoint(one.beside)]
    for one in found[: 1 if first else None]:
        analyst_hint = None if one.analyst_hint is None else one.analyst_hint.format(**words)
        refusals.add(one.code, node, one.message.format(**words), one.hint.format(**words), analyst_hint)
    return bool(found)
