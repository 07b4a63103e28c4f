"""The outer statement of a composition: checked, bound, and written as SQL over answers and public tables.

It runs in an empty DuckDB that holds released numbers and public rows alone. It may use the whole of SELECT, with row
expressions, aggregates and windows from the lists.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import SOURCE_ROWS, Column, Environment
from dpsql.model.private_query import OutputColumn
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote, span_of, to_sql, unquoted
from dpsql.plan.composition.ends import HIGH, LOW, Origin, Output, trace, with_ends
from dpsql.plan.composition.frequency_columns import WRITTEN
from dpsql.plan.composition.lift import TEXT
from dpsql.plan.composition.series import is_series
from dpsql.sql.around_queries import QUERY_PARTS, is_called_by_name, name_truths
from dpsql.sql.outer_literals import check_outer_literals
from dpsql.sql.picked_rows import picks_numbers
from dpsql.sql.row_rules import check_node

_NOTHING = "dpsql_nothing"
_NUMBER = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|DECIMAL")
_MOST_READINGS = 40
_PARTS: tuple[type, ...] = (
    *QUERY_PARTS,
    exp.Join,
    exp.SetOperation,
    exp.Values,
    exp.Tuple,
    exp.Exists,
    exp.GroupingSets,
    exp.Rollup,
    exp.Cube,
    exp.Grouping,
    exp.GroupingId,
    exp.Any,
    exp.All,
)


@dataclass(frozen=True, slots=True)
class Source:
    """An answer or a public table that an outer statement reads.

    Attributes:
        name: under which the statement reads it.
        columns: its columns.
        keys: names of those that are keys of an answer, or columns of a public table.
        numbers: places of those that are numbers with intervals.

    """

    name: str
    columns: Sequence[Column]
    keys: frozenset[str] = frozenset()
    numbers: tuple[int, ...] = ()

    @property
    def outputs(self) -> list[Output]:
        """Its columns as they are traced."""
        return [
            Output(
                one.name,
                frozenset({Origin(self.name, place)}) if place in self.numbers else frozenset(),
                one.name in self.keys,
            )
            for place, one in enumerate(self.columns)
        ]

    @property
    def with_ends(self) -> Source:
        """The source with both ends of its numbers after its columns."""
        ends = [Column(f"{end}{place}", "DOUBLE", True) for place in self.numbers for end in (LOW, HIGH)]
        return replace(self, columns=(*self.columns, *ends))


@dataclass(frozen=True, slots=True)
class OuterStatement:
    """An outer statement as SQL.

    Attributes:
        sql: reads the rows of each source under `SOURCE_ROWS` and its place.
        columns: those that it shows.
        outputs: what passes through them; empty if that is not known.
        leaves_out: whether a group that an answer does not show seems to be missing: after an outer or anti join,
            EXCEPT and NOT IN.
        has_ends: whether the statement reads sources with ends, and shows those of its numbers after its columns.
        picks: whether noisy numbers decide which rows it shows.

    """

    sql: str
    columns: tuple[OutputColumn, ...]
    outputs: tuple[Output, ...] = ()
    leaves_out: bool = False
    has_ends: bool = False
    picks: bool = False

    @property
    def computed(self) -> tuple[str, ...]:
        """Names of the columns with numbers that are computed, of which no interval is known."""
        traced = self.outputs or (Output(""),) * len(self.columns)
        return tuple(
            column.name
            for column, one in zip(self.columns, traced, strict=True)
            if _NUMBER.match(column.type) and not one.is_key and not one.origins
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Places of the columns with ends."""
        return tuple(place for place, one in enumerate(self.outputs) if one.origins) if self.has_ends else ()


def read_outer(
    outer: exp.Query, sources: Sequence[Source], environment: Environment, refusals: Refusals
) -> OuterStatement:
    """Return an outer statement as SQL, checked and bound.

    Args:
        outer: the statement.
        sources: what it reads.
        environment: binds it.
        refusals: collects.

    Raises:
        SchemaError: it does not bind.
        UnsupportedQueryError: it uses what is not on the lists.

    """
    before = len(refusals.found)
    tables = list(outer.find_all(exp.Table))
    if len(tables) > _MOST_READINGS:
        refusals.add(
            "after", tables[_MOST_READINGS], f"answers are read at most {_MOST_READINGS} times.", "Ask in steps."
        )
    name_truths(outer)
    series = {id(part) for node in outer.walk() if is_series(node) for part in node.walk()}
    left: set[int] = set()
    for node in outer.walk(prune=lambda node: id(node) in left):
        is_known = isinstance(node, _PARTS) or is_called_by_name(node) or id(node) in series or node.meta.get(WRITTEN)
        noted = len(refusals.found)
        if not is_known:
            check_node(node, refusals)
        if len(refusals.found) > noted:
            left.add(id(node))
    refusals.found[before:] = [replace(one, message=_as_written(one.message, outer)) for one in refusals.found[before:]]
    refusals.raise_if_any(before)
    try:
        shown = _bound(outer, sources, environment)
    except SchemaError as error:
        raise SchemaError(_as_written(str(error), outer), span=span_of(outer, refusals.text)) from None
    columns = tuple(OutputColumn(name, quote(name), kind) for name, kind in shown)
    known = {source.name: source.outputs for source in sources}
    outputs = tuple(trace(outer, known) or ())
    widened = _with_ends(outer, sources, shown, environment)
    read = [source.with_ends for source in sources] if widened else sources
    rows = [_rows(place, source) for place, source in enumerate(read)]
    sql = _with_sources(widened or outer, read, rows)
    numbers = {one.name for source in sources for one in source.columns if one.name not in source.keys}
    return OuterStatement(
        sql,
        columns,
        outputs,
        leaves_out=_leaves_out(outer),
        has_ends=bool(widened),
        picks=picks_numbers(outer, numbers),
    )


def _as_written(message: str, outer: exp.Query) -> str:
    """Return a message in which columns with hidden names are called as in the text."""
    texts = {unquoted(column): column.meta[TEXT] for column in outer.find_all(exp.Column) if TEXT in column.meta}
    for name in sorted(texts, key=len, reverse=True):
        message = message.replace(name, texts[name])
    return message


def _bound(outer: exp.Query, sources: Sequence[Source], environment: Environment) -> list[tuple[str, str]]:
    """Return names and types of the columns of a statement.

    Raises:
        SchemaError: it does not bind.

    """
    empty = _with_sources(outer, sources, [_no_rows(source) for source in sources])
    return environment.schemas.bind_after(_NOTHING, [Column("nothing", "INTEGER", True)], empty)


def _with_ends(
    outer: exp.Query, sources: Sequence[Source], shown: Sequence[tuple[str, str]], environment: Environment
) -> exp.Query | None:
    """Return a statement with the ends of its numbers, if it shows the same columns before them."""
    widened = with_ends(outer, {source.name: source.outputs for source in sources})
    if widened is None:
        return None
    with contextlib.suppress(SchemaError):
        found = _bound(widened, [source.with_ends for source in sources], environment)
        return widened if list(found[: len(shown)]) == list(shown) else None
    return None


def _leaves_out(outer: exp.Query) -> bool:
    """Check that a statement has an outer or anti join, EXCEPT, or NOT before IN or EXISTS."""
    joins = {str(join.args.get(name) or "") for join in outer.find_all(exp.Join) for name in ("side", "kind")}
    tests = (one.this.unnest() for one in outer.find_all(exp.Not))
    return bool(
        joins & {"LEFT", "RIGHT", "FULL", "ANTI"}
        or outer.find(exp.Except)
        or any(isinstance(test, exp.Exists) or (isinstance(test, exp.In) and test.args.get("query")) for test in tests)
    )


def check_literals(outer: exp.Query, sources: Sequence[Source], environment: Environment, refusals: Refusals) -> None:
    """Refuse literals of an outer statement that cannot be cast to the types that they meet.

    Args:
        outer: the statement, which was checked and bound.
        sources: what it reads.
        environment: binds its parts, and computes on a row of NULLs.
        refusals: collects.

    Raises:
        UnsupportedQueryError: there is such a literal.

    """
    named = [cte for with_ in outer.find_all(exp.With) for cte in with_.expressions]
    empty = [_no_rows(source) for source in sources]

    def bind(select: exp.Select) -> Sequence[tuple[str, str]]:
        select.set("with_", exp.With(expressions=[cte.copy() for cte in named]) if named else None)
        nothing = [Column("nothing", "INTEGER", True)]
        return environment.schemas.bind_after(_NOTHING, nothing, _with_sources(select, sources, empty))

    before = len(refusals.found)
    for select in outer.find_all(exp.Select):
        check_outer_literals(select, bind, environment, refusals)
    refusals.raise_if_any(before)


def _with_sources(outer: exp.Query, sources: Sequence[Source], rows: Sequence[str]) -> str:
    """Return the statement as SQL, with each source as a query that WITH names."""
    query, with_ = outer.copy(), outer.args.get("with_")
    query.set("with_", None)
    named = [f"{quote(source.name)} AS ({sql})" for source, sql in zip(sources, rows, strict=True)]
    named += [to_sql(cte) for cte in with_.expressions] if with_ else []
    return f"WITH {', '.join(named)} {to_sql(query)}" if named else to_sql(query)


def _no_rows(source: Source) -> str:
    """Return a query of the columns of a source, without rows."""
    columns = ", ".join(f"CAST(NULL AS {one.type}) AS {quote(one.name)}" for one in source.columns)
    return f"SELECT {columns} WHERE false"


def _rows(place: int, source: Source) -> str:
    """Return a query of the rows of a source, in the types that the statement was bound with."""
    columns = ", ".join(f"CAST({quote(one.name)} AS {one.type}) AS {quote(one.name)}" for one in source.columns)
    return f"SELECT {columns} FROM {SOURCE_ROWS}{place}"
