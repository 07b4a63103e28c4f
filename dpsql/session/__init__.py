"""The session: runs the eight steps of a query; the only room that knows every other."""

from dpsql.session.desk import Desk, StateDrawer, state_beside
from dpsql.session.looking import plot_budget, plot_cascade
from dpsql.session.result import ColumnReceipt, Receipt, Result
from dpsql.session.session import Analyst, Session, connect

__all__ = [
    "Analyst",
    "ColumnReceipt",
    "Desk",
    "Receipt",
    "Result",
    "Session",
    "StateDrawer",
    "connect",
    "plot_budget",
    "plot_cascade",
    "state_beside",
]
