"""The dbt-duckdb plugin: what the macros of the dbt package call, in dbt's own process and on dbt's own database.

In a profile: ``plugins: [{module: dpsql.frontends.dbt.plugin}]``, with ``config: {state: …}`` where the state file is
not ``<database>.dpsql``, and ``config: {parts: folder}`` where private tables are in parts.

A macro calls ``adapter.store_relation('dpsql', …, config=call)``, the one way that dbt-duckdb has from a macro to a
plugin, and finds what comes of it in ``call``. So the bounded SQL and the exact values stay in this process, and dbt
writes them nowhere: of a private model it runs ``CREATE TABLE … AS SELECT * FROM`` an Arrow table that is finished.

For people to read, receipts, budgets and plans are written below ``target/dpsql``. None of it holds a row, a key or a
noisy value: plans, receipts and budgets are functions of policy, text and past releases. The shares that bounds keep
and the rows that they leave out are released numbers. They are in the receipt, and the worst of them is in the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
from dbt import selected_resources
from dbt.adapters.duckdb.impl import DuckDBConfig
from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import TargetConfig
from dbt.adapters.events.logging import AdapterLogger
from dbt.adapters.factory import get_adapter_by_type
from dbt.artifacts.resources.v1.model import ModelConfig
from dbt.flags import get_flags
from dbt_common.events.event_manager_client import add_callback_to_manager, get_event_manager
from dbt_common.exceptions import DbtRuntimeError

from dpsql.errors import DpsqlError, EngineError, ParseError, PolicyError
from dpsql.frontends.dbt.declarations import declarations, deferred
from dpsql.frontends.dbt.log_line import log_line
from dpsql.frontends.dbt.model_options import model_options
from dpsql.session import (
    HEAD,
    LOOKS_LIKE,
    FolderOfParts,
    Receipt,
    Rehearsal,
    Session,
    as_record,
    is_parts_folder,
    is_select,
    open_database,
    state_beside,
    table_identity,
)

NAME = "dpsql"
MATERIALIZATION = "private_table"
RELEASE = "dpsql_release"
"""Name under which dbt's connection finds a finished answer."""

_IN_BRIEF = {
    "target": "target",
    "mechanism": "mechanism",
    "expected error": "expected error",
    "all sets": "all sets",
    "all rounds": "all rounds",
    "with other group": "with other group",
    "price": "price of the next run",
}
"""Sections of a plan that say its target, its noise, its errors and its price, each with its title."""

logger = AdapterLogger("dpsql")


class NoReceiptError(DpsqlError):
    """Error of a question to a model's receipt: there is no receipt, or it does not have the number."""


class Plugin(BasePlugin):
    """Plugin that runs the steps of private models; one instance serves all threads of dbt."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Read the configuration; dbt-duckdb calls this once.

        Raises:
            DbtRuntimeError: there is no file beside which the state could stand, and none is named; or the folder of
                parts is none.

        """
        self.name = NAME  # whatever the profile calls it, the macros call it this
        self._parts = _parts_folder(plugin_config)
        self._state = _state_path(self.creds, plugin_config, self._parts)
        self._declaring = threading.Lock()
        self._jobs: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "plan": self._plan,
            "release": self._release,
            "budget": self._budget,
            "half_width": self._half_width,
        }

    def configure_cursor(self, cursor: duckdb.DuckDBPyConnection) -> None:  # noqa: ARG002 — dbt-duckdb's signature
        """Watch dbt's events; dbt-duckdb calls this for each connection, when the events are there."""
        if self._watch not in get_event_manager().callbacks:
            add_callback_to_manager(self._watch)

    def store(self, target_config: TargetConfig) -> None:
        """Do a macro's job, ``call['job']``, and put the result into ``call['answer']``.

        Raises:
            DbtRuntimeError: with the message of our own error; its cause stays behind.

        """
        call: dict[str, Any] = target_config.config
        with _told_to_dbt():
            call["answer"] = self._jobs[call["job"]](call)

    def _release(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Declare, charge, draw and store; leave the answer where dbt's connection finds it."""
        model = call["model"]
        if not is_select(model["compiled_code"]):
            raise ParseError(
                "a private_table is a SELECT; write declarations in meta.dp, and ask for books by dpsql query"
            )
        options = _options(model)
        with self._session() as session:
            with self._declaring:
                for statement in _declarations(session, call["graph"], model):
                    ((told,),) = session.sql(statement).fetchall()
                    if LOOKS_LIKE in told:
                        logger.warning(told)
            result = session.sql(model["compiled_code"], **options)
            budgets = session.sql("FROM dp_budget()").arrow().to_pylist()
        receipt = _require_private(model["name"], result.receipt)
        _write(
            _receipt_path(model["unique_id"]),
            {"model": model["unique_id"], "relation": model["relation_name"], "receipt": as_record(receipt)},
        )
        _write(_papers() / "budgets.json", budgets)
        _connection().register(RELEASE, result.arrow())
        logger.info(log_line(model["name"], receipt))
        return {"sql": f"SELECT * FROM {RELEASE}", "message": _price(receipt)}

    def _plan(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return name and type of each column of the answer; nothing is declared or charged."""
        return {"columns": [list(column) for column in self._rehearsed(call["graph"], call["model"]).columns]}

    def _rehearsed(self, graph: Mapping[str, Any], model: Mapping[str, Any]) -> Rehearsal:
        options = _options(model)
        with self._session() as session:
            return session.rehearse(tuple(_declarations(session, graph, model)), model["compiled_code"], **options)

    def _budget(self, call: Mapping[str, Any]) -> dict[str, Any]:
        with self._session() as session:
            (row,) = session.sql("FROM dp_budget($unit)", {"unit": str(call["unit"])}).arrow().to_pylist()
        # a unit that counts epsilon has no rho
        left = {"rho": row["rho_left"] or 0.0, "delta": row["threshold_delta_left"]}
        return {**left, "epsilon": row["epsilon_next"]}

    def _half_width(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return half of the 95 % interval of a column, as the receipt of the model's last run states it.

        Raises:
            NoReceiptError: the model was not built with this target folder, or the column's error differs by row.

        """
        path, column = _receipt_path(str(call["model_id"])), str(call["column"])
        name = str(call["model_id"]).rpartition(".")[2]
        if not path.is_file():
            raise NoReceiptError(
                f"{path.name} is not in {path.parent}: run model {name!r} first, with the same target folder"
            )
        receipt = json.loads(path.read_text(encoding="utf-8"))["receipt"]
        half_widths = {one["name"]: one["half_width_95"] for one in receipt["columns"]}
        if column not in half_widths:
            raise NoReceiptError(
                f"model {name!r} has no column {column!r} that is one aggregate; it has "
                f"{', '.join(half_widths) or 'none'}"
            )
        if half_widths[column] is None:
            raise NoReceiptError(
                f"the error of {column!r} differs by row; have dp_interval_low({column}) and "
                f"dp_interval_high({column}) in model {name!r}, and test these"
            )
        return {"half_width": float(half_widths[column])}

    def _session(self) -> Session:
        """Return a session on a connection of its own to dbt's database, or on a folder of parts.

        It sees the committed rows.
        """
        if self._parts:
            head, close = open_database(str(self._parts / HEAD), self._state)
            return Session(head, self._state, logs_changes=False, close_database=close, rows=FolderOfParts(self._parts))
        # what dbt prints may be read by those who must not know of rows
        return Session(_connection().cursor(), self._state, logs_changes=False)

    def _watch(self, message: Any) -> None:
        """Show the plan of a private model as ``dbt compile`` and ``dbt docs generate`` have compiled it."""
        if message.info.name != "NodeExecuting" or not _only_compiles():
            return
        manifest = _adapter().get_macro_resolver()
        node = manifest.nodes.get(message.data.node_info.unique_id)
        if node is None or node.config.materialized != MATERIALIZATION:
            return
        try:
            with _told_to_dbt():
                plan = self._rehearsed(manifest.flat_graph, node.to_dict(omit_none=False)).plan.fetchall()
        except DbtRuntimeError as error:
            # a table that is yet to be built has no plan yet, and that is no reason to stop
            logger.warning(f"{node.name} has no plan: {error.msg}")
            return
        rows = [{"section": section, "name": name, "value": value} for section, name, value in plan]
        _write(_papers() / "plans" / f"{node.unique_id}.json", {"model": node.unique_id, "plan": rows})
        lines = [
            f"{_IN_BRIEF[section]}, {name}: {value}"
            for section, name, value in plan
            if section in _IN_BRIEF and name != "query hash"
        ]
        comment = "".join(f"-- {line}\n" for text in ("dpsql:", *lines) for line in text.splitlines())
        markdown = "\n\n**Differential privacy**\n\n" + "".join(f"- {line}\n" for line in lines)
        node.compiled_code = comment + node.compiled_code
        node.description = (node.description + markdown).lstrip()
        if node.compiled_path:
            node.write_node(_adapter().config.project_root, node.compiled_path, node.compiled_code)
        logger.info("\n    ".join([f"plan of {node.name}", *lines]))


@contextlib.contextmanager
def _told_to_dbt() -> Iterator[None]:
    """Raise our errors as dbt's, which it shows without a traceback. Texts of DuckDB may quote rows and stay behind."""
    try:
        yield
        return
    except DpsqlError as error:
        message = str(error)
    except duckdb.Error:
        message = str(EngineError("the database engine failed"))
    except OSError as error:
        message = f"{error.filename or 'the operating system'}: {error.strerror}"
    # outside the handler, so that no earlier error travels along into dbt's log
    raise DbtRuntimeError(message)


def _parts_folder(plugin_config: Mapping[str, Any]) -> Path | None:
    given = plugin_config.get("parts")
    if given is None:
        return None
    if not is_parts_folder(Path(str(given))):
        raise DbtRuntimeError(f"parts: {given} in the profile is no folder of parts, which dpsql split writes")
    return Path(str(given))


def _state_path(creds: Any, plugin_config: Mapping[str, Any], parts: Path | None) -> Path:
    given = plugin_config.get("state")
    if given is not None:
        return Path(str(given))
    remote = creds is not None and ("://" in creds.path or creds.path.startswith("md:"))
    with _told_to_dbt():
        path = state_beside(parts) if parts else None if creds is None or remote else state_beside(creds.path)
    if path is None:
        raise DbtRuntimeError(
            "dpsql keeps policy, budget and releases in a file beside the database, and this one is not a file: name "
            "one in the profile, as in plugins: [{module: dpsql.frontends.dbt.plugin, config: {state: clinic.dpsql}}]"
        )
    return path


def _adapter() -> Any:
    return get_adapter_by_type("duckdb")  # type: ignore[no-untyped-call]


def _only_compiles() -> bool:
    flags = get_flags()  # type: ignore[no-untyped-call]
    return flags.WHICH in ("compile", "generate") and bool(flags.INTROSPECT)


def _connection() -> Any:
    """Return the connection that dbt uses in this thread; open it if it is not open yet."""
    return _adapter().connections.get_thread_connection().handle.cursor()


def _papers() -> Path:
    return Path(_adapter().config.project_target_path, NAME)


def _declarations(session: Session, graph: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    """Yield the declarations of the tables that a model reads: with ``--defer`` those that dbt's own rule chooses."""
    flags = get_flags()  # type: ignore[no-untyped-call]
    if flags.DEFER:

        def is_elsewhere(unique_id: str, name: str) -> bool:
            preferred = flags.FAVOR_STATE and unique_id not in selected_resources.SELECTED_RESOURCES
            return preferred or table_identity(session, name) is None

        graph = deferred(graph, is_elsewhere)
    return declarations(graph, model["depends_on"]["nodes"], functools.partial(_version, session))


def _version(session: Session, name: str) -> str | None:
    """Return the version that the ledger has of a table now, by dbt's name of the table."""
    identity = table_identity(session, name)
    if identity is None:
        raise PolicyError(f"there is no table {name} yet, of which meta.dp declares something: build it first")
    declared = session.sql("FROM dp_policy()").fetchall()
    return next((value for _, table, name, value in declared if (table, name) == (identity, "version")), None)


def _options(model: Mapping[str, Any]) -> dict[str, Any]:
    words = {field.name for kind in (ModelConfig, DuckDBConfig) for field in dataclasses.fields(kind)}
    return model_options(model["name"], model["config"], words)


def _require_private(name: str, receipt: Receipt | None) -> Receipt:
    """Return the receipt of a model.

    Raises:
        PolicyError: there is none, because the model reads no private rows.

    """
    if receipt is None:
        raise PolicyError(
            f"model {name!r} reads public tables alone, so no noise is added and nothing is charged: write "
            "materialized='table' or materialized='view' in place of 'private_table'"
        )
    return receipt


def _price(receipt: Receipt) -> str:
    """Return the price for dbt's line of a model."""
    price = f"{receipt.amount} {receipt.charged_rho:.4g}"
    return f"as stored, {price}" if receipt.reused else price


def _receipt_path(unique_id: str) -> Path:
    return _papers() / "receipts" / f"{unique_id}.json"


def _write(path: Path, paper: object) -> None:
    """Write a file in one step. JSON has no word for NaN and infinity: they are written as text."""
    finite = json.loads(json.dumps(paper), parse_constant=lambda name: str(float(name)))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, suffix=".json")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(finite, file, indent=2, allow_nan=False)
    Path(unfinished).replace(path)
