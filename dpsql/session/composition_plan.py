"""The plan of a text that is computed from several answers and public tables: its parts, their levels, what is around.

Each part is planned as if it was asked alone. A level of the whole text is divided among the parts of a unit.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dpsql.cascade.reader import Reader
from dpsql.engine import Engine, digest
from dpsql.errors import DpsqlError, ParseError, Refusal, SchemaError, UnsupportedQueryError
from dpsql.features.private_parts import (
    OfferedPart,
    divided,
    has_own_points,
    hides_keys,
    left_beside,
    release_order,
    served_now,
)
from dpsql.model.environment import Column, Environment
from dpsql.model.private_query import OPTION_NAMES, PrivateQuery, QueryOptions, Request
from dpsql.model.refusals import Refusals, refuse_combinations
from dpsql.plan.composition.outer import OuterStatement, Source, check_literals, read_outer
from dpsql.plan.composition.parts import Composition, CountedValues, Part, PublicTable, compose
from dpsql.plan.environment.policy_view import environment
from dpsql.session.part_runner import Options, Runner
from dpsql.session.scalar_values import PlannedScalar, planned_scalar
from dpsql.sql.column_names import distinct_names
from dpsql.sql.options import read_options
from dpsql.sql.statements import SelectStatement
from dpsql.state import State

_LEVELS = ("epsilon", "rho", "target_half_width", "target_relative_error")
_OF_LEVELS = (*_LEVELS, "delta", "max_rho", "max_epsilon", "confidence", "at_least", "method")
_OF_ALONE = {*_OF_LEVELS, "as_of", "max_groups_contributed"}
"""Options beside a query that only finds out if its keys are public."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A private query of a text.

    Attributes:
        part: the query as it stands in the text.
        statement: the query as a statement of its own.
        options: those beside it, with its share of the level.
        query: the plan.
        scalars: the numbers that its rows wait for.

    """

    part: Part
    statement: SelectStatement
    options: Options
    query: PrivateQuery
    scalars: tuple[PlannedScalar, ...] = ()

    @property
    def unit(self) -> str:
        """The privacy unit whose budget pays."""
        return self.query.first.frame.rows.unit

    @property
    def names(self) -> list[str]:
        """Names of its columns, made distinct."""
        return distinct_names([one.name for one in self.query.shown])


@dataclass(frozen=True, slots=True)
class ComposedPlan:
    """A text as it would be answered for a reader now.

    Attributes:
        composition: the text taken apart.
        parts: its private queries.
        sources: what the outer statement reads, the parts first.
        outer: the outer statement.
        requests: of all parts of a unit together, by units.
        state: policy, ledger and stored points.
        reader: who asks.

    """

    composition: Composition
    parts: tuple[PlannedPart, ...]
    sources: tuple[Source, ...]
    outer: OuterStatement
    requests: Mapping[str, Request]
    state: State
    reader: Reader

    def of_unit(self, unit: str) -> list[int]:
        """Return the places of the parts of a unit."""
        return [place for place, part in enumerate(self.parts) if part.unit == unit]


def composed_plan(
    runner: Runner, statement: SelectStatement, options: Options, reader: str, refused: DpsqlError
) -> ComposedPlan | SelectStatement | None:
    """Return the plan of a refused text by its parts.

    Args:
        runner: plans each part.
        statement: the text.
        options: those beside it.
        reader: who asks.
        refused: why the text is no private query by itself.

    Returns:
        The plan; a statement if the text is a private query once public queries in it have become values; or None if
        it is a private query as it stands.

    Raises:
        DpsqlError: the text cannot be taken apart, or a part is refused.

    """
    if not isinstance(refused, UnsupportedQueryError | SchemaError):
        return None
    state = runner.access.read()
    policy = state.policy()
    cleared = Reader.of(reader, policy)
    with runner.engine.snapshot() as engine:
        outside = environment(policy, engine, runner.sandbox, cleared, state.history)
        try:
            composition = compose(statement, outside)
        except ParseError:
            # a clause that nobody can write down was refused before
            composition = None
        if composition is None:
            return None
        if isinstance(composition, Part):
            return as_part(statement, composition)
        public = [_public(one) for one in composition.tables]
        planner = _Planner(runner, statement, reader, engine, outside, composition.tables)
        whole = planner.whole_options(composition, options)
        plans, requests = planner.plan_parts(composition.parts, whole)
        planner.check_values(composition.counted, plans)
        sources = [*(source_of(planned) for planned in plans), *public]
        outer = read_outer(composition.outer, sources, outside, planner.refusals)
        if plans:
            # what fails on a literal fails before the parts are paid for
            check_literals(composition.outer, sources, outside, planner.refusals)
    return ComposedPlan(composition, tuple(plans), tuple(sources), outer, requests, state, cleared)


def source_of(part: PlannedPart) -> Source:
    """Return a part as the outer statement reads it."""
    query, names = part.query, part.names
    columns = [Column(name, one.type, True) for name, one in zip(names, query.shown, strict=True)]
    keys = {f'"key_{place}"' for place in range(len(query.keys))}
    shown = () if query.after else query.first.finish.columns
    return Source(
        part.part.name,
        columns,
        frozenset(name for name, one in zip(names, shown, strict=False) if one.sql in keys),
        tuple(place for place, one in enumerate(shown) if one.estimate is not None),
    )


def _public(table: PublicTable) -> Source:
    """Return a public table as the outer statement reads it."""
    return Source(table.name, table.schema.columns, frozenset(one.name for one in table.schema.columns))


class _Planner:
    """Plans the parts of one text for one reader in one snapshot of the catalog."""

    def __init__(
        self,
        runner: Runner,
        statement: SelectStatement,
        reader: str,
        engine: Engine,
        outside: Environment,
        tables: Sequence[PublicTable],
    ) -> None:
        self._statement = statement
        self._public = [_public(one) for one in tables]
        schemas = {one.name: one.schema for one in tables}
        self._digest = functools.cache(lambda name: digest(*engine.copied([schemas[name]])))
        self._plan = partial(runner.plan, reader=reader, engine=engine)
        self._outside = outside
        self.refusals = Refusals(statement.text)

    def whole_options(self, composition: Composition, options: Options) -> QueryOptions:
        """Return the options of the whole text.

        Raises:
            UnsupportedQueryError: an option is wrong.

        """
        mechanisms = [mechanism.word for mechanism in self._outside.mechanisms]
        found = read_options(composition.hint, options, mechanisms, self.refusals)
        if composition.frequencies:
            things = {"mode or histogram", *found.given}
            refuse_combinations({"mode or histogram"}, things, composition.hint, self.refusals)
        self.refusals.raise_if_any()
        return found

    def plan_parts(self, parts: Sequence[Part], whole: QueryOptions) -> tuple[list[PlannedPart], dict[str, Request]]:
        """Return the plans of the parts with their shares of the level, and the request of each unit.

        Args:
            parts: the private queries.
            whole: options of the whole text.

        """
        given = _as_given(whole)
        plans = self._planned(parts, [_options_of(part, given) for part in parts])
        options = [plan.options for plan in plans]
        units = defaultdict[str, list[int]](list)
        for place, plan in enumerate(plans):
            units[plan.unit].append(place)
        requests = {unit: plans[places[0]].query.whole_request for unit, places in units.items()}
        for unit, places in units.items():
            shared = [place for place in places if not _own_level(parts[place])]
            own = [place for place in places if place not in shared]
            if (len(places) == 1 and shared) or not (shared or _has_level(whole)):
                continue
            asked = [plans[place].query.whole_request for place in shared]
            request = requests[unit] = _smallest(asked or [_request_of(whole, requests[unit])])
            others = [plans[place].query for place in own]
            if own and _has_level(whole):
                # thresholds of all parts share the delta of the whole text
                equal = divided(request, [plans[place].query for place in (*shared, *own)])
                for place, one in zip(own, equal[len(shared) :], strict=True):
                    if hides_keys(plans[place].query) and "delta" not in parts[place].options:
                        options[place] = {**options[place], "delta": one.delta}
                others = [plan.query for place, plan in enumerate(self._planned(parts, options)) if place in own]
            queries = [plans[place].query for place in shared]
            for place, share in zip(shared, self._shares(request, queries, others, whole), strict=True):
                options[place] = _with_level(options[place], share)
        if options != [plan.options for plan in plans]:
            plans = self._planned(parts, options)
        return plans, requests

    def check_values(self, counted: Sequence[CountedValues], plans: Sequence[PlannedPart]) -> None:
        """Refuse mode and histogram of values without public keys.

        Raises:
            UnsupportedQueryError: there are such values.

        """
        parts = {plan.part.name: plan for plan in plans}
        for one in counted:
            plan = parts[one.part]
            if plan.query.first.frame.has_private_keys:
                # groups may be private, the values may not
                named = {name: plan.options[name] for name in _OF_ALONE & set(plan.options)}
                alone, _, _ = self._plan(as_part(self._statement, one.alone), named)
                if alone.first.frame.has_private_keys:
                    one.counts.refuse(self.refusals)

    def _planned(self, parts: Sequence[Part], options: Sequence[Options]) -> list[PlannedPart]:
        """Return the plans of the parts, each after those whose numbers it waits for."""
        plans, served = list[PlannedPart](), dict[str, OfferedPart]()
        is_waited_for = waited_for(parts)
        for part, own in zip(parts, options, strict=True):
            sources = [*map(source_of, plans), *self._public]
            scalars = tuple(
                planned_scalar(one, served, sources, self._digest, self._outside, self.refusals) for one in part.waits
            )
            fillings = {one.scalar.name: one.filling(served) for one in scalars}
            statement = as_part(self._statement, part.filled(fillings) if fillings else part)
            query, state, cleared = self._plan_part(part, statement, own)
            plans.append(PlannedPart(part, statement, own, query, scalars))
            if part.name in is_waited_for:
                served[part.name] = served_now(query, state, cleared)
        first = [served[part.name] for part in parts if part.name in served and not part.waits]
        order = release_order(first, [True] * len(first))
        others = [served[part.name] for part in parts if part.name in served and part.waits]
        if not has_own_points([*(first[place] for place in order), *others]):
            self.refusals.refuse(
                "after",
                None,
                "two numbers that rows are compared with need the same statistics, each one of them at a higher level.",
                "Ask for one of them first, or give both the same rho in OPTIONS of their own.",
            )
        return plans

    def _plan_part(
        self, part: Part, statement: SelectStatement, options: Options
    ) -> tuple[PrivateQuery, State, Reader]:
        """Plan a part; a name that it does not know may be of the query around it, which is refused by name."""
        try:
            return self._plan(statement, options)
        except SchemaError as error:
            if not part.is_inside:
                raise
            refused = error
        hint = "A private query is answered once, and reads no column of the query around it: group by it, and join."
        message = str(refused).removeprefix(f"{refused.span}: ").removesuffix(refused.hint).rstrip()
        raise UnsupportedQueryError([Refusal("after", message, hint, refused.span)])

    def _shares(
        self, request: Request, queries: Sequence[PrivateQuery], others: Sequence[PrivateQuery], whole: QueryOptions
    ) -> list[dict[str, float]]:
        """Return the levels of the parts of one unit that name none, as options.

        Args:
            request: of all parts of the unit together.
            queries: the plans of these parts.
            others: the plans of parts that name a level.
            whole: options of the whole text.

        Raises:
            CalibrationError: the level is too small.
            UnsupportedQueryError: the other parts leave no level.

        """
        if whole.max_epsilon is not None and len(queries) > 1:
            self.refusals.refuse(
                "option", None, "max_epsilon of several private queries is not divided.", "Write max_rho."
            )
        if whole.target_half_width is not None or whole.target_relative_error is not None:
            return [{} if whole.max_rho is None else {"max_rho": whole.max_rho / len(queries)} for _ in queries]
        if not (others and _has_level(whole)):
            return [_level_of(share) for share in divided(request, queries)]
        left = left_beside(request, queries, others)
        for name, taken, of_all, is_spent in (
            (request.amount, left.taken_rho, left.rho, left.is_rho_spent),
            ("delta of thresholds", left.taken_delta, left.delta, left.is_delta_spent),
        ):
            if is_spent:
                self.refusals.refuse(
                    "option",
                    None,
                    f"private queries inside have levels of their own that add up to {name} {taken:.6g}, and the whole "
                    f"text has {name} {of_all:.6g} for all of them.",
                    "Ask for more, or leave the level of the whole text out and name one in each query.",
                )
        return [_level_of(share) for share in left.shares()]


def waited_for(parts: Sequence[Part]) -> set[str]:
    """Return the names of the parts that rows of others wait for."""
    return {name for part in parts for one in part.waits for name in one.reads}


def as_part(statement: SelectStatement, part: Part) -> SelectStatement:
    """Return a part of a text as a statement; plans are kept by its SQL, because the text has other parts."""
    return SelectStatement(part.tree, statement.text, (*statement.parameters, part.sql, part.given), is_part=True)


def _own_level(part: Part) -> bool:
    """Check that a part names its own level."""
    return bool(part.options & set(_LEVELS))


def _options_of(part: Part, whole: Options) -> Options:
    """Return the options beside a part: those of the whole text, as far as the part has none of its own."""
    named = part.options
    left_out = {*named, *(_OF_LEVELS if named & set(_LEVELS) else ())}
    return {name: value for name, value in whole.items() if name not in left_out}


def _has_level(whole: QueryOptions) -> bool:
    """Check that the whole text asks for a level."""
    return whole.rho is not None or whole.epsilon is not None


def _request_of(whole: QueryOptions, own: Request) -> Request:
    """Return the request of the whole text, if all parts have levels of their own."""
    if own.amount == "epsilon":
        # an epsilon stands where others have a rho
        return replace(own, rho=whole.epsilon, epsilon=None, target=None)
    delta = own.delta if whole.delta is None else whole.delta
    return replace(own, rho=whole.rho, epsilon=whole.epsilon, delta=delta, target=None)


def _level_of(share: Request) -> dict[str, float]:
    """Return the level of a part as options; a delta of 0 is that of a unit that has none."""
    return {share.amount: share.rho or 0.0} | ({"delta": share.delta} if share.delta else {})


def _with_level(options: Options, level: Mapping[str, float]) -> Options:
    """Return options with another level."""
    if not level:
        return options
    replaced = ("max_rho",) if "max_rho" in level else ("rho", "epsilon", "delta")
    return {**{name: value for name, value in options.items() if name not in replaced}, **level}


def _as_given(options: QueryOptions) -> dict[str, object]:
    """Return options as they are given beside a text."""
    found = {name: value for name in OPTION_NAMES if (value := getattr(options, name)) is not None}
    if isinstance(options.target_half_width, tuple):
        found["target_half_width"] = dict(options.target_half_width)
    return found


def _smallest(requests: Iterable[Request]) -> Request:
    """Return the request with the lowest level, where tables have different defaults."""
    return min(requests, key=lambda one: (one.epsilon if one.rho is None else one.rho) or 0.0)
