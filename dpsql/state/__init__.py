"""The state file: policy, ledger and side table."""

from __future__ import annotations

from dpsql.errors import require
from dpsql.state.arrow_vectors import texts_to_arrow, to_arrow, to_numpy
from dpsql.state.charges import ChargeItem, Spent
from dpsql.state.database import Locks
from dpsql.state.history import ReleaseHistory
from dpsql.state.last_question import PaidQuestion
from dpsql.state.ledger import Charged, Ledger
from dpsql.state.policy import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    ClearedAnalyst,
    Composition,
    Domain,
    Link,
    Policy,
    ProtectedTable,
    PublicTable,
    RememberedTable,
    TableVersion,
    Unit,
    amount_of,
    delta_from_units,
    delta_units_down,
    delta_units_up,
    folded_name,
    rho_from_nano,
    rho_nano_down,
)
from dpsql.state.records import (
    Additions,
    AutoChoice,
    KeyList,
    Level,
    MeasuredGroups,
    Pin,
    Point,
    Release,
    SeenLevels,
    Snapshot,
    Stop,
    TableMark,
    Tail,
    Threshold,
)
from dpsql.state.rules import checked
from dpsql.state.side_table import SideTable
from dpsql.state.stamps import SecondPlace
from dpsql.state.state import State
from dpsql.state.temporary_folder import TemporaryFolder
from dpsql.state.undone import Reach

__all__ = [
    "DELTA_UNITS_PER_ONE",
    "NANO_PER_RHO",
    "Additions",
    "AutoChoice",
    "ChargeItem",
    "Charged",
    "ClearedAnalyst",
    "Composition",
    "Domain",
    "KeyList",
    "Ledger",
    "Level",
    "Link",
    "Locks",
    "MeasuredGroups",
    "PaidQuestion",
    "Pin",
    "Point",
    "Policy",
    "ProtectedTable",
    "PublicTable",
    "Reach",
    "Release",
    "ReleaseHistory",
    "RememberedTable",
    "SecondPlace",
    "SeenLevels",
    "SideTable",
    "Snapshot",
    "Spent",
    "State",
    "Stop",
    "TableMark",
    "TableVersion",
    "Tail",
    "TemporaryFolder",
    "Threshold",
    "Unit",
    "amount_of",
    "checked",
    "delta_from_units",
    "delta_units_down",
    "delta_units_up",
    "folded_name",
    "require",
    "rho_from_nano",
    "rho_nano_down",
    "texts_to_arrow",
    "to_arrow",
    "to_numpy",
]
