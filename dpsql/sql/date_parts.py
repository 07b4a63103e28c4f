"""Units of dates and times, as `date_trunc` and `extract` name them."""

from __future__ import annotations

DATE_PARTS = frozenset(
    {
        "year",
        "quarter",
        "month",
        "week",
        "day",
        "hour",
        "minute",
        "second",
        "millisecond",
        "microsecond",
        "decade",
        "century",
        "dow",
        "dayofweek",
        "isodow",
        "doy",
        "dayofyear",
        "isoyear",
        "yearweek",
        "epoch",
    }
)
"""Units that dates may be truncated to, taken apart by and subtracted in."""
