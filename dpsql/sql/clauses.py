"""A SELECT taken apart: its clauses, its options and its aggregate calls, and what of them has no private form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from sqlglot import exp

from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import AGGREGATE_NODES, CALLED_BY_NAME, unquoted

PRIVATE_AGGREGATES = (
    *("dp_count", "dp_count_if", "dp_sum", "dp_avg", "dp_var_pop", "dp_var_samp", "dp_stddev_pop", "dp_stddev_samp"),
    *("dp_median", "dp_quantile", "dp_quantile_cont", "dp_quantile_disc", "dp_approx_quantile"),
    *("dp_bool_or", "dp_bool_and"),
)
NAMED_ARGUMENTS = ("contribution_bounds_per_group", "contribution_bounds_per_row", "contribution_norm", "weight")
_BOUNDS = "contribution_bounds"
_NAMES: dict[type[exp.Expr], str] = {node: name for name, node, _ in AGGREGATE_NODES}
AGGREGATE_NAMES = tuple(dict.fromkeys((*_NAMES.values(), *CALLED_BY_NAME)))
"""Names of the aggregates that have a private form, each in one spelling (`plan.aggregates.registry`)."""
_ANONYMOUS = frozenset((*AGGREGATE_NAMES, *PRIVATE_AGGREGATES))
OTHER_AGGREGATES = frozenset(
    (  # noqa: SIM905 — words are shorter than a list
        "approx_count_distinct approx_median approx_percentile approx_top_count approx_top_k arbitrary "
        "arg_max_null arg_max_nulls_last arg_min_null arg_min_nulls_last average averageif avg_if avgif "
        "bitstring_agg collect_list collect_set combine_aggr correl correlation count_distinct count_star "
        "countdistinct covar covariance decimal_average dp_approx_count_distinct dp_corr dp_count_distinct "
        "dp_covar_pop dp_covar_samp dp_geomean dp_geometric_mean dp_histogram dp_max dp_min dp_mode "
        "dp_regr_intercept dp_regr_r2 dp_regr_slope entropy every favg fsum grouparray histogram histogram_exact "
        "iqr json_agg json_group_array json_group_object json_group_structure json_object_agg jsonb_agg kahan_sum "
        "kurtosis_pop lttb mad map_agg median_approx ndv nunique pearson percentile percentile_approx product "
        "reservoir_quantile sem stddevpop stddevsamp stdevp sum_if sum_no_overflow sumif sumkahan top_k topk "
        "total uniq uniqexact var variant_group_array variant_group_object varp varpop varsamp wavg weighted_avg "
        "wm_concat xmlagg"
    ).split()
)
"""Names of aggregates without a private form that sqlglot does not know; each has a hint (`function_hints`)."""
UNBOUNDED_FUNCTIONS = ("dp_unbounded", "dp_unbounded_low", "dp_unbounded_high")
WITHIN_TARGET = "dp_within_target"
INTERVAL_FUNCTIONS = ("dp_interval_low", "dp_interval_high", *UNBOUNDED_FUNCTIONS, WITHIN_TARGET)

JOINED_FIRST = "joined_first"
"""Mark on a SELECT that stands for joins in parentheses: its tables keep their names outside (`source.parentheses`)."""
EXTREME = "extreme"
"""Mark on a quantile with the name of the extreme of rows that it stands for, as in ``minimum``."""
OVER_RESULT = "over_result"
"""Mark on windows, and on their functions, that are computed over the noisy result and aggregate no rows."""


class ReleasedList(exp.Expression, exp.Func):
    """A list of released numbers. The parser builds none, so that no text computes lists from rows."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": True}
    is_var_len_args = True
    _sql_names: ClassVar[list[str]] = ["LIST_VALUE"]


def is_aggregate_call(node: exp.Expr) -> bool:
    """Whether a node is an aggregate of rows, of ours or any other."""
    if node.meta.get(OVER_RESULT):
        return False
    if isinstance(node, exp.Anonymous):
        return (name := node.name.lower()) in _ANONYMOUS or name in OTHER_AGGREGATES
    return isinstance(
        node, exp.AggFunc | exp.Filter | exp.Window | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls
    )


def is_over_result(node: exp.Expr) -> TypeGuard[exp.Window]:
    """Whether a node is a window over the noisy result."""
    return isinstance(node, exp.Window) and bool(node.meta.get(OVER_RESULT))


def is_interval_call(node: exp.Expr) -> bool:
    """Whether a node asks for an end of an aggregate's interval, its number without bounds, or its target."""
    return isinstance(node, exp.Anonymous) and node.name.lower() in INTERVAL_FUNCTIONS


def function_name(call: exp.Expr) -> str | None:
    """The aggregate of ours that a call asks for, in small letters; None for any other."""
    if not isinstance(call, exp.Anonymous):
        return _NAMES.get(type(call))
    return call.name.lower() if call.name.lower() in _ANONYMOUS else None


def with_bounds(node: exp.Expr, bounds: str, form: str = "per_group") -> str:
    """Return a call with bounds in place of those that it leaves to AUTO, which can be pasted in its place."""
    text = _call_without(node, lambda name, given: name.startswith(_BOUNDS) and isinstance(given, exp.Var))
    return f"{text[:-1]}, contribution_bounds_{form} => {bounds}){_filter_of(node)}"


def without_bounds(node: exp.Expr) -> str:
    """Return a call without the bounds and the norm that it names, which can be pasted in its place."""
    return _call_without(node, lambda name, _: name.startswith("contribution_")) + _filter_of(node)


def _call_without(node: exp.Expr, is_left_out: Callable[[str, exp.Expr], bool]) -> str:
    """Return the text of a call, without its FILTER and without some of its named arguments.

    Args:
        node: the call.
        is_left_out: checks whether an argument is left out, by its name and value.

    """
    call = (node.this if isinstance(node, exp.Filter) else node).copy()
    for part in list(call.find_all(exp.Kwarg, exp.PropertyEQ)):
        if is_left_out(part.this.name.lower(), part.expression):
            part.pop()
    text = unquoted(call)
    return "count(*)" if text == "count()" else text


def called_with(node: exp.Expr, function: str, *arguments: str) -> str:
    """Return a call of another function or with other arguments, which can be pasted in the place of a call."""
    return f"{function}({', '.join(arguments)}){_filter_of(node)}"


def _filter_of(node: exp.Expr) -> str:
    """Return the FILTER of a call as text, with a space before it; empty without one."""
    return f" FILTER (WHERE {unquoted(node.expression.this)})" if isinstance(node, exp.Filter) else ""


_READ = {"expressions", "from_", "where", "group", "having", "order", "joins", "with_"}
_CLAUSE_NAMES = {
    "laterals": "LATERAL",
    "distinct": "SELECT DISTINCT",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "sample": "USING SAMPLE",
    "pivots": "PIVOT",
    "kind": "SELECT AS STRUCT",
    "locks": "FOR UPDATE",
    "into": "INTO",
    "hint": "WITH DIFFERENTIAL_PRIVACY",
}
GROUPING_SETS = (exp.GroupingSets, exp.Cube, exp.Rollup)
"""Terms of GROUP BY that stand for sets of keys (`grouping_sets`)."""
_LARGEST_LIMIT = 2.0**63


@dataclass(frozen=True, slots=True)
class Clauses:
    """The parts of a SELECT that are read.

    Attributes:
        sources: what stands in FROM, each with how it is joined to those before.
        where: what has to hold all together.
        inside: whether it is a subquery, whose rows are a source.

    """

    sources: tuple[tuple[exp.Expr, exp.Join | None], ...]
    select: tuple[exp.Expr, ...] = ()
    where: tuple[exp.Expr, ...] = ()
    group: exp.Group | None = None
    having: exp.Expr | None = None
    qualify: exp.Expr | None = None
    order: tuple[exp.Expr, ...] = ()
    limit: int | None = None
    offset: int | None = None
    inside: bool = False

    @property
    def source(self) -> exp.Expr:
        """What stands first in FROM."""
        return self.sources[0][0]

    @property
    def has_sets(self) -> bool:
        """Whether GROUP BY names sets of its own."""
        terms = self.group.expressions if self.group else ()
        return any(isinstance(part, GROUPING_SETS) for part in terms)


def read_clauses(tree: exp.Select, refusals: Refusals, *, inside: bool = False) -> Clauses:
    """Split a SELECT into its clauses; everything that has no private form becomes a refusal.

    Args:
        tree: the SELECT.
        refusals: collects.
        inside: whether it is a subquery.

    Raises:
        UnsupportedQueryError: there is no FROM clause, so nothing more can be said; or a part of a subquery has no
            private form.

    """
    before = len(refusals.found)
    _refuse_other_clauses(tree, refusals, inside=inside)
    source, order = tree.args.get("from_"), tree.args.get("order")
    if tree.args.get("with_"):
        named_queries(tree, refusals)
    if not source:
        refusals.refuse(
            "source",
            tree,
            "a query without FROM reads nothing.",
            "Name a table after FROM, and join others with JOIN … ON.",
        )
    where, having, qualify = (
        part.this if part else None for part in map(tree.args.get, ("where", "having", "qualify"))
    )
    distinct, group = tree.args.get("distinct"), tree.args.get("group")
    if distinct:
        group = _group_of_distinct(tree, distinct, refusals, inside=inside)
    # what cannot stand in a subquery is read too, as it may be wrong in itself
    limit, offset = (
        _whole_number(node, refusals) if node else None for node in map(tree.args.get, ("limit", "offset"))
    )
    if inside:
        refusals.raise_if_any(before)
    return Clauses(
        sources=((source.this, None), *((join.this, join) for join in tree.args.get("joins") or ())),
        select=tuple(tree.expressions),
        where=tuple(conjuncts(where)) if where else (),
        group=group,
        having=having,
        qualify=qualify,
        order=tuple(order.expressions) if order else (),
        limit=limit,
        offset=offset,
        inside=inside,
    )


def _refuse_other_clauses(tree: exp.Select, refusals: Refusals, *, inside: bool) -> None:
    """Note a refusal for every clause that has no private form."""
    answered = _READ | ({"distinct"} if inside else {"limit", "offset", "hint", "qualify", "distinct"})
    where = "in a subquery" if inside else "yet"
    hint = "Use FROM with JOIN, WHERE, GROUP BY, HAVING, ORDER BY and LIMIT."
    if inside:
        hint = "Use SELECT, FROM, WHERE, GROUP BY and HAVING there."
    for name, value in tree.args.items():
        if value and name not in answered:
            clause = _CLAUSE_NAMES.get(name, name.strip("_").upper())
            node = value[0] if isinstance(value, list) else value
            place = node if isinstance(node, exp.Expr) else tree
            refusals.add("clause", place, f"{clause} has no private form {where}.", hint)


def _group_of_distinct(
    tree: exp.Select, distinct: exp.Distinct, refusals: Refusals, *, inside: bool
) -> exp.Group | None:
    """What DISTINCT groups by: outside subqueries, where it asks for keys alone, all that is selected."""
    group, nodes = tree.args.get("group"), (node for item in tree.expressions for node in item.walk())
    if distinct.args.get("on"):
        hint = "Group by the unit and aggregate." if inside else "Name the keys, as in SELECT DISTINCT city."
        refusals.add("clause", distinct, "DISTINCT ON has no private form.", hint)
    elif not inside and (group or tree.args.get("qualify") or any(map(is_aggregate_call, nodes))):
        refusals.add(
            "clause",
            distinct,
            "DISTINCT asks for keys alone, without GROUP BY, aggregates, windows and QUALIFY.",
            "Leave DISTINCT out: groups of GROUP BY are distinct.",
        )
    return group if inside else group or exp.Group(all=True)


def named_queries(query: exp.Query, refusals: Refusals) -> tuple[exp.CTE, ...]:
    """The queries that WITH names before another one."""
    with_ = query.args.get("with_") or exp.With(expressions=[])
    if with_.args.get("recursive"):
        refusals.add(
            "clause",
            with_,
            "WITH RECURSIVE has no private form: how deep it goes would reveal something about rows.",
            "Leave RECURSIVE out.",
        )
    return tuple(with_.expressions)


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a condition that have to hold all together."""
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


def joined_first(source: exp.Expr) -> exp.Select | None:
    """Return the SELECT of joins that stood in parentheses, or None if a source is anything else."""
    inner = source.this if isinstance(source, exp.Subquery) else None
    return inner if isinstance(inner, exp.Select) and inner.meta.get(JOINED_FIRST) else None


def sources_of(select: exp.Select) -> list[exp.Expr]:
    """Return the sources of a FROM clause, those in parentheses among them."""
    first = select.args.get("from_")
    listed = [first.this, *(join.this for join in select.args.get("joins") or ())] if first else []
    inside = ((node, joined_first(node)) for node in listed)
    return [source for node, inner in inside for source in (sources_of(inner) if inner else [node])]


def _whole_number(node: exp.Expr, refusals: Refusals) -> int | None:
    """The number of LIMIT or OFFSET; None of ALL."""
    value, others = node.expression, [name for name, part in node.args.items() if part and name != "expression"]
    if isinstance(node, exp.Limit | exp.Offset) and not others:
        if isinstance(value, exp.Var) and value.name.upper() == "ALL":
            return None
        if isinstance(value, exp.Literal) and value.name.isdigit() and float(value.name) < _LARGEST_LIMIT:
            return int(value.name)
    refusals.add("limit_form", node, "LIMIT and OFFSET take a whole number here.", "Write LIMIT 10.")
    return None
