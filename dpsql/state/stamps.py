"""Stamps: the age of a state file as a second place knows it, and the file that holds one in the lock folder.

A stamp is written after the charge that it counts. So a state file is never younger than its stamps, unless an old copy
of it was put back.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Protocol

from dpsql.errors import StateError

Home = tuple[str, str | None, bool]
"""Name of a main database, path of its file if that can hold a stamp, and whether it is read-only."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Age of a state file.

    Attributes:
        database_id: id of the database that it belongs to; None if the database has none.
        state_id: id of the state file.
        charge: number of a charge of the state file; 0 if it had none.
        mark: moment of that charge. If there was none, the moment at which the file was accepted; None if it was not.
        fingerprint: of a database without an id; None if there is none.

    """

    database_id: str | None
    state_id: str
    charge: int
    mark: str | None
    fingerprint: str | None = None

    @classmethod
    def of(cls, values: object) -> Stamp:
        """Return a stamp from the fields of a file; those of a newer version are left out.

        Raises:
            ValueError: a field is missing or has another type.

        """
        fields: dict[str, Any] = {name: values.get(name) for name in _TYPES} if isinstance(values, dict) else {}
        if not fields or any(not isinstance(value, _TYPES[name]) for name, value in fields.items()):
            raise ValueError("no stamp")
        return cls(**fields)


_TYPES: Mapping[str, type | UnionType] = {
    "database_id": str | None,
    "state_id": str,
    "charge": int,
    "mark": str | None,
    "fingerprint": str | None,
}


class SecondPlace(Protocol):
    """A session's main database, as far as it holds a stamp."""

    def home(self) -> Home:
        """Return the main database.

        Raises:
            EngineError: the database could not be read.

        """

    def read(self, home: Home) -> tuple[str, str, int, str | None] | None:
        """Return ids of database and state file, number and moment of a charge. Return None if there is no stamp.

        Raises:
            EngineError: the database could not be read.

        """

    def fingerprint(self, home: Home) -> str | None:
        """Return a text that tells a database without a stamp from others. Return None if there is none."""

    def replace(self, home: Home, database_id: str, state_id: str, charge: int, mark: str | None) -> bool:
        """Write a stamp in place of any other one. Return False if the database cannot be written."""

    def raise_to(self, home: Home, state_id: str, charge: int, mark: str | None) -> bool:
        """Raise the stamp of a state file to a charge. Return False if there is no such stamp with an earlier one."""


class StampFile:
    """The stamp in a lock folder, for a database that cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "age"

    def read(self) -> Stamp | None:
        """Return the stamp. Return None if there is none.

        Raises:
            StateError: the file cannot be read, or is no stamp.

        """
        try:
            return Stamp.of(json.loads(self._path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StateError.of_age(f"{self._path}: {error.strerror}; nothing was charged") from error
        except ValueError as error:
            raise StateError.of_age(
                f"{self._path} is damaged: it is no stamp of a state file; nothing was charged. "
                "Put it back. Only if it is lost, and the state file is the newest: remove it"
            ) from error

    def write(self, stamp: Stamp, agrees: Callable[[Stamp], bool] | None) -> bool:
        """Write a stamp, durable when this returns. One of the same state file with a later charge stays.

        Args:
            stamp: the stamp.
            agrees: returns whether the stamp that is there may be replaced; None to replace any other one.

        Returns:
            False if the stamp that is there may not be replaced.

        Raises:
            StateError: the lock folder cannot be written.

        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            before = self.read() if agrees else None
            if before and agrees and not agrees(before):
                return False
            # two processes may pass here together, and the lower stamp may stay: it is true of the file, too
            if before is None or before.state_id != stamp.state_id or before.charge < stamp.charge:
                self._put(json.dumps(asdict(stamp)))
        except OSError as error:
            raise StateError.of_file(self._folder, f": {error.strerror}") from error
        return True

    def _put(self, text: str) -> None:
        """Replace the file in one step."""
        descriptor, draft = tempfile.mkstemp(prefix="age-new-", dir=self._folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                # root writes for the owner of the folder, who could not read the file otherwise
                with contextlib.suppress(OSError):
                    owner = self._folder.stat()
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            Path(draft).replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(draft).unlink()
            raise
