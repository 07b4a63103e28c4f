"""Age of a state file: its last charge beside the stamps that its database and the lock folders hold.

A stamp names the last charge, by number and moment. The state file is written first, the stamp second. So the file has
the charge of each of its stamps, also after a kill between both writes. A file without it is not the one that was
charged. Three things are named, and refused until the curator accepts them (`Age.accept`):

- *restored*: a stamp of this state file names a charge that the file does not have.
- *second*: the stamp of the database is that of another state file, which has a charge or was accepted.
- *swapped*: the state file belongs to other databases than the main one.

A session looks before its first charge. Then it compares each stamp that it is about to replace, because another
process may use another state file meanwhile.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpsql.errors import EngineError, StateError
from dpsql.state.database import Database, insert_row
from dpsql.state.stamps import Home, SecondPlace, Stamp, StampFile

RESTORED, SECOND, SWAPPED = "restored", "second", "swapped"
_NO_FILE = "none"
"""Name of each database without a file, and of each one whose file cannot be read."""

_IDENTITY = (
    "SELECT id AS number, state_id, databases, accepted, coalesce((SELECT max(id) FROM charge), 0) AS last_charge "
    "FROM identity ORDER BY id DESC LIMIT 1"
)
_MOMENT = "SELECT at FROM charge WHERE id = ?"
_LOCKS = ".dpsql-locks"
_REASONS: Mapping[str, tuple[str, str, str]] = {
    RESTORED: (
        "is an old copy that was put back: charge {charge} is recorded beside it, and it lacks that charge",
        "Put the newest file back",
        "the charges that it lacks (up to number {charge}) are forgotten",
    ),
    SECOND: (
        "is a second state file of this database, which has another one already",
        "Open the first state file, or put it back",
        "the charges of the first file (up to number {charge}) are forgotten",
    ),
    SWAPPED: (
        "belongs to another database than the open one, which may have been built anew or restored since",
        "Open its own database",
        "its charges and stored answers count for the open database, too",
    ),
}
"""Sentence, cure and effect of an acceptance, by kind."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The last row of the state file about itself, with its last charge.

    Attributes:
        number: of the row.
        state_id: id of the state file.
        databases: names of its databases (`Age._name`): that of the first charge, and others that the curator
            accepted.
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
        kinds: those of RESTORED, SECOND and SWAPPED that contradict the file, each with the last charge that a stamp
            of this kind names.
        home: the main database; None for a state without one.
        in_database: the stamp in the database.
        in_folders: stamps in the lock folders of database and state file.
        identity: of the state file.

    """

    kinds: Mapping[str, int]
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
        """Refuse stored answers of another database; a session looks once. Stamp a file with charges.

        Raises:
            StateError: the state file belongs to another database.
            EngineError: the database could not be read.

        """
        if self._is_own:
            return
        found = self._require(SWAPPED)
        if found.identity.last_charge and not found.kinds:
            # charges of before stamps, or of a lost lock folder; stored answers are served from a full disk, too
            with contextlib.suppress(StateError):
                self._pair(found)
        self._is_own = True

    def require(self) -> None:
        """Refuse a charge if a stamp contradicts the state file; give a new database its stamp.

        A session looks at the stamps once, and again if the file changed in another way than by charges, or if `tell`
        met a stamp that contradicts it.

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

        A stamp that contradicts the file stays, and the next charge looks again.

        Args:
            charge: number of the charge.
            at: its moment.

        Raises:
            EngineError: neither the database nor the lock folder can be written; the charge stays.

        """
        agreed = self._agreed
        if agreed is None:
            # another thread accepted the file meanwhile, and the next charge looks again
            return
        self._told = max(self._told, charge)
        mark = at.isoformat()
        if agreed.is_stamped and agreed.home and self._beside:
            if self._beside.raise_to(agreed.home, agreed.identity.state_id, charge, mark):
                return
            if self._is_told(agreed, agreed.home, charge):
                return
            self._agreed = None
        stamp = self._stamp(agreed, charge, mark)
        for file in self._files(agreed.home):
            with contextlib.suppress(StateError):
                if not file.write(stamp, lambda met: self._agrees(met, agreed)):
                    self._agreed = None
                return
        raise EngineError(f"the charge could not be recorded: {self._folder} cannot be written", withheld=False)

    def accept(self) -> Mapping[str, int]:
        """Accept this state file for the main database.

        Returns:
            The kinds that were accepted, each with the last charge that a stamp of it names.

        Raises:
            StateError: a stamp in a lock folder cannot be read.
            EngineError: the database could not be read.

        """
        found = self._find()
        if not found.kinds:
            return {}
        identity, own = found.identity, found.in_database
        stamps = ((one.state_id, one.charge, one.mark) for one in (own, *found.in_folders) if one)
        names = [self._name(found.home, own)] if SWAPPED in found.kinds else []
        # before anything else is written, so that a kill leaves no stamp that contradicts the file
        accepted = tuple(dict.fromkeys((*identity.accepted, *stamps)))
        self._write(identity.state_id, (*identity.databases, *names), accepted)
        self._agreed, self._told = None, 0
        self._pair(self._find(), renews=True)
        return found.kinds

    def _require(self, *kinds: str) -> Finding:
        """Look at the stamps. A refusal names all that contradicts the file, because all is accepted together."""
        found = self._find()
        if any(kind in found.kinds for kind in kinds):
            # another thread may have paired both after this one read the database
            found = self._find()
            self._refuse(found, kinds)
        return found

    def _refuse(self, found: Finding, kinds: Sequence[str]) -> None:
        """Refuse what was found if it has one of some kinds of contradictions."""
        if any(kind in found.kinds for kind in kinds):
            texts = [[text.format(charge=charge) for text in _REASONS[kind]] for kind, charge in found.kinds.items()]
            reasons, cures, effects = (list(column) for column in zip(*texts, strict=True))
            raise StateError.of_age(
                f"{self._path} {', and '.join(reasons)}; nothing was charged. {'. '.join(cures)}. "
                f"Only if that is lost: CALL dp_accept_state(), and {', and '.join(effects)}"
            )

    def _find(self) -> Finding:
        """Compare the stamps with the state file. They are read first: the file only grows meanwhile."""
        home = self._home()
        row = self._beside.read(home) if self._beside and home else None
        in_database = Stamp(*row) if row else None
        in_folders = tuple(filter(None, (file.read() for file in self._files(home))))
        identity = self._identity()
        kinds: dict[str, int] = {}
        for kind, charge in self._kinds(identity, home, in_database, in_folders):
            kinds[kind] = max(charge, kinds.get(kind, 0))
        return Finding(kinds, home, in_database, in_folders, identity)

    def _kinds(
        self, identity: Identity, home: Home | None, in_database: Stamp | None, in_folders: Sequence[Stamp]
    ) -> Iterator[tuple[str, int]]:
        """Yield the kinds of all contradictions, each with the charge of its stamp."""
        if home is not None and identity.databases and not self._is_known(identity, home, in_database):
            yield SWAPPED, 0
        database_id = in_database.database_id if in_database else None
        for stamp in (in_database, *in_folders):
            kind = stamp and self._contradiction(stamp, identity, home, database_id)
            if stamp and kind:
                yield kind, stamp.charge

    def _contradiction(
        self, stamp: Stamp, identity: Identity, home: Home | None, database_id: str | None
    ) -> str | None:
        """Return RESTORED or SECOND. Return None if the stamp does not contradict the file."""
        # without a mark a file was paired, and had no charge
        if stamp.mark is None or (stamp.state_id, stamp.charge, stamp.mark) in identity.accepted:
            return None
        if stamp.state_id == identity.state_id:
            return RESTORED if stamp.charge > 0 and stamp.mark != self._moment(stamp.charge) else None
        return SECOND if self._is_of(stamp, home, database_id) else None

    def _agrees(self, stamp: Stamp, agreed: _Agreed) -> bool:
        """Return whether a stamp that `tell` met does not contradict the file."""
        return self._contradiction(stamp, agreed.identity, agreed.home, agreed.database_id) is None

    def _is_told(self, agreed: _Agreed, home: Home, charge: int) -> bool:
        """Return whether another thread stamped a later charge in the database."""
        # a database that cannot be read has no stamp
        with contextlib.suppress(EngineError):
            row = self._beside.read(home) if self._beside else None
            met = Stamp(*row) if row else None
            if met and met.state_id == agreed.identity.state_id and met.charge >= charge:
                return self._agrees(met, agreed)
        return False

    def _is_known(self, identity: Identity, home: Home, stamp: Stamp | None) -> bool:
        """Return whether the main database is one of the state file."""
        if stamp and (stamp.state_id == identity.state_id or stamp.database_id in identity.databases):
            return True
        name = self._name(home, None)
        # a file that cannot be read is no reason for an alarm
        return name in identity.databases or (stamp is None and home[1] is not None and name == _NO_FILE)

    def _name(self, home: Home | None, stamp: Stamp | None) -> str:
        """Return the id of a database. Without a stamp, return a hash of its first block, which each copy has, too."""
        if stamp and stamp.database_id:
            return stamp.database_id
        fingerprint = self._beside.fingerprint(home) if self._beside and home else None
        return (fingerprint or _NO_FILE).rpartition("-")[2]

    def _is_of(self, stamp: Stamp, home: Home | None, database_id: str | None) -> bool:
        """Return whether a stamp was made for the main database."""
        if database_id is not None:
            return stamp.database_id == database_id
        fingerprint = self._beside.fingerprint(home) if self._beside and home else None
        return fingerprint is not None and stamp.fingerprint == fingerprint

    def _pair(self, found: Finding, *, renews: bool = False) -> _Agreed:
        """Let state file and database know each other, and stamp the lock folders.

        The database is first: if the process ends in between, its stamp is that of this file.

        Args:
            found: a look at the stamps.
            renews: whether the file was accepted: then a stamp counts without a charge, and replaces each other one.

        """
        identity, stamp, home = found.identity, found.in_database, found.home
        last, mark = identity.last_charge, self._moment(identity.last_charge)
        if renews and mark is None:
            mark = datetime.now(UTC).isoformat()
        is_stamped = stamp is not None and stamp.state_id == identity.state_id
        if home and self._beside:
            if renews or not is_stamped:
                new_id = stamp.database_id if stamp and stamp.database_id else secrets.token_hex(16)
                if self._beside.replace(home, new_id, identity.state_id, last, mark):
                    stamp, is_stamped = Stamp(new_id, identity.state_id, last, mark), True
            elif stamp and stamp.charge < last:
                # charges that were read-only have their stamp in a lock folder, which may be lost
                self._beside.raise_to(home, identity.state_id, last, mark)
            name = self._name(home, stamp)
            if name not in (*identity.databases, _NO_FILE):
                self._write(identity.state_id, (*identity.databases, name), identity.accepted)
                identity = self._identity()
        database_id = stamp.database_id if stamp else None
        agreed = _Agreed(identity, home, database_id, is_stamped and home is not None and not home[2])
        for file in self._files(home) if mark else ():
            # the stamp is for a database that is built anew; one that cannot be written is accepted as it is
            with contextlib.suppress(StateError):
                file.write(self._stamp(agreed, last, mark), None if renews else lambda met: self._agrees(met, agreed))
        return agreed

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
