"""Statements around private answers: they run in an empty DuckDB over released numbers and public rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from dpsql.engine.limits import Failure, run_limited
from dpsql.errors import ReleaseError
from dpsql.model.private_query import PrivateQuery
from dpsql.receipts import words
from dpsql.receipts.phrases import listed
from dpsql.receipts.receipt import Receipt

_MEASURED = r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|DECIMAL|.*\[\]$"
_LISTS = re.compile(r"\b(listagg|string_agg|group_concat)\(", re.IGNORECASE)
"""Calls that write numbers into a text."""


def computed(sql: str, tables: Mapping[str, pa.Table], answers: int) -> pa.Table:
    """Return what is computed of answers; whether that fails is a fact of numbers that the reader is shown anyway.

    Args:
        sql: the statement.
        tables: what it reads.
        answers: how many of these are answers, which are paid for; the others are public tables.

    Raises:
        ReleaseError: it fails on a value, or needs too much time or memory, or has too many rows.

    """
    found = run_limited(sql, tables)
    if isinstance(found, pa.Table):
        return found
    raise ReleaseError(_said(found, answers))


def told_around(receipt: Receipt, query: PrivateQuery) -> Receipt:
    """Return the receipt of an answer that was computed around another one, with the columns without an interval.

    Args:
        receipt: of the answer inside.
        query: the plan, with what is computed around it.

    """
    inside = {column.name for column in query.first.finish.columns}
    last = query.after[-1]
    kinds = _MEASURED if _LISTS.search(last.sql) is None else f"{_MEASURED}|VARCHAR"
    names = [one.name for one in last.columns if one.name not in inside and re.match(kinds, one.type)]
    notes = (words.NO_INTERVAL.format(columns=listed(names)),) if names else ()
    computed_receipt = receipt.of_computed
    return replace(computed_receipt, notes=(*notes, *computed_receipt.notes))


def _said(failure: Failure, answers: int) -> str:
    """Return the words of a failure."""
    if not answers:
        return f"this text reads public tables alone, and {failure.reason}; it cost nothing. {failure.hint}"
    paid = "answer is paid for and stored, and costs" if answers == 1 else "answers are paid for and stored, and cost"
    return f"the text around the private query {failure.reason}; the {paid} nothing asked for alone. {failure.hint}"
