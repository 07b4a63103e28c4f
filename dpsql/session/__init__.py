"""The session: runs the eight steps of a query; the only room that knows every other.

What is named here is what front ends may use: sessions and results, and words for the SQL that they write.
"""

from dpsql.cascade.reader import CURATOR
from dpsql.engine import MAIN_DATABASE, PINNED, MainDatabase, main_database, stopped_by
from dpsql.engine.parts.manifest import HEAD, is_parts_folder
from dpsql.model.environment import folded
from dpsql.model.private_query import OPTION_NAMES, OPTIONS_OF_TARGETS, TARGET_OPTIONS
from dpsql.operations.dialect import quote, shown_call, text_literal
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.receipts.phrases import at_least, says_missed, shortfall
from dpsql.receipts.receipt import ColumnReceipt, Receipt, as_record, is_told
from dpsql.receipts.result import Result
from dpsql.session.analyst import Analyst
from dpsql.session.declarations.unit_names import LOOKS_LIKE
from dpsql.session.declare import TABLE_RULES, StateAccess, split_name, unit_as_named
from dpsql.session.engines import FolderOfParts
from dpsql.session.frame_session import (
    FrameSession,
    FrameTerms,
    ProcessState,
    RememberedColumn,
    SourcePolicy,
    declare_frame_unit,
    protect_source,
    source_identity,
    source_place,
)
from dpsql.session.free_texts import FreeText, free_texts_postponed
from dpsql.session.new_files import SHELL_STORAGE_VERSION
from dpsql.session.plots import plot_budget, plot_cascade
from dpsql.session.questions import EXPLAIN, Question, read_question
from dpsql.session.session import (
    LazyState,
    Rehearsal,
    Session,
    connect,
    is_select,
    sql_on,
    state_beside,
    table_identity,
)
from dpsql.session.spilling import open_database
from dpsql.session.table_split import SplitOrder, SplitReport, check_split, make_split
from dpsql.sql.statements import DECLARATIONS
from dpsql.state import Unit, require

__all__ = [
    "CURATOR",
    "DECLARATIONS",
    "EXPLAIN",
    "HEAD",
    "LOOKS_LIKE",
    "MAIN_DATABASE",
    "OPTIONS_OF_TARGETS",
    "OPTION_NAMES",
    "PINNED",
    "SHELL_STORAGE_VERSION",
    "TABLE_RULES",
    "TARGET_OPTIONS",
    "Analyst",
    "ColumnReceipt",
    "CoverageReceipt",
    "FolderOfParts",
    "FrameSession",
    "FrameTerms",
    "FreeText",
    "LazyState",
    "MainDatabase",
    "ProcessState",
    "Question",
    "Receipt",
    "Rehearsal",
    "RememberedColumn",
    "Result",
    "Session",
    "SourcePolicy",
    "SplitOrder",
    "SplitReport",
    "StateAccess",
    "Unit",
    "as_record",
    "at_least",
    "check_split",
    "connect",
    "declare_frame_unit",
    "folded",
    "free_texts_postponed",
    "is_parts_folder",
    "is_select",
    "is_told",
    "main_database",
    "make_split",
    "open_database",
    "plot_budget",
    "plot_cascade",
    "protect_source",
    "quote",
    "read_question",
    "require",
    "says_missed",
    "shortfall",
    "shown_call",
    "source_identity",
    "source_place",
    "split_name",
    "sql_on",
    "state_beside",
    "stopped_by",
    "table_identity",
    "text_literal",
    "unit_as_named",
]
