"""SmartNoise SQL over a pandas frame: it samples rows of a person, and censors keys behind a threshold."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
from snsql import Privacy, from_df

from benchmarks.peer_systems.exchange import (
    HIGHEST_AMOUNT,
    LOWEST_AMOUNT,
    PEOPLE,
    QUESTIONS,
    Asked,
    Way,
    serve,
)


def ways(rows: Path, asked: Asked) -> list[Way]:
    """One way, with the noise that it takes where none is chosen."""
    data = pd.read_csv(rows)
    note = (
        f"it bounds rows and no groups: {asked.max_groups * asked.max_rows} rows of a person, and for people "
        f"{asked.max_groups} rows of a frame that is made distinct by hand; epsilon is divided by the columns with "
        "noise that it charges for"
    )
    return [Way("pandas", note, {question: partial(_released, data, asked, question) for question in QUESTIONS})]


def _released(data: pd.DataFrame, asked: Asked, question: str) -> dict[int, float]:
    people = question == PEOPLE
    # a count of people is the count that censors keys; rows and sums are a column beside it
    privacy = Privacy(epsilon=asked.epsilon / (1 if people else 2), delta=asked.delta)
    reader = from_df(
        data.drop_duplicates(["person", "key"]) if people else data,
        privacy=privacy,
        metadata=_metadata(len(data), asked.max_groups * (1 if people else asked.max_rows)),
    )
    text = f"SELECT key, {QUESTIONS[question]} AS number FROM data.made GROUP BY key"
    spent, _ = reader.get_privacy_cost(text)
    if spent > asked.epsilon * (1 + 1e-9):
        raise RuntimeError(f"the answer would cost {spent}")
    return dict(reader.execute(text)[1:])


def _metadata(rows: int, max_ids: int) -> dict[str, object]:
    """Tables as its documentation describes them; `max_ids` is the number of rows of a person that count."""
    made = {
        "row_privacy": False,
        "rows": rows,
        "max_ids": max_ids,
        "sample_max_ids": True,
        "censor_dims": True,
        "clamp_counts": False,
        "person": {"type": "int", "private_id": True},
        "key": {"type": "int"},
        "amount": {"type": "float", "lower": LOWEST_AMOUNT, "upper": HIGHEST_AMOUNT},
    }
    return {"": {"data": {"made": made}}}


if __name__ == "__main__":
    serve("smartnoise-sql", ways)
