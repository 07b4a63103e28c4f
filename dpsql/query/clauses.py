"""A SELECT taken apart: which clauses it has, and which of them have no private form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from dpsql.errors import ParseError
from dpsql.query.dialect import DifferentialPrivacy
from dpsql.query.options import OPTION_NAMES, QueryOptions
from dpsql.query.refusals import Refusals
from dpsql.query.statements import literal_value

_ANSWERED = {
    "expressions",
    "from_",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "offset",
    "hint",
    "joins",
    "with_",
    "qualify",
}
_ANSWERED_INSIDE = (_ANSWERED - {"limit", "offset", "hint", "qualify"}) | {"distinct"}
_CLAUSE_NAMES = {
    "laterals": "LATERAL", "distinct": "SELECT DISTINCT", "qualify": "QUALIFY",
    "windows": "WINDOW", "sample": "USING SAMPLE", "pivots": "PIVOT",
    "kind": "SELECT AS STRUCT", "locks": "FOR UPDATE", "into": "INTO", "hint": "WITH DIFFERENTIAL_PRIVACY",
}  # fmt: skip
GROUP_SELECTION = ("PUBLIC_GROUPS", "GAUSSIAN_THRESHOLD")
MECHANISMS = (
    "GAUSSIAN", "CORRELATED_GAUSSIAN", "DISCRETE_CORRELATED_GAUSSIAN", "FACTORISED_GAUSSIAN", "GSHM", "CSH",
    "MISRA_GRIES",
)  # fmt: skip
BOUNDINGS = ("L0", "L2")
_WORDS = {"group_selection_strategy": GROUP_SELECTION, "mechanism": MECHANISMS, "bounding": BOUNDINGS}
_TEXTS = {
    "as_of": "a version's name, a date or time, or what dp_releases shows under versions, in quotes",
    "buckets": "the name of a column with a public list of keys",
    "other_group": "what the row of all other groups is called, in quotes",
    "privacy_unit_column": "the column that the policy names",
}
MAX_GROUPS_LIMIT = 100_000
_LARGEST_LEVEL = 1e6
_SMALLEST_WINDOW = 1e-6
_LARGEST_LIMIT = 2.0**63


@dataclass(frozen=True, slots=True)
class Clauses:
    """The parts of a SELECT that the planner reads."""

    select: tuple[exp.Expr, ...]
    ctes: tuple[exp.CTE, ...]
    source: exp.Expr
    joins: tuple[exp.Join, ...]
    distinct: bool
    where: exp.Expr | None
    group: exp.Group | None
    having: exp.Expr | None
    qualify: exp.Expr | None
    order: tuple[exp.Expr, ...]
    limit: int | None
    offset: int | None
    options: QueryOptions

    @property
    def sources(self) -> tuple[tuple[exp.Expr, exp.Join | None], ...]:
        """What stands in FROM, each with how it is joined to those before."""
        return ((self.source, None), *((join.this, join) for join in self.joins))


def read_clauses(
    tree: exp.Select, keywords: Mapping[str, object], refusals: Refusals, *, inside: bool = False
) -> Clauses:
    """Split a SELECT into its clauses; everything that has no private form becomes a refusal.

    Args:
        tree: the SELECT.
        keywords: options given outside the text (``sql(…, rho=0.1)``).
        refusals: collects.
        inside: whether it is a subquery, whose rows are a source.

    Raises:
        UnsupportedQueryError: there is no FROM clause, so nothing more can be said.

    """
    for name, value in tree.args.items():
        if value and name not in (_ANSWERED_INSIDE if inside else _ANSWERED):
            node = value[0] if isinstance(value, list) else value
            refusals.add(
                "clause",
                node if isinstance(node, exp.Expr) else tree,
                f"{_CLAUSE_NAMES.get(name, name.strip('_').upper())} has no private form "
                f"{'in a subquery' if inside else 'yet'}.",
                "Use SELECT, FROM, WHERE, GROUP BY and HAVING there." if inside
                else "Use FROM with JOIN, WHERE, GROUP BY, HAVING, ORDER BY and LIMIT.",
            )  # fmt: skip
    ctes = named_queries(tree, refusals)
    source = _source(tree, refusals)
    distinct = tree.args.get("distinct")
    if inside and distinct is not None and distinct.args.get("on"):
        refusals.add("clause", distinct, "DISTINCT ON has no private form.", "Group by the unit and aggregate.")
    where, having, order = tree.args.get("where"), tree.args.get("having"), tree.args.get("order")
    qualify = tree.args.get("qualify")
    return Clauses(
        select=tuple(tree.expressions),
        ctes=ctes,
        source=source,
        joins=tuple(tree.args.get("joins") or ()),
        distinct=distinct is not None,
        where=where.this if where else None,
        group=tree.args.get("group"),
        having=having.this if having else None,
        qualify=qualify.this if qualify else None,
        order=tuple(order.expressions) if order else (),
        limit=_whole_number(tree.args.get("limit"), refusals),
        offset=_whole_number(tree.args.get("offset"), refusals),
        options=_options(tree.args.get("hint"), keywords, refusals),
    )


def named_queries(query: exp.Query, refusals: Refusals) -> tuple[exp.CTE, ...]:
    """The queries that WITH names before another one."""
    with_ = query.args.get("with_")
    if with_ is None:
        return ()
    if with_.args.get("recursive"):
        refusals.add(
            "clause", with_, "WITH RECURSIVE has no private form: how deep it goes would tell of rows.",
            "Leave RECURSIVE out.",
        )  # fmt: skip
    return tuple(with_.expressions)


def _source(tree: exp.Select, refusals: Refusals) -> exp.Expr:
    from_clause = tree.args.get("from_")
    if from_clause is None:
        refusals.refuse(
            "source", tree, "a query without FROM reads nothing.",
            "Write FROM table, FROM schema.table or FROM table AS alias, with JOIN … ON after it.",
        )  # fmt: skip
    return from_clause.this  # type: ignore[no-any-return]


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """What has to hold all together for a condition to hold."""
    if node is None:
        return []
    node = node.unnest()
    return [*conjuncts(node.left), *conjuncts(node.right)] if isinstance(node, exp.And) else [node]


def is_plain_table(source: exp.Expr) -> bool:
    """Whether a source is a table by name, with nothing but an alias."""
    plain = {"this", "db", "catalog", "alias"}
    return (
        isinstance(source, exp.Table)
        and isinstance(source.this, exp.Identifier)
        and all(name in plain for name, value in source.args.items() if value)
    )


def qualifier_of(source: exp.Expr) -> str:
    """What columns of a source are told apart by: its alias, or the name of a table."""
    return str(source.alias_or_name if isinstance(source, exp.Table) else source.alias).lower()


def _whole_number(node: exp.Expr | None, refusals: Refusals) -> int | None:
    if node is None:
        return None
    value = node.expression
    plain = isinstance(node, exp.Limit | exp.Offset) and all(
        name == "expression" for name, part in node.args.items() if part
    )
    if plain and isinstance(value, exp.Var) and value.name.upper() == "ALL":
        return None
    if plain and isinstance(value, exp.Literal) and value.name.isdigit() and float(value.name) < _LARGEST_LIMIT:
        return int(value.name)
    refusals.add("limit_form", node, "LIMIT and OFFSET take a whole number here.", "Write LIMIT 10.")
    return None


def _options(hint: exp.Expr | None, keywords: Mapping[str, object], refusals: Refusals) -> QueryOptions:
    given: dict[str, Any] = {}
    wrong: set[str] = set()
    for option in hint.expressions if isinstance(hint, DifferentialPrivacy) else ():
        if not (isinstance(option, exp.EQ) and isinstance(option.this, exp.Column)):
            refusals.add("option", option, "an option reads name = value.", "Write OPTIONS (rho = 0.1).")
            continue
        name = option.this.name.lower()
        if name in given:
            refusals.add("option", option, f"option {name} stands twice.", "Give it once.")
        try:
            given[name] = literal_value(option.expression, refusals.text)
        except ParseError:
            refusals.add(
                "option",
                option,
                f"option {name} takes a literal.",
                "Write a number or a word; bind parameters.",
            )
            continue
        if not _check_option(name, given[name], option, refusals):
            wrong.add(name)
    for name, value in keywords.items():
        if value is None:
            continue
        if name in given and given[name] != value:
            refusals.add("option", None, f"option {name} is given twice with two values.", "Give it once.")
        given[name] = value
        if not _check_option(name, value, None, refusals):
            wrong.add(name)
    if given.get("rho") is not None and given.get("epsilon") is not None:
        refusals.add("option", hint, "rho and epsilon are two ways to say the same.", "Give one of them.")
    known = {name: value for name, value in given.items() if name not in wrong}
    known.update({name: known[name].upper() for name in _WORDS if name in known})
    if is_auto(known.get("max_groups_contributed")):
        known["max_groups_contributed"] = "AUTO"
    if "rho_window" in known:
        known["rho_window"] = tuple(known["rho_window"])
    return QueryOptions(**known)


def is_auto(value: object) -> bool:
    """Whether an option leaves its value to what the data say."""
    return isinstance(value, str) and value.upper() == "AUTO"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_option(name: str, value: object, node: exp.Expr | None, refusals: Refusals) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    match name:
        case "epsilon" | "rho" | "rho_ceiling":
            valid = (whole or isinstance(value, float)) and 0 < value <= _LARGEST_LEVEL  # type: ignore[operator]
            wanted = "a positive number, at most a million"
        case "delta":
            valid = (whole or isinstance(value, float)) and 0 < value < 1  # type: ignore[operator]
            wanted = "a number between 0 and 1"
        case "max_groups_contributed" | "top_k" | "sketch_size":
            auto = name == "max_groups_contributed"
            valid = (whole and 1 <= value <= MAX_GROUPS_LIMIT) or (auto and is_auto(value))  # type: ignore[operator]
            wanted = f"a whole number from 1 to {MAX_GROUPS_LIMIT}{', or AUTO' * auto}"
        case "min_privacy_units_per_group":
            valid = whole and 1 <= value <= 10**12  # type: ignore[operator]
            wanted = "a whole number of at least 1"
        case "group_selection_strategy" | "mechanism" | "bounding":
            valid = isinstance(value, str) and value.upper() in _WORDS[name]
            wanted = " or ".join(_WORDS[name])
        case "rho_window":
            numbers = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))
            valid = numbers and _SMALLEST_WINDOW <= value[0] < value[1] <= _LARGEST_LEVEL  # type: ignore[index]
            wanted = "two levels, the lower first, as in [0.01, 1]"
        case "own_threshold" | "refresh":
            valid, wanted = isinstance(value, bool), "TRUE or FALSE"
        case "as_of" | "buckets" | "other_group" | "privacy_unit_column":
            valid, wanted = isinstance(value, str), _TEXTS[name]
        case _:
            refusals.add("option", node, f"there is no option {name}.", f"Options are {', '.join(OPTION_NAMES)}.")
            return False
    if not valid:
        refusals.add("option", node, f"option {name} has a value that it cannot take.", f"Give {wanted}.")
    return bool(valid)
