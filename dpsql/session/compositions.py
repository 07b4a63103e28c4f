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
from dpsql.errors import DpsqlError
from dpsql.features.auto_outcomes import price_of_outcomes
from dpsql.features.private_parts import (
    OfferedPart,
    first_items,
    guarantee_together,
    offered,
    price_together,
    require_part,
)
from dpsql.model.environment import SOURCE_ROWS
from dpsql.model.private_query import OutputColumn
from dpsql.receipts.composed_receipt import ReleasedPart, UnitTerms, composed_receipt
from dpsql.receipts.receipt import Receipt
from dpsql.receipts.result import Result
from dpsql.session.around_answers import computed
from dpsql.session.budget_table import standing_of
from dpsql.session.composition_plan import ComposedPlan, Options, Runner, composed_plan
from dpsql.session.lookups import text_table
from dpsql.sql.statements import SelectStatement
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Charged, ChargeItem


class Composed:
    """A text with several parts, planned for one reader."""

    def __init__(self, runner: Runner, plan: ComposedPlan, reader: str) -> None:
        self._runner = runner
        self._plan = plan
        self._asks = reader

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
        return None if plan is None else cls(runner, plan, reader)

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
        public = self._public_rows()
        parts = self._require()
        # a statistic that two parts read is drawn at its higher level first
        order = sorted(range(len(parts)), key=lambda place: -_presence_nano(parts[place]))
        ordered = [parts[place] for place in order]
        items = {order[place]: found for place, found in first_items(ordered).items()}
        charged = self._charge(parts, items)
        for place in order:
            part, paid = plan.parts[place], charged.part(items.get(place, ()))
            results[place] = self._runner.answer_once(part.statement, part.options, self._asks, timeout_seconds, paid)
        tables = [results[place].arrow().rename_columns(part.names) for place, part in enumerate(plan.parts)]
        table = self._computed([*tables, *public])
        if not results:
            return Result(table)
        return self._with_receipt(table, [results[place] for place in range(len(plan.parts))])

    def explained(self) -> Result:
        """Return the plan of each part, and the price of all; reads and spends nothing."""
        plan, rows = self._plan, list[tuple[str, str, str]]()
        parts = self._offered()
        for number, part in enumerate(plan.parts, start=1):
            table = self._runner.explained(part.statement, part.options, self._asks)
            rows += [(f"part {number}: {section}", name, value) for section, name, value in table.fetchall()]
        for unit in plan.requests:
            items = price_together([part for part in parts if part.unit == unit])
            rho = sum(item.rho_nano for item in items) / NANO_PER_RHO
            delta = sum(item.delta_units for item in items) / DELTA_UNITS_PER_ONE
            rows += [(f"all parts of unit {unit}", "rho", f"{rho:.9g}")]
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
            price = price_together([part for part in parts if part.unit == unit])
            plan.state.ledger.require(unit, price, plan.reader.name)
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
        return plan.state.ledger.charge(unit, due, plan.reader.name, plan.reader.planned_at, dict(others))

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
            return [engine.copied(one) for one in schemas]

    def _computed(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return what the outer statement computes."""
        rows = {f"{SOURCE_ROWS}{place}": table for place, table in enumerate(tables)}
        return computed(self._plan.outer.sql, rows, self._runner.sandbox, "the answers are")

    def _with_receipt(self, table: pa.Table, results: Sequence[Result]) -> Result:
        """Return the answer with the receipt of all parts."""
        plan = self._plan
        receipts = [one.receipt for one in results if one.receipt]
        if len(receipts) == 1:
            receipt = receipts[0].of_computed
        else:
            terms = {unit: self._terms(unit, receipts) for unit in plan.requests}
            texts = [planned.part.sql for planned in plan.parts]
            parts = [
                ReleasedPart(text, one, planned.unit)
                for text, one, planned in zip(texts, receipts, plan.parts, strict=True)
            ]
            name = hashlib.sha256("\n".join(sorted(one.query_hash for one in receipts)).encode()).hexdigest()
            receipt = composed_receipt(parts, terms, name)
        asked = next(iter(plan.requests.values()))
        receipt = replace(receipt, asked_by="epsilon" if asked.rho is None else "rho")
        standing = None
        if len(plan.requests) == 1:
            reader = None if plan.reader.name == CURATOR else plan.reader.name
            standing = partial(standing_of, plan.state, receipt.unit, receipt.query_hash, reader)
        return Result(table, receipt, None, standing)

    def _terms(self, unit: str, receipts: Sequence[Receipt]) -> UnitTerms:
        """Return the guarantee of all parts of a unit, as they are stored now."""
        plan, offers, caps = self._plan, [], dict[int, float]()
        for number, place in enumerate(plan.of_unit(unit)):
            part = plan.parts[place]
            query, state, cleared = self._runner.plan(part.statement, part.options, self._asks)
            offers.append(offered(query, state, cleared).offers)
            cap = receipts[place].most_rho
            if cap is not None:
                caps[number] = cap
        return UnitTerms(*guarantee_together(plan.requests[unit], offers, caps))


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


def _presence_nano(part: OfferedPart) -> int:
    return part.offers[0].presence.level.rho_nano if part.offers else 0
