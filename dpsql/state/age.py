"""Age of a state file: its last charge beside the stamps that its database and the lock folders hold.

A stamp names the last charge, by number and moment. The state file is written first, the stamp second. So the file has
the charge of each of its stamps, also after a kill between both writes. A file without it is not the one that was
charged. Three things are named, and refused until the curator accepts them (`Age.accept`):

- *restored*: a stamp of this state file names a charge that the file does not have.
- *second*: the stamp of the database is that of another state file with a charge.
- *swapped*: the state file belongs to other databases than the main one.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpsql.errors import StateError
from dpsql.state.database import Database, insert_row
from dpsql.state.stamps import Home, SecondPlace, Stamp, StampFile

RESTORED, SECOND, SWAPPED = "restored", "second", "swapped"
NO_ID = "none"
"""Stands for a database without an id, which could not be written so far."""

_IDENTITY = (
    "SELECT id AS number, state_id, databases, accepted, coalesce((SELECT max(id) FROM charge), 0) AS last_charge "
    "FROM identity ORDER BY id DESC LIMIT 1"
)
_MOMENT = "SELECT at FROM charge WHERE id = ?"
_LOCKS = ".dpsql-locks"
_REASONS: Mapping[str, str] = {
    RESTORED: "is an old copy that was put back: a later charge is recorded beside it, and it has forgotten that one",
    SECOND: "is a second state file of this database: another one has charged it already",
    SWAPPED: "belongs to another database than the one that is open, or to a later state of it",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """The last row of the state file about itself, with its last charge.

    Attributes:
        number: of the row.
        state_id: id of the state file.
        databases: ids of its databases, the first of the first charge, and others that the curator accepted; none as
            long as no database has a stamp of it. One that has no id is `NO_ID`.
        accepted: state file, charge and mark of stamps that contradict the file and that the curator accepted.
        last_charge: number of the last charge; 0 if there is none.

    """

    number: int
    state_id: str
    databases: tuple[str, ...]
    accepted: tuple[tuple[str, int, str | None], ...]
    last_charge: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A look at the stamps of a state file.

    Attributes:
        kind: RESTORED, SECOND or SWAPPED; None if nothing contradicts the file.
        home: the main database; None for a state without one.
        in_database: the stamp in the database.
        in_folders: stamps in the lock folders of database and state file.
        identity: of the state file.

    """

    kind: str | None
    home: Home | None
    in_database: Stamp | None
    in_folders: tuple[Stamp, ...]
    identity: Identity


@dataclass(frozen=True, slots=True)
class _Agreed:
    """State file and database of which this session found that nothing contradicts the file.

    Attributes:
        identity: of the state file.
        home: the main database; None for a state without one.
        database_id: id of that database; None if it has none.
        is_stamped: whether that database holds the stamp of this file, and can be written.

    """

    identity: Identity
    home: Home | None
    database_id: str | None
    is_stamped: bool


class Age:
    """Checks before the first charge of a session, and stamps after each charge; threads share it."""

    def __init__(self, database: Database, path: Path, folder: Path, beside: SecondPlace | None) -> None:
        self._database = database
        self._path = path
        self._beside = beside
        self._folder = folder
        self._agreed: _Agreed | None = None
        self._is_own = False
        self._told = 0

    def require_own_database(self) -> None:
        """Refuse stored answers of another database; a session looks once.

        Raises:
            StateError: the state file belongs to another database.

        """
        if not self._is_own:
            self._require(SWAPPED)
            self._is_own = True

    def require(self) -> None:
        """Refuse a charge if a stamp contradicts the state file; give a new database its stamp.

        A session looks at the stamps once, and again if the file changed in another way than by charges. Its main
        database stays the same, and no other process writes there.

        Raises:
            StateError: the file was restored, is a second one, or belongs to another database.
            EngineError: the database could not be read.

        """
        identity, agreed = self._identity(), self._agreed
        if agreed is None or agreed.identity.number != identity.number or identity.last_charge < self._told:
            self._agreed = self._pair(self._require(RESTORED, SECOND, SWAPPED))

    def look(self) -> None:
        """Refuse what the first charge of a session would refuse; write nothing.

        Raises:
            StateError: as `require`.
            EngineError: as `require`.

        """
        self._require(RESTORED, SECOND, SWAPPED)

    def tell(self, charge: int, at: datetime) -> None:
        """Stamp the second place after a charge that `require` allowed.

        Args:
            charge: number of the charge.
            at: its moment.

        Raises:
            StateError: neither the database nor the lock folder can be written.

        """
        agreed = self._agreed
        if agreed is None:
            # another thread accepted the file meanwhile, and the next charge looks again
            return
        self._told = max(self._told, charge)
        if agreed.is_stamped and agreed.home and self._beside:
            if self._beside.raise_to(agreed.home, agreed.identity.state_id, charge, at.isoformat()):
                return
            self._agreed = None
        stamp = self._stamp(agreed, charge, at.isoformat())
        *others, last = self._files(agreed.home)
        for file in others:
            with contextlib.suppress(StateError):
                file.write(stamp, rises=True)
                return
        last.write(stamp, rises=True)

    def accept(self) -> str | None:
        """Accept this state file for the main database.

        Returns:
            The kind of what was accepted, or None if nothing contradicted the file.

        Raises:
            StateError: a stamp in a lock folder cannot be read.
            EngineError: the database could not be read.

        """
        found = self._find()
        if found.kind is None:
            return None
        identity, own = found.identity, found.in_database
        stamps = [stamp for stamp in (own, *found.in_folders) if stamp]
        accepted = tuple((stamp.state_id, stamp.charge, stamp.mark) for stamp in stamps)
        # before anything else is written, so that a kill leaves no stamp that contradicts the file
        database_id = own.database_id if own and own.database_id else NO_ID
        self._write(identity.state_id, (*identity.databases, database_id), accepted)
        self._agreed, self._told = None, 0
        agreed = self._pair(self._find(), renews=True)
        for file in self._files(agreed.home):
            # a stamp that cannot be written is accepted as it is
            with contextlib.suppress(StateError):
                file.write(self._stamp(agreed, identity.last_charge, self._moment(identity.last_charge)), rises=False)
        return found.kind

    def _require(self, *kinds: str) -> Finding:
        found = self._find()
        if found.kind in kinds:
            raise StateError.of_age(
                f"{self._path} {_REASONS[found.kind]}; nothing was charged. CALL dp_accept_state() accepts it"
            )
        return found

    def _find(self) -> Finding:
        """Compare the stamps with the state file. They are read first: the file only grows meanwhile."""
        home = self._home()
        row = self._beside.read(home) if self._beside and home else None
        in_database = Stamp(*row) if row else None
        in_folders = tuple(filter(None, (file.read() for file in self._files(home))))
        identity = self._identity()
        found = Finding(None, home, in_database, in_folders, identity)
        kind = next(self._kinds(found), None)
        return Finding(kind, home, in_database, in_folders, identity)

    def _kinds(self, found: Finding) -> Iterator[str]:
        """Yield the kinds of all contradictions."""
        identity, in_database, home = found.identity, found.in_database, found.home
        database_id = in_database.database_id if in_database else None
        if home is not None and identity.databases and (database_id or NO_ID) not in identity.databases:
            yield SWAPPED
        stamps = [
            stamp
            for stamp in (in_database, *found.in_folders)
            if stamp and stamp.charge > 0 and (stamp.state_id, stamp.charge, stamp.mark) not in identity.accepted
        ]
        for stamp in stamps:
            if stamp.state_id == identity.state_id and stamp.mark != self._moment(stamp.charge):
                yield RESTORED
        for stamp in stamps:
            if stamp.state_id != identity.state_id and self._is_of(stamp, home, database_id):
                yield SECOND

    def _is_of(self, stamp: Stamp, home: Home | None, database_id: str | None) -> bool:
        """Return whether a stamp was made for the main database."""
        if database_id is not None:
            return stamp.database_id == database_id
        fingerprint = self._beside.fingerprint(home) if self._beside and home else None
        return fingerprint is not None and stamp.fingerprint == fingerprint

    def _pair(self, found: Finding, *, renews: bool = False) -> _Agreed:
        """Let state file and database know each other.

        The database is first: if the process ends in between, its stamp is that of this file.

        Args:
            found: a look at the stamps.
            renews: whether a stamp of this file is written anew.

        """
        identity, stamp, home = found.identity, found.in_database, found.home
        if home is None or self._beside is None:
            return _Agreed(identity, home, None, is_stamped=False)
        database_id = stamp.database_id if stamp else None
        is_stamped = stamp is not None and stamp.state_id == identity.state_id
        if renews or not is_stamped:
            new_id, mark = database_id or secrets.token_hex(16), self._moment(identity.last_charge)
            if self._beside.replace(home, new_id, identity.state_id, identity.last_charge, mark):
                database_id, is_stamped = new_id, True
        if database_id and database_id not in identity.databases:
            # a database that had no id has one now
            known = [one for one in identity.databases if stamp is not None or one != NO_ID]
            self._write(identity.state_id, (*known, database_id), identity.accepted)
            identity = self._identity()
        return _Agreed(identity, home, database_id, is_stamped and not home[2])

    def _stamp(self, agreed: _Agreed, charge: int, mark: str | None) -> Stamp:
        """Return the stamp for a lock folder."""
        home = agreed.home
        fingerprint = self._beside.fingerprint(home) if self._beside and home else None
        return Stamp(agreed.database_id, agreed.identity.state_id, charge, mark, fingerprint)

    def _files(self, home: Home | None) -> tuple[StampFile, ...]:
        """Return the files for stamps: beside the main database, and beside the state file."""
        folders = [self._folder]
        if home and home[1]:
            folders.insert(0, Path(f"{Path(home[1]).resolve()}{_LOCKS}"))
        return tuple(StampFile(folder) for folder in dict.fromkeys(folders))

    def _write(self, state_id: str, databases: Sequence[str], accepted: Sequence[tuple[str, int, str | None]]) -> None:
        """Add a row to the identity of the state file."""
        row = {
            "state_id": state_id,
            "databases": tuple(dict.fromkeys(databases)),
            "accepted": accepted,
            "at": datetime.now(UTC),
        }
        with self._database.write() as connection:
            insert_row(connection, "identity", row)

    def _moment(self, charge: int) -> str | None:
        """Return the moment of a charge as it is stored. Return None if there is no such charge."""
        rows = self._database.rows(_MOMENT, charge)
        return rows[0]["at"].isoformat() if rows else None

    def _home(self) -> Home | None:
        return None if self._beside is None else self._beside.home()

    def _identity(self) -> Identity:
        (row,) = self._database.rows(_IDENTITY)
        return Identity(**row)
