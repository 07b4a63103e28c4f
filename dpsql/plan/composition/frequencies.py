"""mode(x) and histogram(x): a query that counts each group and value, and what is computed around it.

``SELECT city, count(*), mode(kind) FROM visits GROUP BY city`` becomes ``SELECT city, count(*) … GROUP BY city``, a
query of counts, ``SELECT city, kind, count(*) … GROUP BY city, kind``, and an outer query that joins both by city. The
queries are released as if each was asked alone. So they say what a unit counts in, what is paid and what is shown, and
mode and histogram are computed from released counts. Both of one x read one query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.model.refusals import Refusals, refuse_combinations
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.operations.trees import map_tree
from dpsql.plan.composition.bins import bin_of, read_bins
from dpsql.plan.composition.frequency_calls import (
    grouped,
    is_computed,
    is_frequency,
    is_of_rows,
    terms,
    value_of,
    with_options,
    written,
)
from dpsql.plan.composition.frequency_columns import called, histogram_of, joined, mode_of
from dpsql.plan.composition.lift import TEXT, hidden_prefix, outputs_of, split_around
from dpsql.plan.composition.value_facts import ValueFacts
from dpsql.sql.clauses import GROUPING_SETS, is_interval_call
from dpsql.sql.column_names import column_name

_FREQUENCIES = "dpsql_frequencies_"


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of each group and value of one x.

    Attributes:
        value: x.
        condition: of FILTER; None without one.
        ends: the ends of bins; none if each value is counted by itself.
        node: the first call that reads them.
        hint: the query of the counts by themselves, which is private whatever the values are.
        bins: how DuckDB calls the bins, and the type of these names.
        example: bins of the value as an example; empty without a call of histogram that has none.

    """

    value: exp.Expr
    condition: exp.Expr | None
    ends: tuple[exp.Expr, ...]
    node: exp.Expr
    hint: str
    bins: tuple[list[exp.Expr], str] | None = None
    example: str = ""

    @property
    def called(self) -> str:
        """The name of the column with the counts."""
        return f"count(*) by {unquoted(self.value)}"

    def call_of(self, function: str) -> str:
        """Return a call of mode or histogram that reads the counts, as text."""
        ends = f", [{', '.join(map(unquoted, self.ends))}]" if self.ends else ""
        return f"{function}({unquoted(self.value)}{ends})"

    def refuse(self, refusals: Refusals) -> NoReturn:
        """Refuse values without public keys.

        Raises:
            UnsupportedQueryError: in any case.

        """
        value = unquoted(self.value)
        also = f"; bins need none, as in histogram({value}, {self.example})" if self.example else ""
        message = f"mode and histogram need public keys of their values, and {value} has none{also}."
        refusals.refuse("aggregate", self.node, message, self.hint)
        raise AssertionError("a refusal was just raised")


@dataclass(frozen=True, slots=True)
class Frequencies:
    """A query with mode or histogram, taken apart.

    Attributes:
        outer: what is computed around the others, which it reads as subqueries.
        private: the queries of aggregates that have a private form; none or one.
        counts: the queries of counts, each with what it counts, and the query that counts these values by themselves.
        names: the columns of the outer query that are computed from counts.

    """

    outer: exp.Select
    private: tuple[exp.Select, ...]
    counts: tuple[tuple[exp.Select, Counts, exp.Select], ...]
    names: tuple[str, ...]

    def put_options(self, hint: exp.Expr | None, refusals: Refusals) -> None:
        """Give the private query inside the options of the query.

        Raises:
            UnsupportedQueryError: there are several private queries, or an option does not go with these.

        """
        queries = [*self.private, *(query for query, _, _ in self.counts)]
        given = {one.this.name.lower() for one in hint.expressions if isinstance(one, exp.EQ)} if hint else set()
        refuse_combinations({"mode or histogram"}, {"mode or histogram", *given}, hint, refusals)
        refusals.raise_if_any()
        if hint and len(queries) > 1:
            message = "mode and histogram make several private queries of this one, and options would be those of each."
            refusals.refuse("option", hint, message, "Write OPTIONS in the first SELECT of the text.")
        for query in queries:
            query.set("hint", hint)


def with_frequencies(select: exp.Select, refusals: Refusals, facts: ValueFacts) -> Frequencies | None:
    """Take a query of rows of units apart. Return None if it has no mode and no histogram.

    Args:
        select: the query; it is not changed.
        refusals: collects.
        facts: about values of its rows.

    Raises:
        UnsupportedQueryError: mode or histogram is asked for in a form that has no private form.

    """
    if not any(map(is_frequency, _outputs(select))):
        _refuse_forms(select, refusals)
        return None
    return _Frequencies(select.copy(), refusals, facts).taken_apart()


def _outputs(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the nodes of what is computed of groups, without windows and queries inside."""
    for root in outputs_of(select):
        yield from root.walk(prune=lambda node: isinstance(node, exp.Query | exp.Window | exp.WithinGroup))


def _refuse_forms(select: exp.Select, refusals: Refusals) -> None:
    """Refuse mode as an aggregate of ordered rows, and windows that read mode or histogram: both can be rewritten."""
    for node in (node for root in outputs_of(select) for node in root.walk()):
        if isinstance(node, exp.WithinGroup) and isinstance(node.this, exp.Mode):
            text = f"mode({unquoted(node.expression.expressions[0].this)})"
            refusals.refuse("aggregate", node, "mode takes its values as an argument here.", f"Write {text}.")
        if isinstance(node, exp.Window) and not is_frequency(node.this) and any(map(is_frequency, node.walk())):
            hint = "Give it an alias in a subquery, and write the window around it, over that alias."
            refusals.refuse("after", node, "a window reads mode or histogram of this query.", hint)


@dataclass
class _Frequencies:
    """Writes the queries that a query with mode or histogram becomes."""

    select: exp.Select
    refusals: Refusals
    facts: ValueFacts
    prefix: str = ""
    found: dict[tuple[str, ...], Counts] = field(default_factory=dict)

    def taken_apart(self) -> Frequencies:
        select = self.select
        self._check()
        self.prefix = hidden_prefix(select)
        names = self._replace_calls()
        keys = self._write_keys()
        named = [f"{self.prefix}{place}" for place in range(len(keys))]
        outer, private = split_around(select, self.prefix, dict(zip(named, keys, strict=True)), self.facts.is_column)
        self._read_counts(outer)
        carried = [item.alias for item in private.expressions]
        reads_rows = any(map(is_of_rows, [*outputs_of(private), *private.expressions]))
        if reads_rows and not private.expressions:
            # HAVING alone reads rows
            private.set("expressions", [exp.alias_(exp.Count(this=exp.Star()), f"{self.prefix}rows", quoted=True)])
        sources, counts = [], []
        for place, one in enumerate(self.found.values()):
            is_base = not (reads_rows or place)
            query = self._counts(private, one, keys, is_base=is_base)
            counts.append((query, one, _alone(query, one)))
            columns = {name: name if is_base else f"{name}_{place}" for name in (carried if is_base else named)}
            sources.append(self._computed(query, one, self._source(place), columns))
        if not reads_rows:
            outer.set("from_", exp.From(this=sources.pop(0)))
        base = outer.args["from_"].this
        for source in sources:
            outer.append("joins", joined(base.alias, source, named))
        return Frequencies(outer, (private,) if reads_rows else (), tuple(counts), names)

    def _check(self) -> None:
        """Refuse clauses that mode and histogram do not go with."""
        select, refuse = self.select, self.refusals.refuse
        group, qualify = select.args.get("group"), select.args.get("qualify")
        if group and group.find(*GROUPING_SETS):
            hint = "Group by plain keys, in a query for each set."
            refuse("group_by_form", group, "mode and histogram go with one set of keys.", hint)
        if qualify and any(map(is_frequency, qualify.walk())):
            refuse("after", qualify, "QUALIFY names mode or histogram.", "Filter in a query around this one.")
        _refuse_forms(select, self.refusals)
        items = {folded(item.alias): item for item in select.expressions if isinstance(item, exp.Alias)}
        for node in _outputs(select):
            if is_interval_call(node) and node.expressions:
                asked = node.expressions[0]
                asked = items.get(folded(asked.name), asked) if isinstance(asked, exp.Column) else asked
                call = next(filter(is_frequency, asked.walk()), None)
                if call is not None:
                    refuse("aggregate_argument", node, "mode and histogram have no interval.", self._advice(call, None))

    def _replace_calls(self) -> tuple[str, ...]:
        """Put queries of one value in the place of the calls; return the names of the columns that have some."""
        select, names = self.select, list[str]()
        items = []
        for item in select.expressions:
            replaced = self._replaced(item.copy())
            if replaced != item:
                name = _name(item)
                names.append(name)
                # alias_() would name a subquery as a source
                replaced = exp.Alias(this=replaced.unalias(), alias=exp.to_identifier(name, quoted=True))
            items.append(replaced)
        select.set("expressions", items)
        for clause in ("having", "order"):
            if select.args.get(clause):
                select.set(clause, self._replaced(select.args[clause].copy()))
        return tuple(names)

    def _replaced(self, root: exp.Expr) -> exp.Expr:
        def visit(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, exp.Query | exp.Window | exp.WithinGroup):
                return None
            call, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
            return self._place_of(call, condition) if is_frequency(call) else node

        return map_tree(root, visit)

    def _advice(self, call: exp.Expr, condition: exp.Expr | None) -> str:
        """Return the hint to ask for the counts that a call reads."""
        counts = grouped(self.select, value_of(call), condition)
        return f"Write {with_options(unquoted(counts), self.refusals.text)}."

    def _check_value(self, call: exp.Expr, function: str) -> None:
        """Refuse a call whose argument is no value of a row."""
        value = value_of(call)
        star = value.this if isinstance(value, exp.Column) else value
        if isinstance(star, exp.Star):
            self.refusals.refuse(
                "aggregate_argument", call, f"{function} counts values of one expression.", f"Write {function}(x)."
            )
        if isinstance(value, exp.Distinct | exp.Order):
            inner = value.expressions[0] if isinstance(value, exp.Distinct) else value.this
            ends = f", {unquoted(call.expressions[1])}" if len(call.expressions) > 1 else ""
            message, word = (
                (f"{function} counts all rows.", "DISTINCT")
                if isinstance(value, exp.Distinct)
                else (f"{function} has an order of its own.", "ORDER BY")
            )
            text = f"{function}({unquoted(inner)}{ends})"
            self.refusals.refuse("aggregate_argument", call, message, f"Leave {word} out, as in {text}.")

    def _place_of(self, call: exp.Expr, condition: exp.Expr | None) -> exp.Expr:
        """Return what stands for a call until its counts are joined: a query of one column of them."""
        value, function = value_of(call), "histogram" if isinstance(call, exp.Anonymous) else "mode"
        self._check_value(call, function)
        bins: tuple[list[exp.Expr], str] | None = None
        if isinstance(call, exp.Anonymous) and len(call.expressions) > 1:
            bins = self.facts.names_of_bins(value, read_bins(call, self.refusals), call)
        ends = tuple(bins[0][:-1]) if bins else ()
        example = self.facts.advised_bins(value) if function == "histogram" and not ends else ""
        counts = Counts(value, condition, ends, call, self._advice(call, condition), bins, example)
        if not (ends or isinstance(value, exp.Column)):
            counts.refuse(self.refusals)
        key = (to_sql(value), to_sql(condition) if condition else "", *map(to_sql, counts.ends))
        place = list(self.found).index(key) if key in self.found else len(self.found)
        self.found.setdefault(key, counts)
        column = exp.column(function, quoted=True)
        return exp.Subquery(this=exp.select(column).from_(exp.table_(f"{_FREQUENCIES}{place}", quoted=True)))

    def _write_keys(self) -> list[exp.Expr]:
        """Write the keys in place as expressions, not as places in the select list; return them."""
        select = self.select
        group = select.args.get("group")
        if group is None:
            return []
        if group.args.get("all"):
            keys = [item.unalias() for item in select.expressions if not is_computed(item)]
        else:
            keys = [written(one, select) for term in group.expressions for one in terms(term)]
        different = list({to_sql(key): key.copy() for key in keys}.values())
        select.set("group", exp.Group(expressions=[key.copy() for key in different]) if different else None)
        return different

    def _read_counts(self, outer: exp.Select) -> None:
        """Read the columns of joined counts where queries of one value stand for them, in place."""

        def visit(node: exp.Expr) -> exp.Expr | None:
            # a query that is all of a condition has no parentheses
            query = node.this if isinstance(node, exp.Subquery) else node
            table = query.find(exp.Table) if isinstance(query, exp.Select) else None
            if table is None or not table.name.startswith(_FREQUENCIES):
                return None if isinstance(node, exp.Query) else node
            place, function = int(table.name.removeprefix(_FREQUENCIES)), query.expressions[0].name
            column = exp.column(f"{self.prefix}{function}", table=self._source(place), quoted=True)
            column.meta[TEXT] = list(self.found.values())[place].call_of(function)
            return exp.alias_(column, node.alias, quoted=True) if node.alias else column

        for name in ("where", "order"):
            if outer.args.get(name):
                map_tree(outer.args[name], visit)
        outer.set("expressions", [map_tree(item, visit) for item in outer.expressions])

    def _source(self, place: int) -> str:
        return f"{self.prefix}counts_{place}"

    def _counts(self, private: exp.Select, one: Counts, keys: list[exp.Expr], *, is_base: bool) -> exp.Select:
        """Return the query of the counts of one x.

        Args:
            private: the query of the other aggregates.
            one: what is counted.
            keys: of the query.
            is_base: whether there is no query of other aggregates, so that it shows what that would show.

        """
        query = private.copy()
        if not is_base:
            query.set("having", None)
            query.set("qualify", None)
            named = {folded(key.name) for key in keys if isinstance(key, exp.Column) and not key.table}
            aliases = [one for one in query.expressions if folded(one.alias) in named and not is_computed(one)]
            items = [exp.alias_(key.copy(), f"{self.prefix}{i}", quoted=True) for i, key in enumerate(keys)]
            query.set("expressions", [*aliases, *items])
        if one.condition:
            query.where(one.condition.copy(), copy=False)
        value = bin_of(one.value, one.ends) if one.ends else one.value
        query.append("expressions", exp.alias_(value.copy(), f"{self.prefix}value", quoted=True))
        query.append("expressions", exp.alias_(exp.Count(this=exp.Star()), one.called, quoted=True))
        query.set("group", exp.Group(expressions=[*(key.copy() for key in keys), value.copy()]))
        return query

    def _computed(self, query: exp.Select, one: Counts, name: str, columns: Mapping[str, str]) -> exp.Subquery:
        """Return mode and histogram of each group, as a source of the outer query.

        Args:
            query: the counts.
            one: what is counted.
            name: the name of the source.
            columns: the columns of the group, each with its name in the source.

        """
        value, rows = exp.column(f"{self.prefix}value", quoted=True), exp.column(one.called, quoted=True)
        shown = [exp.alias_(exp.column(column, quoted=True), alias, quoted=True) for column, alias in columns.items()]
        histogram = histogram_of(value, rows, one.bins)
        listed = () if one.ends else self.facts.listed_keys(one.value)
        computed = exp.Select(
            expressions=[
                *shown,
                exp.alias_(mode_of(value, rows, listed), f"{self.prefix}mode", quoted=True),
                exp.alias_(histogram, f"{self.prefix}histogram", quoted=True),
            ]
        )
        computed.set("from_", exp.From(this=exp.Subquery(this=query, alias=called("b"))))
        if columns:
            computed.set("group", exp.Group(expressions=[exp.column(column, quoted=True) for column in columns]))
        return exp.Subquery(this=computed, alias=called(name))


def _alone(query: exp.Select, one: Counts) -> exp.Select:
    """Return the query that counts values by themselves, whatever the keys of the query are."""
    alone = query.copy()
    for name in ("having", "qualify", "hint"):
        alone.set(name, None)
    alone.set("expressions", [one.value.copy(), exp.Count(this=exp.Star())])
    alone.set("group", exp.Group(expressions=[one.value.copy()]))
    return alone


def _name(item: exp.Expr) -> str:
    """Return the name that DuckDB gives a column: mode is in quotes, and a list is a call."""
    name = column_name(item)
    if isinstance(item, exp.Alias):
        return name
    return re.sub(r"(?<![\w)\]\"])\[([^][]*)\]", r"list_value(\1)", re.sub(r"\bmode\(", '"mode"(', name))
