"""Differentially private GROUP BY for DuckDB.

>>> import dpsql
>>> session = dpsql.connect()
>>> _ = session.connection.execute("CREATE TABLE visits AS SELECT i AS patient, 'ward' AS city FROM range(50) t(i)")
>>> _ = session.sql("CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 1, "
...                 "epsilon_budget := 3, delta_budget := 1e-6)")
>>> answer = session.sql("SELECT city, count(DISTINCT patient) AS patients FROM visits GROUP BY city", rho=0.5)
>>> answer.columns
['city', 'patients']
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dpsql.errors import (
    AccessError,
    BudgetError,
    CalibrationError,
    DpsqlError,
    EngineError,
    EntropyError,
    MissingPackageError,
    ParseError,
    PolicyError,
    QueryError,
    Refusal,
    ReleaseError,
    RemoteError,
    SchemaError,
    Span,
    StateError,
    UnsupportedQueryError,
)
from dpsql.frontends.accessor_hook import watch_pandas

if TYPE_CHECKING:
    from dpsql import dbapi, remote
    from dpsql.frontends.frames.privacy_unit import PrivacyUnit, unit
    from dpsql.frontends.pandas_accessor import from_frame
    from dpsql.session import (
        Analyst,
        ColumnReceipt,
        CoverageReceipt,
        Receipt,
        Result,
        Session,
        connect,
        plot_budget,
        plot_cascade,
    )

    __version__: str

__all__ = [
    "AccessError",
    "Analyst",
    "BudgetError",
    "CalibrationError",
    "ColumnReceipt",
    "CoverageReceipt",
    "DpsqlError",
    "EngineError",
    "EntropyError",
    "MissingPackageError",
    "ParseError",
    "PolicyError",
    "PrivacyUnit",
    "QueryError",
    "Receipt",
    "Refusal",
    "ReleaseError",
    "RemoteError",
    "Result",
    "SchemaError",
    "Session",
    "Span",
    "StateError",
    "UnsupportedQueryError",
    "connect",
    "dbapi",
    "from_frame",
    "plot_budget",
    "plot_cascade",
    "remote",
    "unit",
]

_MODULES = {
    "Analyst": "dpsql.session",
    "ColumnReceipt": "dpsql.session",
    "CoverageReceipt": "dpsql.session",
    "PrivacyUnit": "dpsql.frontends.frames.privacy_unit",
    "Receipt": "dpsql.session",
    "Result": "dpsql.session",
    "Session": "dpsql.session",
    "connect": "dpsql.session",
    "dbapi": "dpsql.dbapi",
    "from_frame": "dpsql.frontends.pandas_accessor",
    "plot_budget": "dpsql.session",
    "plot_cascade": "dpsql.session",
    "remote": "dpsql.remote",
    "unit": "dpsql.frontends.frames.privacy_unit",
}
"""Module of each public name that needs packages of others: it is imported when the name is first used."""

if not TYPE_CHECKING:
    # a type checker would take it as leave for any name
    def __getattr__(name: str) -> object:
        """Import a public name, or look up the version, at its first use.

        Raises:
            AttributeError: dpsql has no such name.

        """
        if name == "__version__":
            value = import_module("importlib.metadata").version("dpsql")
        elif name in _MODULES:
            module = import_module(_MODULES[name])
            value = module if module.__name__ == f"dpsql.{name}" else getattr(module, name)
        else:
            raise AttributeError(f"module 'dpsql' has no attribute {name!r}", name=name, obj=import_module("dpsql"))
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the names that are there and those that come at their first use."""
        return sorted({*globals(), *_MODULES, "__version__"})


watch_pandas()
