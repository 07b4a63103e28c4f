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

from importlib.metadata import version

from dpsql import remote
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

__version__ = version("dpsql")

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
    "from_frame",
    "plot_budget",
    "plot_cascade",
    "remote",
    "unit",
]
