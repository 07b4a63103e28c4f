"""Answers of texts that are computed from several private queries and public tables.

All parts are priced together and charged in one transaction. Then each is released as if it was asked alone, and uses
its charge up. What was charged and not released pays for asking again. The outer statement runs in an empty DuckDB over
released numbers and public rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from dpsql.cascade.reader import CURATOR
from dpsql.engine import redefined
from dpsql.errors import BudgetError, DpsqlError, ReleaseError
from dpsql.features.auto_outcomes import price_of_outcomes
from dpsql.features.private_parts import (
    OfferedPart,
    first_items,
    guarantee_together,
    offered,
    price_together,
    release_order,
    require_part,
    rho_counted_twice,
    served_now,
)
from dpsql.model.environment import SOURCE_ROWS
from dpsql.model.private_query import OutputColumn
from dpsql.plan.composition.ends import HIGH, LOW
from dpsql.plan.composition.parts import Part
from dpsql.plan.composition.scalars import hidden_texts, written_out
from dpsql.receipts.composed_receipt import ReleasedPart, UnitTerms, composed_receipt, renamed, with_outer_notes
from dpsql.receipts.layout import Layout, passed_domain
from dpsql.receipts.receipt import Receipt
from dpsql.receipts.result import Result
from dpsql.session.around_answers import computed
from dpsql.session.budget_table import standing_of
from dpsql.session.composition_plan import (
    ComposedPlan,
    PlannedPart,
    as_part,
    composed_plan,
    waited_for,
)
from dpsql.session.free_texts import postpone_free_text
from dpsql.session.granted_epsilon import with_granted_epsilon
from dpsql.session.lookups import text_table
from dpsql.session.part_runner import Options, Runner
from dpsql.sql.statements import SelectStatement
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Charged, ChargeItem


class Composed:
    """A text with several parts, planned for one reader."""

    def __init__(self, runner: Runner, plan: ComposedPlan, statement: SelectStatement, reader: str) -> None:
        self._runner = runner
        self._plan = plan
        self._whole = statement
        self._asks = reader
        self._statements: dict[int, SelectStatement] = {}
        self._numbers: dict[str, tuple[tuple[str, str], ...]] = {}

    @classmethod
    def of(
        cls, runner: Runner, statement: SelectStatement, options: Options, reader: str, refused: DpsqlError
    ) -> Composed | WithValues | None:
        """Return a refused text by its parts. Return None if it is a private query by itself.

        Raises:
            DpsqlError: as `composed_plan`.

        """
        plan = composed_plan(runner, statement, options, reader, refused)
        if isinstance(plan, SelectStatement):
            return WithValues(runner, plan, options, reader)
        return None if plan is None else cls(runner, plan, statement, reader)

    @property
    def columns(self) -> tuple[OutputColumn, ...]:
        """The columns of the answer."""
        return self._plan.outer.columns

    def answer(self, timeout_seconds: float | None) -> Result:
        """Charge all parts, release each, and compute what stands around them.

        Raises:
            DpsqlError: as for each part alone; nothing was charged if a part could not be released or paid for.
            ReleaseError: the outer statement fails on its numbers; the parts are paid for and stored.

        """
        plan, results = self._plan, dict[int, Result]()
        if not plan.parts:
            postpone_free_text()
        public = self._public_rows()
        parts = self._require()
        order = self._order(parts)
        ordered = [parts[place] for place in order]
        items = {order[place]: found for place, found in first_items(ordered).items()}
        charged = self._charge(parts, items)
        tables = dict(zip((one.name for one in plan.composition.tables), public, strict=True))
        for place in order:
            part, due = plan.parts[place], items.get(place, ())
            own = {item.statistic_hash: charged.by_statistic[item.statistic_hash] for item in due}
            paid = replace(charged.part(due), by_statistic=own)
            statement = self._statements[place] = self._with_numbers(part, tables) if part.scalars else part.statement
            results[place] = self._runner.answer_once(statement, part.options, self._asks, timeout_seconds, paid)
            tables[part.part.name] = self._rows_of(place, results[place])
        table = self._computed([tables[source.name] for source in plan.sources])
        if not results:
            return Result(table)
        return self._with_receipt(table, [results[place] for place in range(len(plan.parts))])

    def _order(self, parts: Sequence[OfferedPart]) -> list[int]:
        """Return the places of the parts in the order in which they are released.

        A statistic that two parts read is drawn at its higher level first. Parts that wait for numbers come last, as
        they stand in the text: each after those that it waits for.
        """
        planned = self._plan.parts
        names = waited_for([part.part for part in planned])
        first = [place for place, part in enumerate(planned) if not part.scalars]
        order = release_order([parts[place] for place in first], [planned[place].part.name in names for place in first])
        return [*(first[place] for place in order), *(place for place, part in enumerate(planned) if part.scalars)]

    def _with_numbers(self, part: PlannedPart, tables: Mapping[str, pa.Table]) -> SelectStatement:
        """Return a part with the values of the numbers that its rows wait for.

        Raises:
            ReleaseError: others released such a number at another level meanwhile, or public rows that it reads
                changed; charges stay and pay for asking again.

        """
        plan, served = self._plan, {}
        for place, one in enumerate(plan.parts):
            if one.part.name in {name for scalar in part.scalars for name in scalar.sources}:
                query, state, cleared = self._runner.plan(self._statements[place], one.options, self._asks)
                served[one.part.name] = served_now(query, state, cleared)
        found = {one.scalar.name: one.known(served, tables) for one in part.scalars}
        asked = as_part(self._whole, part.part.filled({name: replace(one, value=None) for name, one in found.items()}))
        if asked.parameters != part.statement.parameters:
            raise ReleaseError(
                "others released a number that this text compares rows with at another level meanwhile, or its public "
                "rows changed; what was charged pays for asking again"
            )
        self._numbers[part.part.name] = tuple(
            (one.scalar.sql, found[one.scalar.name].value or "NULL") for one in part.scalars
        )
        return as_part(self._whole, part.part.filled(found))

    def explained(self) -> Result:
        """Return the plan of each part, and the price of all; reads and spends nothing."""
        plan, rows = self._plan, list[tuple[str, str, str]]()
        parts = self._offered()
        for number, part in enumerate(plan.parts, start=1):
            table = self._runner.explained(part.statement, part.options, self._asks)
            waits = [one.scalar for one in part.scalars]
            rows.append((f"part {number}", "query", Part.of("", written_out(part.statement.tree, waits)).sql))
            texts = hidden_texts(part.statement.tree)
            rows += [
                (f"part {number}: {section}", texts.get(name, name), value) for section, name, value in table.fetchall()
            ]
        for unit, request in plan.requests.items():
            items = price_together([part for part in parts if part.unit == unit])
            rho = sum(item.rho_nano for item in items) / NANO_PER_RHO
            delta = sum(item.delta_units for item in items) / DELTA_UNITS_PER_ONE
            rows += [(f"all parts of unit {unit}", request.amount, f"{rho:.9g}")]
            rows += [(f"all parts of unit {unit}", "threshold delta", f"{delta:.6g}")]
        if not plan.parts:
            rows = [("price", "rho", "0"), ("price", "rule", "this text reads public tables alone and is free")]
        return text_table(("section", "name", "value"), rows)

    def _require(self) -> list[OfferedPart]:
        """Return how all parts are served; refuse what cannot be released or paid for.

        Raises:
            DpsqlError: nothing was charged.

        """
        plan, parts = self._plan, self._offered()
        for unit in plan.requests:
            price, refused = price_together([part for part in parts if part.unit == unit]), None
            try:
                plan.state.ledger.require(unit, price, plan.reader.name)
            except BudgetError as error:
                refused = error
            if refused:
                raise with_granted_epsilon(refused, plan)
        return parts

    def _offered(self) -> list[OfferedPart]:
        """Return how all parts are served; refuse what cannot be released.

        Raises:
            DpsqlError: nothing was charged.

        """
        plan, runner = self._plan, self._runner
        runtime = runner.runtime(plan.state)
        parts = []
        with runtime.until_end:
            for part in plan.parts:
                after_auto = None
                if part.query.first.is_open:
                    again = runner.planner(part.statement, part.options, plan.state, plan.reader)
                    after_auto = price_of_outcomes(part.query, again, plan.state, plan.reader)
                parts.append(offered(part.query, plan.state, plan.reader, after_auto))
                require_part(parts[-1], runtime, plan.reader)
        return parts

    def _charge(self, parts: Sequence[OfferedPart], items: Mapping[int, Sequence[ChargeItem]]) -> Charged:
        """Charge the units for what is drawn first, all of them together."""
        plan = self._plan
        asked = {
            unit: [item for place in plan.of_unit(unit) for item in items.get(place, ())] for unit in plan.requests
        }
        asked = {unit: due for unit, due in asked.items() if due}
        if len(parts) < 2 or not asked:
            return Charged(by_statistic={item.statistic_hash: Charged() for due in asked.values() for item in due})
        if plan.state.age:
            plan.state.age.require_own_database()
        (unit, due), *others = asked.items()
        return plan.state.ledger.charge(unit, due, plan.reader.name, plan.reader.planned_at, beside=dict(others))

    def _public_rows(self) -> list[pa.Table]:
        """Return the rows of the public tables.

        Raises:
            EngineError: a view has taken the place of a table since the text was planned; nothing was charged.
            SchemaError: a table is too large to be copied.

        """
        with self._runner.engine.snapshot() as engine:
            schemas = [one.schema for one in self._plan.composition.tables]
            if not all(map(engine.is_base_table, schemas)):
                raise redefined()
            return engine.copied(schemas)

    def _computed(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return what the outer statement computes."""
        rows = {f"{SOURCE_ROWS}{place}": table for place, table in enumerate(tables)}
        return computed(self._plan.outer.sql, rows, len(self._plan.parts))

    def _rows_of(self, place: int, result: Result) -> pa.Table:
        """Return the rows of a part, with the ends of its numbers if the outer statement reads them."""
        part, table = self._plan.parts[place], result.arrow()
        named = dict(zip(part.names, table.columns, strict=True))
        for number in self._plan.sources[place].numbers if self._plan.outer.has_ends else ():
            ends = result.layout.interval(table.column_names[number]) if result.layout else None
            none = pa.nulls(table.num_rows, pa.float64())
            named |= dict(zip((f"{LOW}{number}", f"{HIGH}{number}"), ends or (none, none), strict=True))
        return pa.table(named)

    def _layout(self, table: pa.Table, results: Sequence[Result]) -> Layout:
        """Return the layout of the computed table: its keys, and the ends of numbers that pass through."""
        outer = self._plan.outer
        names = [one.name for one in outer.columns]
        first = len(names)
        ends = {
            f"{end} {names[place]}": table.column(first + 2 * number + side)
            for number, place in enumerate(outer.numbers)
            if names.count(names[place]) == 1
            for side, end in enumerate(("low", "high"))
        }
        keys = tuple(name for name, one in zip(names, outer.outputs, strict=False) if one.is_key)
        has_others, domains = bool(self._plan.composition.frequencies), dict[str, str]()
        parts = {part.part.name: result for part, result in zip(self._plan.parts, results, strict=True)}
        for place in outer.numbers:
            name = names[place]
            sources = [
                (parts[one.part].layout, parts[one.part].columns[one.column]) for one in outer.outputs[place].origins
            ]
            if f"low {name}" in ends and (found := passed_domain(sources, ends[f"low {name}"], ends[f"high {name}"])):
                domains[name], ends[f"unknown {name}"] = found
        return Layout(keys, is_cut=False, units=None, ends=pa.table(ends), domains=domains, has_others=has_others)

    def _passing(self, place: int) -> dict[str, tuple[str, ...]]:
        """Return the columns of a part that pass through the outer statement, each with what it is called there."""
        part, outer = self._plan.parts[place], self._plan.outer
        found: dict[str, tuple[str, ...]] = {}
        for output, column in zip(outer.outputs, outer.columns, strict=False):
            for origin in output.origins:
                if origin.part == part.part.name:
                    name = part.query.shown[origin.column].name
                    found[name] = (*found.get(name, ()), column.name)
        return found

    def _with_receipt(self, table: pa.Table, results: Sequence[Result]) -> Result:
        """Return the answer with the receipt of all parts."""
        plan = self._plan
        receipts = [
            renamed(one.receipt, self._passing(place), hidden_texts(self._statements[place].tree))
            for place, one in enumerate(results)
            if one.receipt
        ]
        if len(receipts) == 1:
            (receipt,) = receipts
        else:
            terms = {unit: self._terms(unit, receipts) for unit in plan.requests}
            parts = [
                ReleasedPart(
                    Part.of("", written_out(self._statements[place].tree)).sql,
                    receipt,
                    planned.unit,
                    self._numbers.get(planned.part.name, ()),
                )
                for place, (receipt, planned) in enumerate(zip(receipts, plan.parts, strict=True))
            ]
            name = hashlib.sha256("\n".join(sorted(one.query_hash for one in receipts)).encode()).hexdigest()
            passed = {plan.outer.columns[place].name for place in plan.outer.numbers}
            receipt = composed_receipt(parts, terms, name, passed)
        receipt = with_outer_notes(
            receipt,
            plan.outer.computed,
            plan.composition.frequencies,
            leaves_out=plan.outer.leaves_out,
            picks=plan.outer.picks,
        )
        asked = next(iter(plan.requests.values()))
        by_epsilon = asked.rho is None or any(one.amount == "epsilon" for one in plan.requests.values())
        receipt = replace(receipt, asked_by="epsilon" if by_epsilon else "rho")
        standing = None
        if len(plan.requests) == 1:
            reader = None if plan.reader.name == CURATOR else plan.reader.name
            standing = partial(standing_of, plan.state, receipt.unit, receipt.query_hash, reader)
        shown = table.select(list(range(len(plan.outer.columns))))
        return Result(shown, receipt, self._layout(table, results), standing)

    def _terms(self, unit: str, receipts: Sequence[Receipt]) -> UnitTerms:
        """Return the guarantee of all parts of a unit, as they are stored now."""
        plan, offers, caps = self._plan, [], dict[int, float]()
        for number, place in enumerate(plan.of_unit(unit)):
            part = plan.parts[place]
            query, state, cleared = self._runner.plan(self._statements[place], part.options, self._asks)
            offers.append(offered(query, state, cleared).offers)
            cap = receipts[place].most_rho
            if cap is not None:
                caps[number] = cap
        epsilon, delta = guarantee_together(plan.requests[unit], offers, caps)
        return UnitTerms(epsilon, delta, rho_counted_twice(offers))


@dataclass(frozen=True, slots=True)
class WithValues:
    """A private query in which public queries have become values.

    Attributes:
        runner: answers it.
        statement: the query with the values.
        options: those beside it.
        reader: who asks.

    """

    runner: Runner
    statement: SelectStatement
    options: Options
    reader: str

    @property
    def columns(self) -> tuple[OutputColumn, ...]:
        """The columns of the answer."""
        return self.runner.described(self.statement, self.options, self.reader)

    def answer(self, timeout_seconds: float | None) -> Result:
        """Answer the query."""
        return self.runner.answer(self.statement, self.options, self.reader, timeout_seconds)

    def explained(self) -> Result:
        """Return the plan of the query; reads and spends nothing."""
        return self.runner.explained(self.statement, self.options, self.reader)
