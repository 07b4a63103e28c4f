"""Plans and trial answers under bounds that are not declared, for the curator who compares bounds.

Each is made on a state in memory with a policy of its own. So nothing is charged or stored, and no stored answer is
used. A trial answer draws noise as any answer does, so that AUTO chooses as it would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import Engine, Sandbox
from dpsql.features.kinds import kind_of
from dpsql.mechanism.registry import histogram_of
from dpsql.model.estimates import LinearValue
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.plan.environment.policy_view import SchemaView
from dpsql.receipts.offer_receipt import column_receipts
from dpsql.receipts.result import Result
from dpsql.release.bound_errors import Noise
from dpsql.release.offer import current, shown_threshold
from dpsql.release.raw_groups import read_bounded
from dpsql.session.declarations.arguments import StateAccess
from dpsql.session.plan_cache import PlanCache
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import Domain, Policy, State

_RHO_NANO, _DELTA_UNITS = 2**62, 2**99
"""The budget of a trial: more than its question costs."""

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Terms:
    """Bounds of a table that a plan is made under.

    Attributes:
        max_groups, max_rows: of a unit; None if they are not declared.
        values: the bounds of columns; a column without an entry has none.

    """

    max_groups: int | None = None
    max_rows: int | None = None
    values: tuple[tuple[str, Bounds], ...] = ()

    def on(self, policy: Policy, table: str) -> Policy:
        """Return the policy with these bounds of a table in place of all that it has."""
        bounds = dict(self.values)
        tables = tuple(
            replace(
                one,
                max_groups=self.max_groups,
                max_rows_per_group=self.max_rows,
                max_rows_norm=None,
                max_rows_per_unit=None,
            )
            if one.table == table
            else one
            for one in policy.tables
        )
        own = {one.column: replace(one, bounds=None) for one in policy.domains if one.table == table}
        own |= {name: replace(own.get(name, Domain(table, name)), bounds=ends) for name, ends in bounds.items()}
        others = tuple(one for one in policy.domains if one.table != table)
        return replace(policy, tables=tables, domains=(*others, *own.values()))


class Runner(Protocol):
    """A statement runner on the state of a trial."""

    sandbox: Sandbox

    def plan(
        self,
        statement: SelectStatement,
        options: Mapping[str, object],
        reader: str,
        *,
        plans: PlanCache | None = None,
    ) -> tuple[PrivateQuery, State, Reader]:
        """Plan a SELECT."""

    def answer(
        self,
        statement: SelectStatement,
        options: Mapping[str, object],
        reader: str,
        timeout_seconds: float | None,
    ) -> Result:
        """Answer a SELECT."""


class MakeRunner(Protocol):
    """A way to make runners."""

    def __call__(self, access: StateAccess, engine: Engine, *, logs_changes: bool) -> Runner:
        """Return a runner on a state."""


@dataclass(slots=True)
class _Trial:
    """The state of a trial, whose policy is given.

    Attributes:
        state: a state in memory that holds a budget and nothing else.
        policy: what is declared in the trial.

    """

    state: State
    policy: Policy

    def read(self) -> State:
        """Return the state under the policy."""
        return self.state.with_terms(lambda _: self.policy)

    def write(self) -> State:
        """Return the state under the policy."""
        return self.read()


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """The numbers of an answer before and after bounds.

    Attributes:
        exact: the bounded numbers of the shown groups without noise.
        noise: that of the number; None if AUTO found no bounds.

    """

    exact: Mapping[str, float]
    noise: Noise | None


@dataclass(frozen=True, slots=True)
class BoundPlans:
    """Plans and trial answers of questions about one table.

    Attributes:
        runner_on: makes a runner.
        engine: the curator's database.
        policy: what is declared.
        table: identity of the table.
        options: the level of the questions.
        level_words: the level in words.

    """

    runner_on: MakeRunner
    engine: Engine
    policy: Policy
    table: str
    options: Mapping[str, object]
    level_words: str

    @contextlib.contextmanager
    def trial(self) -> Iterator[Trial]:
        """Yield a trial: what it answers is stored until its end, and nowhere else."""
        protected = self.policy.protected_table(self.table)
        unit = self.policy.declared_unit(protected.unit if protected else "")
        with State.open(None, create=True) as state:
            state.declare_unit(replace(unit, rho_budget=_RHO_NANO, delta_threshold=_DELTA_UNITS))
            access = _Trial(state, self.policy)
            runner = self.runner_on(access, self.engine, logs_changes=False)
            try:
                yield Trial(self, access, runner)
            finally:
                runner.sandbox.close()


@dataclass(frozen=True, slots=True)
class Trial:
    """A state in memory on which questions are planned and answered."""

    _plans: BoundPlans
    _access: _Trial
    _runner: Runner

    def frame(self, text: str, terms: Terms) -> tuple[FrameQuery, pa.Table | None]:
        """Return the first part of a query under bounds, and its public keys."""
        query, state, _ = self._planned(text, terms)
        frame, public = query.first.frame, query.first.frame.public_keys
        view = SchemaView(state.policy(), self._plans.engine, self._runner.sandbox)
        listed = view.public_key_table(public, [key.type for key in frame.keys]) if public else None
        return query.first, listed

    def noise(self, text: str, terms: Terms) -> Noise:
        """Return the noise of a question for one number under bounds that leave nothing to AUTO."""
        query, state, reader = self._planned(text, terms)
        query = query.mapped(lambda part: current(part, state, reader))
        (offer,) = kind_of(query).offers(query, state, reader)
        (column,) = column_receipts(offer.query, offer.histogram, offer.noise)
        threshold = shown_threshold(query.first.frame, offer.presence.tau, query.first.request.min_units)
        return Noise(column.sigma or 0.0, offer.histogram.measure, threshold, offer.noise[PRESENCE])

    def answered(self, text: str, terms: Terms | None) -> TrialAnswer:
        """Answer a question for one number under bounds, of which AUTO finds those that are missing.

        Args:
            text: a SELECT with keys and one number.
            terms: the bounds; None for those that are declared.

        """
        statement = self._ready(text, terms)
        answer = self._runner.answer(statement, self._plans.options, CURATOR, None)
        query, *_ = self._runner.plan(statement, self._plans.options, CURATOR, plans=PlanCache())
        receipts = answer.receipt.columns if answer.receipt else ()
        frame, (estimate,) = query.first.frame, query.first.estimates
        if not (receipts and isinstance(estimate.value, LinearValue)):
            return TrialAnswer({}, None)
        linear = estimate.value.linear
        shown = answer.arrow().select(range(len(frame.keys))).rename_columns(frame.key_columns)
        exact = read_bounded(self._plans.engine, frame, linear.statistic, linear.centre, shown)
        sigma = receipts[0].sigma
        return TrialAnswer(exact, None if sigma is None else Noise(sigma, histogram_of(frame).measure))

    def _planned(self, text: str, terms: Terms) -> tuple[PrivateQuery, State, Reader]:
        """Plan a question under bounds."""
        return self._runner.plan(self._ready(text, terms), self._plans.options, CURATOR, plans=PlanCache())

    def _ready(self, text: str, terms: Terms | None) -> SelectStatement:
        """Declare bounds in the trial, and return the statement of a text."""
        policy = self._plans.policy
        self._access.policy = terms.on(policy, self._plans.table) if terms else policy
        statement = read_statement(text)
        if not isinstance(statement, SelectStatement):
            raise AssertionError("a question about bounds is a SELECT")
        return statement
