"""Plans of texts that were asked before, used again while nothing that they were read from has changed.

A plan is a function of text, options, policy, settings, schemas and the clock. Policy and settings are compared as they
are; of the schemas a plan keeps what it asked and what was answered, and asks again. What depends on the clock, or on a
moment in the past, is planned each time. A reader meets their own plans alone, and only their own questions push these
out, so that no time to plan tells which texts others asked. Calibrations are kept for the process: the time tells at
which levels others asked (docs/time-and-failure.md).
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import cast

from dpsql.errors import DpsqlError
from dpsql.mechanism.registry import choose
from dpsql.model.environment import Environment, Schemas
from dpsql.model.private_query import PrivateQuery
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement

_MOST_PLANS = 64
"""For each reader."""
_LONGEST_QUESTION = 4_000
"""In letters; a plan takes some hundred times as many bytes."""
_PLAIN = (str, int, float, bool)
"""Types of options that are the same where they are equal: what is of a type derived from these may be anything."""

_ASKED_AGAIN = frozenset(
    {
        "resolve",
        "identify",
        "is_base_table",
        "view_text",
        "unique_columns",
        "most_matches",
        "value_bounds",
        "public_rows",
        "public_keys",
        "keys_of_rows",
        "keeps_order",
        "has_collation",
    }
)
"""What is asked of the schemas again before a plan is used again."""
_FIXED = frozenset({"describe", "bind_after", "has_cast", "failed_conversions"})
"""What follows from its arguments and DuckDB's version alone."""
_ASKED_ONCE = frozenset({"unique_within"})
"""Methods that only tell that an answer would have no groups: a plan from before a constraint stays in use."""

Answer = tuple[str, tuple[object, ...], object]
"""A method of the schemas, what it was given, and what it returned."""


@dataclass(slots=True)
class _Witness:
    """Schemas and clock as they are for one plan, with what they answered.

    Attributes:
        outside: what they are of.
        answers: each question that can be asked again, with its arguments, and what was answered.
        lasts: whether nothing else was asked, and nothing refused: neither the time, nor what was at another time, nor
            places of public keys, which may be many.

    """

    outside: Environment
    answers: list[Answer] = field(default_factory=list)
    lasts: bool = True

    def clock(self) -> dt.datetime:
        """The time, on which no plan that lasts depends."""
        self.lasts = False
        return self.outside.clock()

    def __getattr__(self, name: str) -> Callable[..., object]:
        method: Callable[..., object] = getattr(self.outside.schemas, name)

        def ask(*arguments: object) -> object:
            lasted, self.lasts = self.lasts, False
            answer = method(*arguments)
            self.answers.append((name, arguments, answer))
            self.lasts = lasted and name in _ASKED_AGAIN
            return answer

        return method if name in _FIXED | _ASKED_ONCE else ask


@dataclass(frozen=True, slots=True)
class _KeptPlan:
    """A plan with what it was read from."""

    query: PrivateQuery
    outside: Environment
    answers: list[Answer]

    def holds(self, outside: Environment) -> bool:
        """Whether the text would be planned so now."""
        if (self.outside.policy, self.outside.settings) != (outside.policy, outside.settings):
            return False
        with contextlib.suppress(DpsqlError):
            return all(getattr(outside.schemas, name)(*given) == answer for name, given, answer in self.answers)
        return False


def _question(statement: SelectStatement, options: Mapping[str, object]) -> tuple[object, ...] | None:
    """What a plan is kept under; None where the text is long, or an option may not be what it looks like."""
    texts = [statement.text, *statement.parameters, *(value for value in options.values() if isinstance(value, str))]
    if sum(map(len, texts)) > _LONGEST_QUESTION or any(type(value) not in _PLAIN for value in options.values()):
        return None
    # 1 and True are equal, and are no equal options
    return statement.text, statement.parameters, *((name, type(value), value) for name, value in options.items())


class PlanCache:
    """The plans that each reader used last. Threads may share it."""

    def __init__(self) -> None:
        self._readers: defaultdict[str, OrderedDict[object, _KeptPlan]] = defaultdict(OrderedDict)
        self._lock = Lock()

    def plan(
        self, statement: SelectStatement, options: Mapping[str, object], outside: Environment, reader: str
    ) -> PrivateQuery:
        """The query of a SELECT for a reader, on the frames with the least noise unless AUTO is to choose first.

        Raises:
            DpsqlError: as `plan_query`.

        """
        question = _question(statement, options)
        with self._lock:
            kept = self._readers[reader].pop(question, None)
        if kept is None or not kept.holds(outside):
            witness = _Witness(outside)
            witnessed = replace(outside, schemas=cast("Schemas", witness), clock=witness.clock)
            query = plan_query(statement, witnessed, options)
            kept = _KeptPlan(query if query.first.auto else choose(query), outside, witness.answers)
            if question is None or not witness.lasts:
                return kept.query
        with self._lock:
            plans = self._readers[reader]
            plans[question] = kept
            if len(plans) > _MOST_PLANS:
                plans.popitem(last=False)
        return kept.query
