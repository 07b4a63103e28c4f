"""Receipts of private answers."""

from __future__ import annotations

import dpsql


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    """The receipt that a private answer has."""
    assert answer.receipt is not None
    return answer.receipt
