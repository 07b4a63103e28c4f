"""The dbt-duckdb plugin: what the macros of the dbt package call, in dbt's own process and on dbt's own database.

In a profile: ``plugins: [{module: dpsql.frontends.dbt.plugin}]``, with ``config: {state: …}`` where the state file is
not ``<database>.dpsql``.

A macro calls ``adapter.store_relation('dpsql', …, config=call)``, the one way that dbt-duckdb has from a macro to a
plugin, and finds what comes of it in ``call``. So the bounded SQL and the exact values stay in this process, and dbt
writes them nowhere: of a private model it runs ``CREATE TABLE … AS SELECT * FROM`` an Arrow table that is finished.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
from dbt import selected_resources
from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import TargetConfig
from dbt.adapters.events.logging import AdapterLogger
from dbt.adapters.factory import get_adapter_by_type
from dbt.flags import get_flags
from dbt_common.events.event_manager_client import add_callback_to_manager, get_event_manager
from dbt_common.exceptions import DbtRuntimeError

from dpsql.engine import DuckDBEngine
from dpsql.errors import DpsqlError, EngineError, ParseError, PolicyError
from dpsql.frontends.dbt import papers
from dpsql.frontends.dbt.declared import Declarations, declarations, deferred, number
from dpsql.query.options import OPTION_NAMES
from dpsql.query.statements import SelectStatement, read_statement
from dpsql.session.declare import split_name
from dpsql.session.desk import state_beside
from dpsql.session.rehearsal import Rehearsal
from dpsql.session.session import Session

NAME = "dpsql"
MATERIALIZATION = "private_table"
RELEASE = "dpsql_release"
"""Name under which dbt's connection finds a finished answer."""

_TEXT_OPTIONS = ("as_of", "buckets", "other_group", "privacy_unit_column")

logger = AdapterLogger("dpsql")


class Plugin(BasePlugin):
    """Runs the steps of private models; one instance serves all threads of dbt."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Called once by dbt-duckdb.

        Raises:
            DbtRuntimeError: there is no file beside which the state could stand, and none is named.

        """
        self.name = NAME  # whatever the profile calls it, the macros call it this
        self._state = _state_path(self.creds, plugin_config)
        self._declaring = threading.Lock()
        self._jobs: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "plan": self._plan,
            "release": self._release,
            "budget": self._budget,
            "half_width": self._half_width,
        }

    def configure_cursor(self, cursor: duckdb.DuckDBPyConnection) -> None:  # noqa: ARG002 — dbt-duckdb's signature
        """Called as dbt opens a connection, after it has set up its events."""
        if self._watch not in get_event_manager().callbacks:
            add_callback_to_manager(self._watch)

    def store(self, target_config: TargetConfig) -> None:
        """Do what a macro asks for, ``call['job']``, and put what comes of it into ``call['answer']``.

        Raises:
            DbtRuntimeError: with the message of our own error; its cause stays behind.

        """
        call: dict[str, Any] = target_config.config
        with _told_to_dbt():
            call["answer"] = self._jobs[call["job"]](call)

    def _release(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Declare, charge, draw and store; leave the answer where dbt's connection finds it."""
        model = call["model"]
        if not isinstance(read_statement(model["compiled_code"]), SelectStatement):
            raise ParseError(
                "a private_table is a SELECT; what is declared stands in meta.dp, and books are looked at elsewhere"
            )
        with self._session() as session:
            with self._declaring:
                declared = _declared(session, call["graph"], model)
                for statement in declared.statements(_version_of(session)):
                    session.sql(statement)
            result = session.sql(model["compiled_code"], **_options(model["config"]))
            budgets = session.sql("FROM dp_budget()").arrow().to_pylist()
        receipt = result.receipt
        assert receipt is not None  # noqa: S101 — a SELECT has one
        papers.write_receipt(_papers(), model["unique_id"], model["relation_name"], receipt)
        papers.write_budgets(_papers(), budgets)
        _connection().register(RELEASE, result.arrow())
        return {"sql": f"SELECT * FROM {RELEASE}", "message": papers.price_sentence(receipt)}

    def _plan(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Name and type of each column of the answer; nothing is declared or charged."""
        return {"columns": [list(column) for column in self._rehearsed(call["graph"], call["model"]).columns]}

    def _rehearsed(self, graph: Mapping[str, Any], model: Mapping[str, Any]) -> Rehearsal:
        with self._session() as session:
            declared = _declared(session, graph, model)
            statements = list(declared.statements(_version_of(session)))
            return session.rehearse(statements, model["compiled_code"], **_options(model["config"]))

    def _budget(self, call: Mapping[str, Any]) -> dict[str, Any]:
        with self._session() as session:
            (row,) = session.sql("FROM dp_budget($unit)", {"unit": str(call["unit"])}).arrow().to_pylist()
        return {"rho": row["rho_left"], "delta": row["threshold_delta_left"]}

    def _half_width(self, call: Mapping[str, Any]) -> dict[str, Any]:
        return {"half_width": papers.half_width(_papers(), str(call["model_id"]), str(call["column"]))}

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        """A session on a connection of its own to dbt's database: it sees what dbt has committed."""
        # what dbt prints may be read by those who must not know of rows
        with Session(_connection().cursor(), self._state, logs_changes=False) as session:
            yield session

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
        lines = papers.brief(plan)
        papers.write_plan(_papers(), node.unique_id, plan)
        node.compiled_code = papers.as_comment(lines) + node.compiled_code
        node.description = (node.description + papers.as_markdown(lines)).lstrip()
        if node.compiled_path:
            node.write_node(_adapter().config.project_root, node.compiled_path, node.compiled_code)
        logger.info("\n    ".join([f"plan of {node.name}", *lines]))


@contextlib.contextmanager
def _told_to_dbt() -> Iterator[None]:
    """Our errors as dbt's, which dbt shows without a traceback; what DuckDB says may quote rows and stays behind."""
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


def _state_path(creds: Any, plugin_config: Mapping[str, Any]) -> Path:
    given = plugin_config.get("state")
    if given is not None:
        return Path(str(given))
    remote = creds is not None and ("://" in creds.path or creds.path.startswith("md:"))
    with _told_to_dbt():
        path = None if creds is None or remote else state_beside(creds.path)
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
    """The connection that dbt uses in this thread; it is opened where it was not yet."""
    return _adapter().connections.get_thread_connection().handle.cursor()


def _papers() -> Path:
    return Path(_adapter().config.project_target_path, NAME)


def _declared(session: Session, graph: Mapping[str, Any], model: Mapping[str, Any]) -> Declarations:
    """What a model needs, of the tables from which dbt lets it read: with ``--defer`` by dbt's own rule."""
    flags = get_flags()  # type: ignore[no-untyped-call]
    if flags.DEFER:
        engine = DuckDBEngine(session.connection)

        def is_elsewhere(unique_id: str, name: str) -> bool:
            preferred = flags.FAVOR_STATE and unique_id not in selected_resources.SELECTED_RESOURCES
            return preferred or engine.resolve(split_name(name)) is None

        graph = deferred(graph, is_elsewhere)
    return declarations(graph, model["depends_on"]["nodes"])


def _version_of(session: Session) -> Callable[[str], str | None]:
    """The version that a table has in the books now, by the name that dbt has for it."""

    def version(name: str) -> str | None:
        schema = DuckDBEngine(session.connection).resolve(split_name(name))
        if schema is None:
            raise PolicyError(f"there is no table {name} yet, of which meta.dp declares something: build it first")
        rows = session.sql("FROM dp_policy()").fetchall()
        found = [value for _, table, setting, value in rows if (table, setting) == (schema.canonical, "version")]
        return found[0] if found else None

    return version


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model, of all that its config holds."""
    given = {name: config[name] for name in OPTION_NAMES if config.get(name) is not None}
    return {name: value if name in _TEXT_OPTIONS else number(value) for name, value in given.items()}
