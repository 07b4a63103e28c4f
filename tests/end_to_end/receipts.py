"""Receipts of private answers."""

from __future__ import annotations

from dataclasses import replace

import dpsql


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    """The receipt that a private answer has."""
    assert answer.receipt is not None
    return answer.receipt


def of_the_text(answer: dpsql.Result) -> dpsql.Receipt:
    """The receipt without the reason for an empty answer, which follows from what is shown."""
    return replace(receipt_of(answer), nothing_shown=())
