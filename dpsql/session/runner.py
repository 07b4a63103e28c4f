"""The runner behind every door: it reads statements, plans, and answers, for the curator and for analysts.

`answer` runs steps 4 to 8 for one planned query: its stages, each offer, charge, exact values, points; then the finish.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import Definitions, Engine, Sandbox, redefined, warn_if_untested
from dpsql.errors import (
    AccessError,
    DpsqlError,
    ParseError,
    PolicyError,
    QueryError,
)
from dpsql.features.auto import PlanAgain, bound, prepare_histograms
from dpsql.features.auto_outcomes import price_of_outcomes
from dpsql.features.kinds import kind_of
from dpsql.model.environment import Environment
from dpsql.model.identity import base_hash, query_hash
from dpsql.model.private_query import FoundBounds, OutputColumn, PrivateQuery
from dpsql.noise.entropy import NoiseSource, SystemEntropy
from dpsql.plan.environment.policy_view import environment
from dpsql.plan.finish import NOISY, finish_sql
from dpsql.plan.outer_query import RESULT
from dpsql.plan.planner import plan_query
from dpsql.receipts.layout import layout_of
from dpsql.receipts.remarks import with_clauses
from dpsql.receipts.result import Result
from dpsql.release.changed_tables import order_sentences, tell_curator
from dpsql.release.offer import current
from dpsql.release.runtime import Claim, Inquiry, Runtime
from dpsql.session.asked_level import Planned, in_asked_words
from dpsql.session.budget_table import asked_budget, standing_of
from dpsql.session.call_arguments import asked_query, wanted
from dpsql.session.chosen import Chosen
from dpsql.session.declare import StateAccess, declare
from dpsql.session.explain import describe_table, explain_table
from dpsql.session.lookups import cascade_table, policy_table, releases_table, text_table
from dpsql.session.plan_cache import PlanCache
from dpsql.session.tables import AskableTables
from dpsql.sql.show import DescribeTable, ShowStatement, ShowTables
from dpsql.sql.statements import DECLARATIONS, FOR_ANALYSTS, FunctionCall, Scalar, SelectStatement, read_statement
from dpsql.state import Charged, State

if TYPE_CHECKING:
    from dpsql.session.compositions import Composed, WithValues

logger = logging.getLogger("dpsql")

Parameters = Sequence[Scalar] | Mapping[str, Scalar] | None


class StatementRunner:
    """What curator and analysts share: reading statements, planning, answering."""

    def __init__(self, access: StateAccess, engine: Engine, *, logs_changes: bool = True) -> None:
        warn_if_untested()
        self.access = access
        self.engine = engine
        self.sandbox = Sandbox()
        self.noise_source = NoiseSource(SystemEntropy())
        self._plans = PlanCache()
        self._logs_changes = logs_changes

    def plan(
        self,
        statement: SelectStatement,
        options: Mapping[str, object],
        reader: str,
        *,
        plans: PlanCache | None = None,
        engine: Engine | None = None,
        has_first_round: bool = False,
    ) -> tuple[PrivateQuery, State, Reader]:
        """Plan a SELECT as it would be answered for a reader now.

        Args:
            statement: the text.
            options: those beside the text.
            reader: who asks.
            plans: keeps plans instead of the session's own cache.
            engine: reads the catalog instead of the session's own engine.
            has_first_round: whether a first round of key selection was drawn for this question.

        Returns:
            The plan, the state that the answer would be written to, and the reader with their clearance.

        """
        state = self.access.read()
        policy = state.policy()
        cleared = Reader.of(reader, policy)
        outside = environment(policy, engine or self.engine, self.sandbox, cleared, state.history)
        query = (plans or self._plans).plan(statement, options, outside, reader)
        query = kind_of(query).capped(query)
        if query.first.auto:
            choose = partial(bound, query, _planner(statement, outside, options), state, cleared)
            query = choose()
            if not query.first.is_open:
                from dpsql.features.known_keys import with_key_count  # noqa: PLC0415 — few queries need it

                query = with_key_count(query, choose, state, cleared, has_first_round=has_first_round)
        if query.whole_request.target is not None:
            from dpsql.features.half_width import at_target  # noqa: PLC0415 — few queries need it

            query = at_target(kind_of(query), query)
        return query, state, cleared

    def _plan_to_read(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str, *, has_first_round: bool = False
    ) -> tuple[PrivateQuery, State, Reader, Definitions]:
        """Plan a SELECT in one snapshot of the catalog; return also the definitions of its tables in the snapshot."""
        with self.engine.snapshot() as engine:
            query, state, cleared = self.plan(
                statement, options, reader, engine=engine, has_first_round=has_first_round
            )
            tables = {table for part in query.parts for table, _ in part.frame.rows.table_versions}
            public = {one.table for one in state.policy().public}
            return query, state, cleared, engine.definitions(tables, tables & public)

    @contextlib.contextmanager
    def _naming_changes(self, defined: Definitions) -> Iterator[None]:
        """Replace a refusal of the query, if its tables were defined anew meanwhile: something may be charged."""
        try:
            yield
        except QueryError as error:
            refused = error
        else:
            return
        # outside the handler, so that no earlier error travels along
        raise redefined() if self.engine.definitions(defined.tables, defined.sized) != defined else refused

    def planner(
        self, statement: SelectStatement, options: Mapping[str, object], state: State, cleared: Reader
    ) -> PlanAgain:
        """Return the function that plans a SELECT by bounds that AUTO finds."""
        outside = environment(state.policy(), self.engine, self.sandbox, cleared, state.history)
        return _planner(statement, outside, options)

    def runtime(self, state: State) -> Runtime:
        """Return what the steps of an answer run on."""
        return Runtime(state, self.engine, self.sandbox, self.noise_source)

    def answerable(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str
    ) -> tuple[PrivateQuery, State, Reader]:
        """Plan a SELECT that the database can run; one that it cannot is refused as it would be if it ran."""
        try:
            query, state, cleared = self.plan(statement, options, reader)
            require_runs(query, self.runtime(state), cleared)
            if query.first.is_open:
                price_of_outcomes(query, self.planner(statement, options, state, cleared), state, cleared)
        except DpsqlError as error:
            refused = error
        else:
            return query, state, cleared
        raise self._in_asked_words(refused, statement, options, reader)

    def asked(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str
    ) -> tuple[PrivateQuery, State, Reader] | Composed | WithValues:
        """Plan a SELECT as `answerable`, or by its parts if it is computed from several answers or public tables."""
        try:
            return self.answerable(statement, options, reader)
        except DpsqlError as error:
            refused = error
        if composed := self.composed(statement, options, reader, refused):
            return composed
        raise refused

    def described(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str
    ) -> tuple[OutputColumn, ...]:
        """Return the columns of an answer; reads and spends nothing."""
        found = self.asked(statement, options, reader)
        return found[0].shown if isinstance(found, tuple) else found.columns

    def explained(self, statement: SelectStatement, options: Mapping[str, object], reader: str) -> Result:
        """Return the plan of a SELECT, with the constraint that leaves nothing to bound if there is one."""
        found = self.asked(statement, options, reader)
        if not isinstance(found, tuple):
            return found.explained()
        query, state, cleared = found
        constraint = self.engine.unit_constraint(query.first.frame.rows_sql.stored_unit)
        return explain_table(query, state, cleared, constraint, self.planner(statement, options, state, cleared))

    def answer(
        self,
        statement: SelectStatement,
        options: Mapping[str, object],
        reader: str,
        timeout_seconds: float | None,
    ) -> Result:
        """Answer a SELECT."""
        try:
            return self.answer_once(statement, options, reader, timeout_seconds)
        except DpsqlError as error:
            refused = error
        # outside the handler, so that no earlier error travels along
        if composed := self.composed(statement, options, reader, refused):
            return composed.answer(timeout_seconds)
        raise self._in_asked_words(refused, statement, options, reader)

    def composed(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str, refused: DpsqlError
    ) -> Composed | WithValues | None:
        """Return a refused text by its parts, if it is computed from several answers or public tables."""
        if statement.is_part or not isinstance(refused, QueryError):
            return None
        from dpsql.session.compositions import Composed  # noqa: PLC0415 — few queries need it

        return Composed.of(self, statement, options, reader, refused)

    def _in_asked_words(
        self, error: DpsqlError, statement: SelectStatement, options: Mapping[str, object], reader: str
    ) -> DpsqlError:
        """Return a refusal of a level in the words of the question, and any other error as it is."""
        if not error.asks_too_much:
            return error

        def planned(text: SelectStatement, beside: Mapping[str, object]) -> Planned:
            # a text with another level is another text to a cache
            query, state, cleared = self.plan(text, beside, reader, plans=PlanCache())
            return Planned(query, state, cleared, self.planner(text, beside, state, cleared))

        return in_asked_words(error, planned, statement, options)

    def answer_once(
        self,
        statement: SelectStatement,
        options: Mapping[str, object],
        reader: str,
        timeout_seconds: float | None,
        paid: Charged | None = None,
    ) -> Result:
        """Answer a SELECT that is a private query; ``paid`` was charged for it before, together with others."""
        query, state, cleared, defined = self._plan_to_read(statement, options, reader)
        if state.age:
            state.age.require_own_database()
        logger.info("private query %s for %s", query_hash(query)[:12], reader)
        engine = self.engine.while_defined(defined)
        runtime = Runtime(state, engine, self.sandbox, self.noise_source, logs_changes=self._logs_changes)
        with runtime.until_end, self._naming_changes(defined):
            chosen, claim = Chosen(query, cleared, first_charge=paid or Charged()), None
            if query.first.auto:
                from dpsql.session.auto_claims import claim_of_auto  # noqa: PLC0415 — few queries need it
                from dpsql.session.auto_plans import Replan, chosen_plan  # noqa: PLC0415 — few queries need it

                again = self.planner(statement, options, state, cleared)
                plan = partial(self._plan_to_read, statement, options, reader)
                chosen = chosen_plan(chosen, again, Replan(plan, defined), runtime, timeout_seconds)
                query = chosen.query
                claim = claim_of_auto(query, statement, options, reader)
            if query.first.finish.lost_orders and self._logs_changes:
                tell_curator(reader, order_sentences(query.first.finish.lost_orders, self.engine))
            return answer(chosen, runtime, timeout_seconds=timeout_seconds, claim=claim)

    def run(
        self,
        text: str,
        parameters: Parameters,
        options: Mapping[str, object],
        *,
        reader: str,
        timeout_seconds: float | None,
    ) -> Result:
        """Run one statement for a reader; what only a curator may do is refused for anyone else."""
        if timeout_seconds is not None and not (isinstance(timeout_seconds, int | float) and timeout_seconds > 0):
            raise PolicyError("timeout_seconds takes a positive number")
        statement = read_statement(text, parameters)
        if reader != CURATOR:
            # whoever asks is known by one name, however it was written
            reader = Reader.of(reader, self.access.read().policy()).name
        if isinstance(statement, SelectStatement):
            return self.answer(statement, options, reader, timeout_seconds)
        if isinstance(statement, ShowTables | DescribeTable):
            return self._shown(statement, options, reader)
        if options:
            raise ParseError(f"options go inside {statement.name}(…)", statement.span)
        if reader != CURATOR and statement.name not in FOR_ANALYSTS:
            raise AccessError(
                f"{statement.name} is for the curator; analysts have SELECT, SHOW TABLES, DESCRIBE, "
                f"{', '.join(FOR_ANALYSTS)}"
            )
        return self._call(statement, reader, timeout_seconds)

    def _call(self, call: FunctionCall, reader: str, timeout_seconds: float | None) -> Result:
        match call.name:
            case name if name in DECLARATIONS:
                # one row that says what now holds
                told = declare(call, self.access, self.engine, tells_of_rows=self._logs_changes)
                return text_table(("declared",), [(told,)])
            case "dp_query":
                return self.answer(*asked_query(call), reader, timeout_seconds)
            case "dp_explain":
                return self.explained(*asked_query(call), reader)
            case "dp_describe":
                return describe_table(self.described(*asked_query(call), reader))
            case "dp_budget":
                return asked_budget(call, reader, self.access.read)
            case "dp_check":
                from dpsql.session.bound_check import check_bounds  # noqa: PLC0415 — few statements need it

                return check_bounds(call, self.access, self.engine, StatementRunner)
        asked = wanted(call, call.named)
        state = self.access.read()
        match call.name:
            case "dp_cascade":
                return cascade_table(state, asked)
            case "dp_policy":
                return policy_table(state)
            case "dp_tables":
                return AskableTables(state.policy(), self.engine).columns()
            case _:
                return releases_table(state, reader)

    def _shown(self, statement: ShowStatement, options: Mapping[str, object], reader: str) -> Result:
        """Answer SHOW TABLES or DESCRIBE."""
        if options:
            raise ParseError(f"SHOW TABLES and DESCRIBE take no options, and {next(iter(options))} is one")
        state = self.access.read()
        policy = state.policy()
        outside = partial(environment, policy, self.engine, self.sandbox, Reader.of(reader, policy), state.history)
        return AskableTables(policy, self.engine).shown(statement, outside)


def _planner(statement: SelectStatement, outside: Environment, options: Mapping[str, object]) -> PlanAgain:
    """Return the function that plans a SELECT by bounds that AUTO finds."""

    def planned(found: FoundBounds) -> PrivateQuery:
        query = plan_query(statement, outside, options, found)
        capped: PrivateQuery = kind_of(query).capped(query)
        return capped

    return planned


def answer(chosen: Chosen, runtime: Runtime, *, timeout_seconds: float | None, claim: Claim | None = None) -> Result:
    """Answer a planned query.

    Args:
        chosen: the plan, with nothing left open that AUTO is to choose, and what was charged for the choice.
        runtime: state, engine, sandbox and source of noise.
        timeout_seconds: limit on reading raw data, for each grouping set; the charge stays when it runs out.
        claim: the most that a question with AUTO may be charged; None without AUTO.

    Raises:
        AccessError, CalibrationError, BudgetError: nothing was charged or read.
        ReleaseError: the list of public keys changed since the plan, or the rows that it needs are gone; nothing was
            charged.
        EngineError: the charge stays and pays for asking again.
        ReleaseError: what stands around a private query fails on its answer, which is charged and stored.

    """
    query, reader = chosen.query, chosen.reader
    with runtime.state.locks.exclusive(*(base_hash(part.frame) for part in query.parts)):
        query = query.mapped(lambda part: current(part, runtime.state, reader))
        inquiry = Inquiry(
            reader, query_hash(query), timeout_seconds, chosen.auto_charge, chosen.first_charge, claim=claim
        )
        noisy, receipt = kind_of(query).release(query, runtime, inquiry)
    finished = runtime.sandbox.run(finish_sql(query), {NOISY: noisy})
    # beside the columns of the answer stand the ends of intervals
    table = finished.select(list(range(len(query.first.finish.columns))))
    if query.after:
        from dpsql.session.around_answers import computed, told_around  # noqa: PLC0415 — few queries need it

        for step in query.after:
            table = computed(step.sql, {RESULT: table}, answers=1)
        receipt = told_around(receipt, query)
    if not table.num_rows:
        receipt = with_clauses(receipt, query, noisy.num_rows, finished.num_rows)
    if receipt.asked_by is None:
        receipt = replace(receipt, asked_by="epsilon" if query.whole_request.rho is None else receipt.amount)
    name = None if reader.name == CURATOR else reader.name
    standing = partial(standing_of, runtime.state, receipt.unit, receipt.query_hash, name)
    return Result(table, receipt, None if query.after else partial(layout_of, query, finished), standing)


def require_runs(query: PrivateQuery, runtime: Runtime, reader: Reader) -> None:
    """Refuse what `answer` would refuse because the database cannot run it, or its rows are gone; charges nothing.

    Raises:
        AccessError, CalibrationError, ReleaseError, SchemaError: as `answer`.

    """
    if query.first.is_open:
        prepare_histograms(query.first, runtime)
        kind_of(query).require_open_runs(query, runtime, reader)
        return
    query = query.mapped(lambda part: current(part, runtime.state, reader))
    kind_of(query).require_runs(query, runtime, reader)
