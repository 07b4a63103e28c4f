"""Whose rows a frame holds, and in which ledger questions about them are charged."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pandas as pd

from dpsql.engine import identity
from dpsql.errors import PolicyError
from dpsql.session import Result
from dpsql.session.declare import Books, budgeted, split_name
from dpsql.session.desk import StateDrawer
from dpsql.session.frame_session import FrameSession, FrameTerms
from dpsql.state import State

logger = logging.getLogger("dpsql")


class _ProcessBooks:
    """The one state of all units without a file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: State | None = None

    def read(self) -> State:
        # two threads must not begin two ledgers
        with self._lock:
            if self._state is None:
                self._state = State.open(None, create=True)
                logger.warning("the budget of a privacy unit without state= is kept in this process and ends with it")
            return self._state

    def write(self) -> State:
        return self.read()


_PROCESS_BOOKS = _ProcessBooks()


@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """A privacy unit with its ledger, and the table that a frame holds the rows of; made by ``dpsql.unit``.

    It is a value: what was charged stands in the state file, or in this process where there is none.

    Attributes:
        name: of the unit.
        column: whose values tell units apart; None for what the state file says.
        state: the state file; None for a ledger that ends with the process.
        source: the table, as ``'visits'`` or ``'clinic.visits'``; None where each frame is a source of its own.
        version: of the source; None for its current one.
        epsilon_budget, delta_budget: what a new unit may spend in all.
        separate_people: a new source holds others than those whom a unit column of the same name tells apart elsewhere.

    """

    name: str
    column: str | None = None
    state: Path | None = None
    source: str | None = None
    version: str | None = None
    epsilon_budget: float | None = None
    delta_budget: float | None = None
    separate_people: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise PolicyError("a privacy unit needs a name, as in dpsql.unit('patient', column='patient_id')")
        if self.state is not None and self.source is None:
            raise PolicyError("a state file knows frames by the table they hold: add source='visits'")
        if self.version is not None and self.source is None:
            raise PolicyError("a version is one of a source: add source='visits'")
        if self.source is not None and len(split_name(self.source)) > 2:
            raise PolicyError(f"source is 'table' or 'schema.table', not {self.source!r}")
        if self.epsilon_budget is not None or self.delta_budget is not None:
            budgeted(self.name, self.epsilon_budget, self.delta_budget)

    def new_version(self, version: str) -> PrivacyUnit:
        """Declare that the source's rows are others from now on, and name them.

        Answers about earlier versions stay stored, and questions about this one are charged.

        Raises:
            PolicyError: the source is not declared, or had this version before.

        """
        if self.source is None:
            raise PolicyError("a version is one of a source: dpsql.unit(…, source='visits').new_version('2026-11')")
        with self.books() as books:
            books.write().new_version(canonical(self.source), version)
        return dataclasses.replace(self, version=version)

    def budget(self) -> pd.DataFrame:
        """Budget, spent and left, as ``FROM dp_budget('…')`` tells it."""
        return self._look(f"FROM dp_budget('{self.name.replace(chr(39), chr(39) * 2)}')").df()

    def releases(self) -> pd.DataFrame:
        """What was released from this ledger, at what price."""
        return self._look("FROM dp_releases()").df()

    def _look(self, text: str) -> Result:
        with self.books() as books, duckdb.connect(":memory:") as connection:
            session = FrameSession(connection, books, FrameTerms(""), frozenset())
            with contextlib.closing(session):
                return session.sql(text, {})

    @contextlib.contextmanager
    def books(self) -> Iterator[Books]:
        """The state, for one question.

        Raises:
            PolicyError: there is no such file, and no budget with which to begin one.

        """
        if self.state is None:
            yield _PROCESS_BOOKS
            return
        if self.epsilon_budget is None and not self.state.exists():
            raise PolicyError(
                f"there is no state file {str(self.state)!r}; it stands beside the database as <database>.dpsql. To "
                "begin one for frames alone, give epsilon_budget=3, delta_budget=1e-6 and column='patient_id'"
            )
        with contextlib.closing(StateDrawer(self.state)) as drawer:
            yield drawer


def unit(
    name: str,
    *,
    column: str | None = None,
    state: str | Path | None = None,
    source: str | None = None,
    version: str | None = None,
    epsilon_budget: float | None = None,
    delta_budget: float | None = None,
    separate_people: bool = False,
) -> PrivacyUnit:
    """Say whose rows a frame holds, and which ledger pays for questions about them.

    Args:
        name: of the privacy unit. What is charged to it, is charged in one ledger.
        column: whose values tell its members apart. Without ``state`` the default is the name.
        state: the state file (``<database>.dpsql``). What it says holds: unit column, bounds, defaults, stored answers.
            Without it the ledger is this process's, and ends with it.
        source: the table that the frame holds, as SQL names it. Frames of one source are the same rows: they share
            stored answers. Without it (and without ``state``) each frame is a source of its own.
        version: of the source, as ``CALL dp_new_version`` or ``PrivacyUnit.new_version`` declared it; by default the
            current one.
        epsilon_budget: what the unit may spend in all, for one that has no budget yet.
        delta_budget: goes with it; half of it is for thresholds, half for stating rho as epsilon.
        separate_people: a source whose unit column is called like that of another unit's is refused, because the same
            people would have two budgets; ``True`` says that they are others, and the policy keeps it.

    Raises:
        PolicyError: the arguments do not go together.

    """
    return PrivacyUnit(
        name,
        column,
        None if state is None else Path(state),
        source,
        version,
        epsilon_budget,
        delta_budget,
        separate_people,
    )


def place_of(source: str) -> tuple[str, str]:
    """Schema and table of a source."""
    *schema, table = split_name(source)
    return (schema[0] if schema else "main"), table


def canonical(source: str) -> str:
    """Identity of a source in policy and hashes: that of a table of this name in the database of the state file."""
    return identity(place_of(source))
