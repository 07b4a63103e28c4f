"""Runs a described case through the product: a real session plans it, the engine computes its exact tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import dpsql
from dpsql.assets import native_library
from dpsql.bound.aggregation import HELD_ROWS, bounded_sql, held_rows_sql
from dpsql.bound.formulations import Formulation, chooses_groups, fastest_of_groups
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.model.estimates import Linear
from dpsql.model.frame import Frame, Norm, Statistic
from dpsql.model.private_query import PrivateQuery
from dpsql.plan.environment.policy_view import SchemaView
from dpsql.receipts.offer_receipt import make_receipt
from dpsql.release.offer import current, offers_of
from dpsql.sql.statements import SelectStatement, read_statement
from tests.frames import with_relation
from tests.unit.bound.norm_reference import NormedPart, normed_table
from tests.unit.bound.plain_reference import (
    Group,
    GroupTotals,
    Priority,
    ValuePriority,
    WeightedPart,
    bounded_table,
    spelled,
    weighted_table,
)
from tests.unit.bound.query_descriptions import (
    Aggregate,
    Bounds,
    Case,
    Expression,
    Value,
    clamped,
    less,
    literal,
    quoted,
    squared_distance,
)

SALT = bytes(range(16))
LEVEL: dict[str, Any] = {"rho": 0.5, "delta": 1e-3}
ExactTable = dict[Group, tuple[int, ...]]
"""Per group: distinct units, then stat_1, stat_2, … as the noise gets them."""

Rewrite = Callable[[str], str]


def unchanged(sql: str) -> str:
    return sql


@dataclass(frozen=True)
class Claim:
    """What the receipt says that one unit moves, in steps of what is exact: in every group, and over all of them."""

    linf: float
    l2: float


@dataclass(frozen=True)
class Run:
    """A planned case, with what its receipt claims per statistic (presence first)."""

    case: Case
    query: PrivateQuery
    receipt: dpsql.Receipt
    max_groups: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Movement:
    """What deleting one unit did to one statistic, in lattice steps."""

    l0: int
    linf: int
    l2: float


needs_native = pytest.mark.skipif(
    native_library() is None, reason="the native library is not built: make native (needs a C compiler)"
)


class Laboratory:
    """One session for many cases, each in a table of its own."""

    def __init__(self) -> None:
        self._numbers, self._held = itertools.count(), itertools.count()
        self._open()

    def _open(self) -> None:
        self.session = dpsql.connect(allow_unsigned_extensions=True)
        self.engine = DuckDBEngine(self.session.connection, native_library())
        self.has_native = self.engine.has_native
        self.session.sql("CALL dp_unit('u', rho_budget := 1e9, delta_threshold := 0.5, delta_conversion := 1e-6)")

    def close(self) -> None:
        self.session.close()

    @contextmanager
    def run(self, case: Case) -> Iterator[Run]:
        """The case in a table ``t…``, protected; dropped afterwards."""
        number = next(self._numbers)
        if number % 300 == 299:
            # a policy of thousands of tables would be most of the work
            self.close()
            self._open()
        table = f"t{number}"
        connection = self.session.connection
        self.create(table, case)
        try:
            self._protect(table, case)
            query, receipt = self._offered(case.query.sql(table, case.unit.name))
            yield Run(
                case,
                query,
                receipt,
                query.first.frame.bounding.counted_groups or query.first.frame.unit_groups,
                _claims(query, receipt),
            )
        finally:
            connection.execute(f"DROP TABLE {table}")

    def answer(self, run: Run) -> dpsql.Result:
        """Ask the question of a run as anybody would."""
        text = run.case.query.sql(run.query.first.frame.rows.table, run.case.unit.name)
        return self.session.sql(text, **LEVEL)

    def plan(self, text: str, **options: object) -> PrivateQuery:
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)
        return self.session._runner.plan(statement, {**LEVEL, **options}, CURATOR)[0]

    def _offered(self, text: str) -> tuple[PrivateQuery, dpsql.Receipt]:
        """Plan a question, and build the receipt that its answer would have, without drawing noise."""
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)
        query, state, reader = self.session._runner.plan(statement, LEVEL, CURATOR)
        (offer,) = offers_of([current(query.first, state, reader)], state, reader)
        return query, make_receipt(offer)

    def create(self, table: str, case: Case) -> None:
        connection = self.session.connection
        connection.execute(f"CREATE TABLE {table} ({', '.join(field.declaration for field in case.fields)})")
        if case.rows:
            rows = ", ".join(f"({', '.join(map(literal, row))})" for row in case.rows)
            connection.execute(f"INSERT INTO {table} VALUES {rows}")

    def _protect(self, table: str, case: Case) -> None:
        query = case.query
        cap = "" if query.row_cap is None else f", max_rows_per_group := {query.row_cap}"
        if query.most_rows is not None:
            cap += f", max_rows_per_unit := {query.most_rows}"
        groups = "" if query.option_in_text else f", max_groups_contributed := {query.max_groups}"
        self.session.sql(
            f"CALL dp_protect('{table}', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid'{cap}{groups})"
        )
        for column, (low, high) in query.domains:
            self.session.sql(f"CALL dp_domain('{table}', {literal(column)}, bounds := [{low}, {high}])")
        if query.public_keys is not None:
            for i, key in enumerate(query.keys):
                values = dict.fromkeys(literal(values[i]) for values in query.public_keys)
                name = key.sql[1:-1].replace('""', '"')
                self.session.sql(f"CALL dp_domain('{table}', '{name}', keys := [{', '.join(values)}])")

    def exact(self, run: Run, *, without: str = "", rewrite: Rewrite = unchanged) -> ExactTable:
        """The exact table, by all formulations, of all rows or of those where ``without`` does not hold."""
        frame = run.query.first.frame
        if without:
            frame = with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE NOT ({without}))")
        listed = self.public_keys(run)
        found = []
        for formulation in self.formulations(frame):
            sql = rewrite(bounded_sql(frame, run.query.first.statistics, SALT, formulation=formulation))
            table = self.engine.aggregate(sql, listed_keys=listed, timeout_seconds=None).reveal()
            found.append(read_exact(table, len(frame.keys)))
        if next(self._held) % 4 == 0:
            found.append(self._of_held_rows(frame, run, rewrite, formulation))
        assert all(exact == found[0] for exact in found[1:]), "formulations differ"
        return found[0]

    def _of_held_rows(self, frame: Frame, run: Run, rewrite: Rewrite, formulation: Formulation) -> ExactTable:
        """Return the exact table of rows that a temporary table holds; of one case in four, since it takes its time."""
        statistics, listed = run.query.first.statistics, self.public_keys(run)
        made = rewrite(f"CREATE TEMP TABLE {HELD_ROWS} AS {held_rows_sql(frame, statistics, SALT)}")
        sql = rewrite(bounded_sql(frame, statistics, SALT, formulation=formulation, held_rows=True))

        with self.engine.transaction(None) as transaction:
            transaction._run_on(lambda cursor: cursor.rows(made), listed, None, transaction._cursor)
            table = transaction.aggregate(sql, listed_keys=listed, timeout_seconds=None)
        return read_exact(table.reveal(), len(frame.keys))

    def formulations(self, frame: Frame) -> list[Formulation]:
        """All that can compute a frame here: the native ones where ``make native`` has built the library."""
        if not chooses_groups(frame):
            return ["groups_first"]
        over_groups = fastest_of_groups(frame, has_native=self.has_native)
        native: list[Formulation] = ["native", over_groups] if self.has_native else []
        return list(dict.fromkeys(["groups_first", "rows_first", *native]))

    def public_keys(self, run: Run) -> pa.Table | None:
        public = run.query.first.frame.public_keys
        if public is None:
            return None
        runner = self.session._runner
        view = SchemaView(runner.access.read().policy(), self.engine, runner.sandbox)
        return view.public_key_table(public, [key.type for key in run.query.first.frame.keys])

    def reference(self, run: Run) -> dict[Group, GroupTotals]:
        """The same table by plain Python, its keys in the order of the frame's."""
        return bounded_table(*self._described(run))

    def weighted_reference(self, run: Run) -> ExactTable:
        """The exact table with weighted units, by plain Python."""
        found = [linear.statistic for linear in linears(run.query)]
        parts = [
            WeightedPart(
                found.index(statistic),
                statistic.centre_steps,
                20 + statistic.noise_exponent - statistic.lattice_exponent,
            )
            for statistic in run.query.first.statistics[1:]
        ]
        case, exponents, priority, _ = self._described(run)
        return weighted_table(case, exponents, priority, parts, run.query.first.frame.unit_groups)

    def normed_reference(self, run: Run) -> ExactTable:
        """The exact table with weighted units and what norms leave of them, by plain Python."""
        found = [linear.statistic for linear in linears(run.query)]
        parts = [NormedPart(found.index(statistic), statistic) for statistic in run.query.first.statistics[1:]]
        case, exponents, priority, _ = self._described(run)
        return normed_table(case, exponents, priority, parts, run.query.first.frame.unit_groups)

    def _described(self, run: Run) -> tuple[Case, list[int], Priority, ValuePriority]:
        case = run.case
        parts = components(case.query.aggregates, by_norm=case.query.bounding == "NORM")
        order = _key_order(run.query)
        keys = tuple(case.query.keys[i] for i in order)
        public = case.query.public_keys
        query = replace(
            case.query,
            aggregates=parts,
            keys=keys,
            max_groups=run.max_groups,
            public_keys=None if public is None else tuple(tuple(key[i] for i in order) for key in public),
        )
        exponents = [linear.statistic.lattice_exponent if linear.statistic else -1 for linear in linears(run.query)]
        types = [case.unit.type, *(key.type for key in keys)]

        def priority(pairs: Sequence[tuple[Value, tuple[Value, ...]]]) -> list[int]:
            return self.hashes([(unit, *key) for unit, key in pairs], types)

        def value_priority(unit: Value, group: Group, values: Sequence[Value], kind: str) -> list[int]:
            key = tuple(math.nan if part == "NaN" else part for part in group)
            # texts are told apart by their bytes
            return self.hashes([(unit, *key, value) for value in values], [*types, kind.replace("VARCHAR", "BLOB")])

        return replace(case, query=query), exponents, priority, value_priority

    def hashes(self, rows: Sequence[tuple[Value, ...]], types: Sequence[str]) -> list[int]:
        """DuckDB's hash of each row with the salt, hashed again."""
        if not rows:
            return []
        listed = ", ".join(
            f"({i}, " + ", ".join(f"CAST({literal(v)} AS {t})" for v, t in zip(row, types, strict=True)) + ")"
            for i, row in enumerate(rows)
        )
        names = ", ".join(f"c{i}" for i in range(len(types)))
        found = self.session.connection.execute(
            f"SELECT hash(hash({names}, '{SALT.hex()}')) FROM (VALUES {listed}) v(place, {names}) ORDER BY place"
        ).fetchall()
        return [int(row[0]) for row in found]


def components(aggregates: Sequence[Aggregate], *, by_norm: bool = False) -> tuple[Aggregate, ...]:
    """Aggregates whose values are sums over units: an average is a sum and a count, a spread one more sum.

    By norm these sums are of distances to the middle.
    """
    parts: list[Aggregate] = []
    for aggregate in aggregates:
        if aggregate.kind not in ("avg", "var_pop", "stddev"):
            parts.append(aggregate)
            continue
        if by_norm and aggregate.value is not None and aggregate.per_row is not None:
            parts += _normed_components(aggregate, aggregate.value, aggregate.per_row)
            continue
        parts.append(replace(aggregate, kind="sum"))
        parts.append(Aggregate("rows", aggregate.value, aggregate.condition))
        if aggregate.kind != "avg" and aggregate.value is not None and aggregate.per_row is not None:
            squares = squared_distance(aggregate.value, aggregate.per_row)
            most = ((aggregate.per_row[1] - aggregate.per_row[0]) / 2) ** 2
            parts.append(replace(aggregate, kind="sum", value=squares, per_row=(0, most)))
    return tuple(parts)


def _normed_components(aggregate: Aggregate, value: Expression, bounds: Bounds) -> list[Aggregate]:
    half, middle = (bounds[1] - bounds[0]) / 2, (bounds[0] + bounds[1]) / 2
    distances = less(clamped(value, bounds), middle)
    parts = [
        replace(aggregate, kind="sum", value=distances, per_row=(-half, half)),
        Aggregate("rows", aggregate.value, aggregate.condition),
    ]
    if aggregate.kind != "avg":
        squares, most = less(squared_distance(value, bounds), half**2 / 2), half**2 / 2
        parts.append(replace(aggregate, kind="sum", value=squares, per_row=(-most, most)))
    return parts


def linears(query: PrivateQuery) -> list[Linear]:
    """The product's side of ``components``."""
    return [linear for estimate in query.first.estimates for linear in estimate.value.linears]


def read_exact(table: pa.Table, key_count: int) -> ExactTable:
    columns = [column.to_pylist() for column in table.columns]
    rows = [tuple(column[i] for column in columns) for i in range(table.num_rows)]
    exact = {spelled(row[:key_count]): tuple(int(v) for v in row[key_count:]) for row in rows}
    assert len(exact) == len(rows), "a key stands twice"
    return exact


def totals(run: Run, exact: ExactTable) -> dict[Group, GroupTotals]:
    """The product's table as the reference states it: every aggregate's sum in lattice steps, centre added back."""
    found = {}
    for group, (units, *stats) in exact.items():
        sums = []
        for linear in linears(run.query):
            statistic = linear.statistic
            if statistic is None:
                sums.append(round(linear.centre * units * 2))
            else:
                place = run.query.first.statistics.index(statistic) - 1
                sums.append(stats[place] + statistic.centre_steps * units)
        found[group] = GroupTotals(units, tuple(sums))
    return found


def movements(before: ExactTable, after: ExactTable, width: int) -> list[Movement]:
    """How far each statistic moved between two exact tables; a group that is not there counts as zeros."""
    zeros = (0,) * width
    moved = []
    for i in range(width):
        steps = [before.get(g, zeros)[i] - after.get(g, zeros)[i] for g in {**before, **after}]
        moved.append(
            Movement(
                sum(step != 0 for step in steps),
                max((abs(step) for step in steps), default=0),
                math.sqrt(sum(step * step for step in steps)),
            )
        )
    return moved


def is_unit(case: Case, unit: Value) -> str:
    return f"{quoted(case.unit.name)} IS NOT DISTINCT FROM CAST({literal(unit)} AS {case.unit.type})"


def _claims(query: PrivateQuery, receipt: dpsql.Receipt) -> tuple[Claim, ...]:
    claims: dict[Statistic, Claim] = {}
    for column, estimate in zip(receipt.columns, query.first.estimates, strict=True):
        statistic = estimate.value.linears[0].statistic
        if statistic is not None and column.linf is not None and column.l2 is not None and column.lattice:
            claims[statistic] = Claim(column.linf / column.lattice, column.l2 / column.lattice)
    claims[query.first.statistics[0]] = Claim(1.0, math.sqrt(query.first.frame.unit_groups))
    root = math.sqrt(query.first.frame.unit_groups)
    # the parts of an average have no column of their own
    norms = {s for s in query.first.statistics if isinstance(s.limit, Norm)}
    found = [
        claims.get(s, Claim(s.radius_steps, s.radius_steps * (1.0 if s in norms else root)))
        for s in query.first.statistics
    ]
    scales = [2 ** (s.lattice_exponent - query.first.frame.exact_exponent(s)) for s in query.first.statistics]
    return tuple(Claim(claim.linf * scale, claim.l2 * scale) for claim, scale in zip(found, scales, strict=True))


def _key_order(query: PrivateQuery) -> list[int]:
    """For each key of the frame, which key of the text it is: the finish says it, in the order of the text."""
    shown = [column.sql for column in query.first.finish.columns[: len(query.first.frame.keys)]]
    return [shown.index(f'"key_{i}"') for i in range(len(shown))]
