"""Whose rows a frame holds, of which table, and in which ledger questions about them are charged.

What a unit says of a source is held against what the state says: the state holds, and what it lacks is declared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pandas as pd

from dpsql.errors import PolicyError
from dpsql.frontends.frames.rows import Frame, create_source, frame_database, require_column, sql_columns, without_rows
from dpsql.session import (
    FrameSession,
    FrameTerms,
    LazyState,
    ProcessState,
    Result,
    SourcePolicy,
    StateAccess,
    Unit,
    declare_frame_unit,
    folded,
    protect_source,
    require,
    source_identity,
    source_place,
    split_name,
    text_literal,
    unit_as_named,
)

_BUDGET = ("epsilon_budget", "delta_budget", "composition", "thresholds")
_COMPOSITIONS = ("gaussian", "zcdp", "pure")
_PROCESS_STATE = ProcessState()
_numbers = itertools.count(1)
_lock = threading.Lock()
# frames that are a source of their own, by the source's name, as long as they live
_own: weakref.WeakValueDictionary[str, Frame] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """A privacy unit with its ledger, and the table whose rows a frame holds. ``dpsql.unit`` makes it.

    It is a value: what was charged stands in the state file, or in this process where there is none.

    Attributes:
        name: of the unit.
        column: whose values tell units apart; None for what the state file says.
        state: the state file; None for a ledger that ends with the process.
        source: the table, as ``'visits'`` or ``'clinic.visits'``; None where each frame is a source of its own.
        version: of the source; None for its current one.
        epsilon_budget, delta_budget: what a new unit may spend in all.
        composition: how releases add up, 'gaussian', 'zcdp' or 'pure'; None for that of a known unit, or 'gaussian'.
        thresholds: whether keys may be private; None for what a known unit has, or True.
        separate_people: a new source holds others than those whom a unit column of the same name tells apart elsewhere.

    """

    name: str
    column: str | None = None
    state: Path | None = None
    source: str | None = None
    version: str | None = None
    epsilon_budget: float | None = None
    delta_budget: float | None = None
    composition: str | None = None
    thresholds: bool | None = None
    separate_people: bool = False

    def __post_init__(self) -> None:
        has_source = self.source is not None
        require(
            (bool(self.name), "a privacy unit needs a name, as in dpsql.unit('patient', column='patient_id')"),
            (self.state is None or has_source, "a state file knows frames by the table they hold: add source='visits'"),
            (self.version is None or has_source, "a version is one of a source: add source='visits'"),
        )
        if self.source is not None and len(split_name(self.source)) > 2:
            raise PolicyError(f"source is 'table' or 'schema.table', not {self.source!r}")
        require(
            (
                self.composition is None or self.composition in _COMPOSITIONS,
                f"a unit has composition='gaussian' (exact; for all noise except discrete noise), composition='zcdp' "
                f"(for discrete noise, too; its budget is less rho) or composition='pure' (counts epsilon), "
                f"not composition={self.composition!r}",
            ),
            (
                self.thresholds is None or isinstance(self.thresholds, bool),
                "a unit has thresholds=True (keys may be private) or thresholds=False (all keys are public), not "
                f"thresholds={self.thresholds!r}",
            ),
        )
        if self.epsilon_budget is not None or self.delta_budget is not None:
            _as_named(self, None)

    def new_version(self, version: str) -> PrivacyUnit:
        """Declare that the source's rows are others from now on, and name them.

        Answers about earlier versions stay stored, and questions about this one are charged.

        Raises:
            PolicyError: the source is not declared, or had this version before.

        """
        if self.source is None:
            raise PolicyError("a version is one of a source: dpsql.unit(…, source='visits').new_version('2026-11')")
        with self.access() as access:
            access.write().new_version(source_identity(self.source), version)
        return dataclasses.replace(self, version=version)

    def budget(self) -> pd.DataFrame:
        """Budget, spent and left, as ``FROM dp_budget('…')`` tells it."""
        return self._look(f"FROM dp_budget({text_literal(self.name)})").df()

    def releases(self) -> pd.DataFrame:
        """What was released from this ledger, at what price."""
        return self._look("FROM dp_releases()").df()

    def _look(self, text: str) -> Result:
        with (
            self.access() as access,
            duckdb.connect(":memory:") as connection,
            contextlib.closing(FrameSession(connection, access, FrameTerms(""), frozenset())) as session,
        ):
            return session.sql(text, {})

    def access(self) -> contextlib.AbstractContextManager[StateAccess]:
        """The state, for one question.

        Raises:
            PolicyError: there is no such file, and no budget with which to begin one.

        """
        if self.state is None:
            return contextlib.nullcontext(_PROCESS_STATE)
        if self.epsilon_budget is None and not self.state.exists():
            raise PolicyError(
                f"there is no state file {str(self.state)!r}; that of a database is the file <database>.dpsql beside "
                "it. To begin one for frames alone, give epsilon_budget=<epsilon of all answers together>, "
                "delta_budget=<delta of all answers together> and column=<column that names the unit>"
            )
        return contextlib.closing(LazyState(self.state))


def unit(
    name: str,
    *,
    column: str | None = None,
    state: str | os.PathLike[str] | None = None,
    source: str | None = None,
    version: str | None = None,
    epsilon_budget: float | None = None,
    delta_budget: float | None = None,
    composition: str | None = None,
    thresholds: bool | None = None,
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
        delta_budget: goes with it; half of it is for thresholds, half for stating rho as epsilon. With
            ``thresholds=False`` all of it is for stating rho as epsilon. With ``composition='pure'`` all of it is
            for thresholds; without it all keys are public.
        composition: how releases add up. ``'gaussian'`` is exact and gives the larger budget of rho. ``'zcdp'`` is for
            discrete noise, too. ``'pure'`` counts epsilon: answers have discrete Laplace noise. The default is that of
            a unit which has a budget, and ``'gaussian'`` for a new one.
        thresholds: whether keys may be private. ``False`` gives a larger budget of rho to a unit whose keys are all
            public. The default is that of a unit which has a budget, and ``True`` for a new one.
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
        composition,
        thresholds,
        separate_people,
    )


def source_of(frame: Frame, unit: PrivacyUnit) -> str:
    """The source that the unit names; without one, this very object is a source, until it is gone.

    Rows are never looked at for this, so a frame that was changed in place is still the same source.
    """
    if unit.source is not None:
        return unit.source
    with _lock:
        source = next((name for name, known in _own.items() if known is frame), None)
        if source is None:
            source = f"frame #{next(_numbers)}"
            _own[source] = frame
    return source


def declared_policy(unit: PrivacyUnit, name: str, frame: Frame, access: StateAccess) -> SourcePolicy:
    """The policy, in which unit and source are declared; both are, here, where neither contradicts what is.

    Raises:
        PolicyError: the state says otherwise. No question changes what it says.
        SchemaError: the frame lacks the unit column.

    """
    source = SourcePolicy(name, access.read().policy())
    _require_budget(unit, source)
    protected = source.policy.protected_table(source.table)
    if protected is None:
        _declare(unit, source, frame, access)
        source = SourcePolicy(name, access.read().policy())
    else:
        _require_agreement(unit, source, protected.unit)
    versions = [known.version for known in source.policy.versions_of(source.table)]
    if unit.version is not None and unit.version not in versions:
        raise PolicyError(
            f"{source.name!r} has no version {unit.version!r}, only {', '.join(map(repr, versions))}; declare it with "
            f"unit.new_version({unit.version!r}), or with CALL dp_new_version"
        )
    return source


def _require_budget(unit: PrivacyUnit, source: SourcePolicy) -> None:
    known = source.policy.unit(unit.name)
    if known is None and unit.epsilon_budget is None:
        raise PolicyError(
            f"privacy unit {unit.name!r} has no budget yet; say what it may spend in all, as in "
            f"dpsql.unit({unit.name!r}, column={unit.column or unit.name!r}, "
            "epsilon_budget=<epsilon of all answers together>, delta_budget=<delta of all answers together>)"
        )
    if known and known != _as_named(unit, known):
        named = ", ".join(f"{name}={value!r}" for name in _BUDGET if (value := getattr(unit, name)) is not None)
        raise PolicyError(
            f"privacy unit {unit.name!r} has another budget than {named}; leave them out to use it, or change it with "
            "CALL dp_unit"
        )


def _as_named(unit: PrivacyUnit, known: Unit | None) -> Unit:
    """Return the unit with the budget that is named; what is not named is what the known unit has."""
    return unit_as_named(
        unit.name,
        unit.epsilon_budget,
        unit.delta_budget,
        unit.composition,
        thresholds=unit.thresholds,
        known=known,
    )


def _require_agreement(unit: PrivacyUnit, source: SourcePolicy, owner: str) -> None:
    column = source.unit_column
    require(
        (
            source.policy.unit(unit.name) == source.policy.unit(owner),
            f"the rows of {source.name!r} belong to privacy unit {owner!r}: write dpsql.unit({owner!r}, …)",
        ),
        (
            not source.is_linked,
            f"rows of {source.name!r} find their privacy unit through another table, which a frame is without; ask in "
            "SQL, on the database",
        ),
        (
            unit.column is None or folded(unit.column) == folded(column),
            f"the unit column of {source.name!r} is {column!r}, not {unit.column!r}; leave column out",
        ),
    )


def _declare(unit: PrivacyUnit, source: SourcePolicy, frame: Frame, access: StateAccess) -> None:
    """Declare the unit, where it is new, and the source, of which only names and types of columns are looked at."""
    if unit.state is not None and unit.column is None:
        raise PolicyError(
            f"{source.name!r} is not protected in {str(unit.state)!r} (protected: "
            f"{', '.join(repr(one.table) for one in source.policy.tables) or 'none'}); to protect it, say whose rows "
            f"they are: dpsql.unit({unit.name!r}, column='patient_id', …)"
        )
    column = require_column(frame, unit.column or unit.name, "the unit column")
    with frame_database(unit.state) as connection:
        columns = sql_columns(frame, connection)
        create_source(connection, without_rows(frame), columns, source_place(source.name), ())
        source = SourcePolicy(source.name, access.read().policy())
        known = source.policy.unit(unit.name)
        other = source.table_of_other_unit(known.name if known else unit.name, column)
        if other is not None and not unit.separate_people:
            # a second budget for people who have one, said in the words of frames; nothing is declared yet
            same = f"write dpsql.unit({other.unit!r}, …)"
            if source.policy.link(other.table):
                same = "ask in SQL, on the database, where CALL dp_link leads its rows to this unit"
            raise PolicyError(
                f"{source.name!r} seems to hold the people of {other.table!r}, which has the budget of unit "
                f"{other.unit!r}: {source.reason(other)}. If these are the same people, {same}; if they are others, "
                "add separate_people=True"
            )
        if unit.epsilon_budget is not None and known is None:
            declare_frame_unit(_as_named(unit, None), access)
        protect_source(
            source.name,
            connection,
            access,
            unit=unit.name,
            privacy_unit_column=column,
            separate_people=unit.separate_people,
        )
