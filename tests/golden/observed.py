"""The private answers and plans of this process, as entries of a golden file, in the order of the questions.

Left out, because it follows noise or the clock:

- of an answer with AUTO everything but its plan and the first thing that it draws, and all later answers of its
  session: the noise of a histogram chooses the frame, and the next answers share statistics with it or do not;
- of an answer by relative error everything but its plan, and all later answers of its session: the noise of a step
  chooses the level of the next one, and that of a first release the keys and the noise of the second;
- of a text that asks for the clock, every hash: today's date is one of its constants.

Refusals, declarations and what is looked up have no entry: they have neither hash nor price.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import dpsql
from dpsql.cascade.reader import Reader
from dpsql.engine import Engine
from dpsql.features import auto
from dpsql.features.auto import PlanAgain
from dpsql.model.private_query import PrivateQuery
from dpsql.model.query_kinds import LargestWithin, WithinTarget
from dpsql.release.runtime import Runtime
from dpsql.session import auto_plans, explain, runner
from dpsql.session.chosen import Chosen
from dpsql.session.runner import StatementRunner
from dpsql.sql.statements import SelectStatement
from dpsql.state import Charged, State
from tests.golden.facts import Entry, of_answer, of_plan, without_hashes

_CLOCK = re.compile(r"\b(current_date|current_timestamp|now\(\)|today\(\))", re.IGNORECASE)


@contextmanager
def observed() -> Iterator[list[Entry]]:
    """Watch every statement runner from here on, and collect an entry for each answer and each explained plan."""
    watch = _Watch()
    with (
        mock.patch.object(StatementRunner, "plan", watch.planned),
        mock.patch.object(auto_plans, "release_histograms", watch.drawn),
        mock.patch.object(runner, "answer", watch.answered),
        mock.patch.object(runner, "explain_table", watch.explained),
    ):
        yield watch.seen


class _Watch:
    """The entries so far, with what the next one depends on.

    Attributes:
        seen: the entries.

    """

    def __init__(self) -> None:
        self.seen: list[Entry] = []
        # a session has one engine: those in which AUTO has chosen
        self._chosen: list[Engine] = []
        plan = StatementRunner.plan

        def planned(
            asked: StatementRunner,
            statement: SelectStatement,
            options: Mapping[str, object],
            reader: str,
            **named: Any,
        ) -> tuple[PrivateQuery, State, Reader]:
            self._asked = statement, asked.engine
            self._plan = plan(asked, statement, options, reader, **named)
            return self._plan

        self.planned = planned
        self._answer, self._draw, self._explain = runner.answer, auto.release_histograms, explain.explain_table

    def drawn(self, *arguments: Any) -> Charged:
        """Note the plan before AUTO draws, and that what follows in this session depends on noise."""
        with suppress(dpsql.DpsqlError):
            self._see(of_plan(*self._plan))
        self._chosen.append(self._asked[1])
        return self._draw(*arguments)

    def answered(self, chosen: Chosen, runtime: Runtime, **keywords: Any) -> dpsql.Result:
        """Note what an answer was and cost."""
        query = chosen.query
        if isinstance(query, WithinTarget | LargestWithin) and not self._has_chosen:
            with suppress(dpsql.DpsqlError):
                self._see(of_plan(*self._plan))
            self._chosen.append(self._asked[1])
        result = self._answer(chosen, runtime, **keywords)
        if any(part.auto for part in query.parts):
            self._chosen.append(self._asked[1])
        elif result.receipt is not None and not self._has_chosen:
            self._see(of_answer(query, result.receipt, runtime.state))
        return result

    def explained(
        self, query: PrivateQuery, state: State, reader: Reader, constraint: str, again: PlanAgain
    ) -> dpsql.Result:
        """Note the plan that is shown."""
        if not self._has_chosen:
            self._see(of_plan(query, state, reader))
        return self._explain(query, state, reader, constraint, again)

    @property
    def _has_chosen(self) -> bool:
        return any(engine is self._asked[1] for engine in self._chosen)

    def _see(self, entry: Entry) -> None:
        self.seen.append(without_hashes(entry) if _CLOCK.search(self._asked[0].text) else entry)
