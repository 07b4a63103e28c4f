"""Age of a state file: its own counter beside the stamps that its database and its lock folder hold.

The counter of a state file is the number of its last charge, plus what acceptances added. A charge is written to the
state file first and to a stamp second. So a stamp that is ahead of the file shows a copy that was put back, and a kill
between both writes shows nothing.

Three things are named and refused until the curator accepts them (`Age.accept`):

- *restored*: a stamp of this state file counts more charges than the file has.
- *second*: the stamp of the database is that of another state file with a charge.
- *swapped*: the state file belongs to another database than the main one.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpsql.errors import StateError
from dpsql.state.database import Database, insert_row
from dpsql.state.stamps import Home, SecondPlace, Stamp, StampFile

RESTORED, SECOND, SWAPPED = "restored", "second", "swapped"

_IDENTITY = (
    "SELECT id AS number, state_id, database_id, added, accepted_state, accepted_counter, "
    "coalesce((SELECT max(id) FROM charge), 0) + added AS counter FROM identity ORDER BY id DESC LIMIT 1"
)
_LOCKS = ".dpsql-locks"
_CURE = "CALL dp_accept_state() accepts it"


@dataclass(frozen=True, slots=True)
class Identity:
    """The last row of the state file about itself, with its counter.

    Attributes:
        number: of the row.
        state_id: id of the state file.
        database_id: id of its database; None as long as no database has a stamp of it.
        added: what acceptances added to the counter.
        accepted_state, accepted_counter: stamp of another state file that the curator accepted.
        counter: charges so far, with what was added.

    """

    number: int
    state_id: str
    database_id: str | None
    added: int
    accepted_state: str | None
    accepted_counter: int | None
    counter: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What stamps say about a state file.

    Attributes:
        kind: RESTORED, SECOND, SWAPPED, or None if nothing contradicts the file.
        lost: charges that a stamp counts, beyond those of a restored file or of another state file.
        home: the main database; None for a state without one.
        in_database: the stamp in the database.
        in_folders: stamps in the lock folders of database and state file.
        identity: of the state file.

    """

    kind: str | None
    lost: int
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
        is_stamped: whether that database holds the stamp of this file.

    """

    identity: Identity
    home: Home | None
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

        A session that looked once looks again if its main database is another one by now, or if the file changed in
        another way than by charges.

        Raises:
            StateError: the file was restored, is a second one, or belongs to another database.
            EngineError: the database could not be read.

        """
        identity, agreed = self._identity(), self._agreed
        if (
            agreed is None
            or (agreed.identity.number, agreed.home) != (identity.number, self._home())
            or identity.counter < self._told
        ):
            self._agreed = self._pair(self._require(RESTORED, SECOND, SWAPPED))

    def tell(self, charge_id: int) -> None:
        """Stamp the second place after a charge that `require` allowed.

        Args:
            charge_id: number of the charge.

        Raises:
            StateError: neither the database nor the lock folder can be written.

        """
        agreed = self._agreed
        if agreed is None:
            # accepted by another thread meanwhile: the next charge looks again
            return
        identity = agreed.identity
        counter = charge_id + identity.added
        self._told = max(self._told, counter)
        if agreed.is_stamped and agreed.home and self._beside:
            if self._beside.raise_to(agreed.home, identity.state_id, counter):
                return
            self._agreed = None
        self._write_file(identity, agreed.home, counter, rises=True)

    def accept(self) -> Finding:
        """Accept this state file for this database, and return what was found.

        Its counter goes beyond each stamp, so any older copy of the file is named from now on.
        """
        found = self._find()
        if found.kind is None:
            return found
        counters = [stamp.counter for stamp in (found.in_database, *found.in_folders) if stamp]
        counter = max([found.identity.counter, *counters]) + 1
        row = {
            "state_id": found.identity.state_id,
            "added": found.identity.added + counter - found.identity.counter,
            "database_id": found.in_database.database_id if found.in_database else None,
        }
        if found.in_database and found.in_database.state_id != found.identity.state_id:
            row |= {"accepted_state": found.in_database.state_id, "accepted_counter": found.in_database.counter}
        self._write(row)
        self._agreed = None
        self._stamp(found.home, counter)
        return found

    def _stamp(self, home: Home | None, counter: int) -> None:
        """Write both stamps anew after an acceptance."""
        identity = self._identity()
        database_id = identity.database_id or secrets.token_hex(16)
        if home and self._beside and self._beside.replace(home, database_id, identity.state_id, counter):
            self._belong(identity, database_id)
        self._write_file(self._identity(), home, counter, rises=False)

    def _files(self, home: Home | None) -> tuple[StampFile, ...]:
        """Return the files for stamps: beside the main database, and beside the state file."""
        folders = [self._folder]
        if home and home[1]:
            folders.insert(0, Path(f"{Path(home[1]).resolve()}{_LOCKS}"))
        return tuple(StampFile(folder) for folder in dict.fromkeys(folders))

    def _write_file(self, identity: Identity, home: Home | None, counter: int, *, rises: bool) -> None:
        """Write a stamp beside the main database, or beside the state file if that fails."""
        fingerprint = self._beside.fingerprint(home) if self._beside and home else None
        stamp = Stamp(identity.database_id, identity.state_id, counter, fingerprint)
        *others, last = self._files(home)
        for file in others:
            with contextlib.suppress(StateError):
                file.write(stamp, rises=rises)
                return
        last.write(stamp, rises=rises)

    def _require(self, *kinds: str) -> Finding:
        finding = self._find()
        if finding.kind in kinds:
            raise _refusal(finding, self._path)
        return finding

    def _find(self) -> Finding:
        """Compare the stamps with the state file. The stamps are read first: the file only grows meanwhile."""
        home = self._home()
        found = self._beside.read(home) if self._beside and home else None
        in_database = Stamp(*found) if found else None
        in_folders = tuple(filter(None, (file.read() for file in self._files(home))))
        fingerprint = self._beside.fingerprint(home) if self._beside and home and in_folders else None
        identity = self._identity()
        found_id = in_database.database_id if in_database else None
        if home is not None and identity.database_id not in (None, found_id):
            return Finding(SWAPPED, 0, home, in_database, in_folders, identity)
        kind, lost = _compared(identity, in_database, in_folders, fingerprint)
        return Finding(kind, lost, home, in_database, in_folders, identity)

    def _pair(self, finding: Finding) -> _Agreed:
        """Let state file and database know each other.

        The database is first: if the process ends in between, its stamp is that of this file.
        """
        identity, stamp, home = finding.identity, finding.in_database, finding.home
        if home is None or self._beside is None:
            return _Agreed(identity, home, is_stamped=False)
        database_id = stamp.database_id if stamp and stamp.database_id else secrets.token_hex(16)
        is_stamped = stamp is not None and stamp.state_id == identity.state_id
        if not is_stamped:
            is_stamped = self._beside.replace(home, database_id, identity.state_id, identity.counter)
        if identity.database_id is None and (stamp is not None or is_stamped):
            self._belong(identity, database_id)
            identity = self._identity()
        return _Agreed(identity, home, is_stamped)

    def _belong(self, identity: Identity, database_id: str) -> None:
        """Store the id of the database."""
        self._write(
            {
                "state_id": identity.state_id,
                "database_id": database_id,
                "added": identity.added,
                "accepted_state": identity.accepted_state,
                "accepted_counter": identity.accepted_counter,
            }
        )

    def _write(self, row: dict[str, object]) -> None:
        with self._database.write() as connection:
            insert_row(connection, "identity", row | {"at": datetime.now(UTC)})

    def _home(self) -> Home | None:
        return None if self._beside is None else self._beside.home()

    def _identity(self) -> Identity:
        (row,) = self._database.rows(_IDENTITY)
        return Identity(**row)


def _compared(
    identity: Identity, in_database: Stamp | None, in_folders: Sequence[Stamp], fingerprint: str | None
) -> tuple[str | None, int]:
    """Return the kind of a contradiction, and how many charges the file lacks. Return None, 0 if there is none."""
    stamps = [*([in_database] if in_database else []), *in_folders]
    own = [stamp.counter for stamp in stamps if stamp.state_id == identity.state_id]
    lost = max(own, default=0) - identity.counter
    if lost > 0:
        return RESTORED, lost
    database_id = in_database.database_id if in_database else None
    for stamp in stamps:
        is_of_it = stamp is in_database or (
            stamp.fingerprint == fingerprint is not None if database_id is None else stamp.database_id == database_id
        )
        is_accepted = (identity.accepted_state, identity.accepted_counter) == (stamp.state_id, stamp.counter)
        if stamp.state_id != identity.state_id and stamp.counter > 0 and is_of_it and not is_accepted:
            return SECOND, stamp.counter
    return None, 0


def _refusal(finding: Finding, path: Path) -> StateError:
    """Return the refusal, which an analyst is told without its reason."""
    match finding.kind:
        case "restored":
            reason = (
                f"{path} is an old copy that was put back: {finding.lost} later charges of it are recorded beside it, "
                "and it has forgotten them"
            )
        case "second":
            reason = f"{path} is a second state file of this database: another one has charged it already"
        case _:
            reason = (
                f"{path} belongs to another database than the one that is open, or to a later state of it: its charges "
                "and answers are those of that one"
            )
    return StateError.of_age(f"{reason}; nothing was charged. {_CURE}")
