"""The checkpoint folder that sessions on one driver share, if nobody named one."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext

from dpsql.errors import PolicyError


@dataclass(eq=False)
class OwnFolder:
    """A checkpoint folder that is made here.

    Attributes:
        path: its path, which only its owner may enter.
        sessions: number of open sessions that use it.

    """

    path: str
    sessions: int = 0


_OWN_FOLDERS: weakref.WeakKeyDictionary[SparkContext, OwnFolder] = weakref.WeakKeyDictionary()
_TURN = threading.Lock()


def enter_folder(context: SparkContext, beside: Path | None) -> OwnFolder | None:
    """Let Spark write to a folder of its owner alone; return None if a folder is named.

    Args:
        context: of the driver.
        beside: folder in which a new one is made; None for that of temporary files.

    Raises:
        PolicyError: no folder is named, and Spark runs on other machines, too.

    """
    with _TURN:
        own, named = _OWN_FOLDERS.get(context), context.getCheckpointDir()
        if named is not None and (own is None or own.path not in named):
            return None
        if not str(context.master).startswith("local"):
            raise PolicyError(
                "Spark has no checkpoint folder, where a question keeps its rows until it ends: name one that only "
                "you may read, as in spark.sparkContext.setCheckpointDir('hdfs:///private/checkpoints')"
            )
        if own is None or own.sessions == 0:
            own = _OWN_FOLDERS[context] = OwnFolder(tempfile.mkdtemp(prefix="dpsql-spark-", dir=beside))
            # a program may end without closing its sessions
            atexit.register(shutil.rmtree, own.path, ignore_errors=True)
            context.setCheckpointDir(own.path)
        own.sessions += 1
        return own


def leave_folder(own: OwnFolder | None) -> None:
    """Remove a folder with the last session that uses it."""
    with _TURN:
        if own is not None and own.sessions > 0:
            own.sessions -= 1
            if own.sessions == 0:
                shutil.rmtree(own.path, ignore_errors=True)
