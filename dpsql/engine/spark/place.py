"""The second place of a state file whose tables are in Spark: the name of their database, which holds no stamp."""

from __future__ import annotations

import hashlib

from dpsql.engine.connection import MainDatabase


class SparkPlace:
    """A database of Spark: a state file of another one is refused.

    Args:
        place: catalog and database, as ``spark_catalog.default``.

    """

    def __init__(self, place: str) -> None:
        self._place = place

    def home(self) -> MainDatabase:
        """Return the database, which has no file."""
        return self._place, None, True

    def read(self, home: MainDatabase) -> None:  # noqa: ARG002 — the protocol names it
        """Return that there is no stamp."""
        return

    def fingerprint(self, home: MainDatabase) -> str:
        """Return a text that tells the database from others."""
        return f"spark-{hashlib.sha256(home[0].encode()).hexdigest()}"

    def replace(
        self,
        home: MainDatabase,  # noqa: ARG002 — the protocol names it
        database_id: str,  # noqa: ARG002
        state_id: str,  # noqa: ARG002
        charge: int,  # noqa: ARG002
        mark: str | None,  # noqa: ARG002
    ) -> bool:
        """Return that the database cannot be written."""
        return False

    def raise_to(self, home: MainDatabase, state_id: str, charge: int, mark: str | None) -> bool:  # noqa: ARG002
        """Return that there is no stamp."""
        return False
