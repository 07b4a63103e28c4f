"""What is written of a model for people to read: receipts and budgets below ``target/dpsql``, and its plan as text.

None of it holds a row, a key or a noisy value: plans, receipts and budgets are functions of policy, text and past
releases.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpsql.errors import DpsqlError
from dpsql.session.result import Receipt

PlanRow = tuple[str, str, str]

_IN_BRIEF = {
    "mechanism": "mechanism",
    "expected error": "expected error",
    "all sets": "all sets",
    "with other group": "with other group",
    "price": "price of the next run",
}


class NoReceiptError(DpsqlError):
    """What is asked of a model's receipt is not in it, or there is none."""


def write_receipt(folder: Path, unique_id: str, relation: str, receipt: Receipt) -> None:
    """Write ``receipts/<unique id>.json`` in one step."""
    paper = {"model": unique_id, "relation": relation, "receipt": dataclasses.asdict(receipt)}
    _write(_receipt_path(folder, unique_id), paper)


def write_budgets(folder: Path, budgets: Sequence[dict[str, Any]]) -> None:
    """Write ``budgets.json``: what each privacy unit may spend, has spent and has left."""
    _write(folder / "budgets.json", budgets)


def write_plan(folder: Path, unique_id: str, plan: Sequence[PlanRow]) -> None:
    """Write ``plans/<unique id>.json``: the rows of ``dp_explain``."""
    rows = [{"section": section, "name": name, "value": value} for section, name, value in plan]
    _write(folder / "plans" / f"{unique_id}.json", {"model": unique_id, "plan": rows})


def half_width(folder: Path, unique_id: str, column: str) -> float:
    """Half of the 95 % interval of a column, as the receipt of the model's last run states it.

    Raises:
        NoReceiptError: the model was not built with this target folder, or the column's error differs by row.

    """
    path = _receipt_path(folder, unique_id)
    name = unique_id.rpartition(".")[2]
    if not path.is_file():
        raise NoReceiptError(
            f"{path.name} is not in {path.parent}: run model {name!r} first, with the same target folder"
        )
    receipt = json.loads(path.read_text(encoding="utf-8"))["receipt"]
    columns = {one["name"]: one for one in receipt["columns"]}
    if column not in columns:
        raise NoReceiptError(
            f"model {name!r} has no column {column!r} that is one aggregate; it has {', '.join(columns) or 'none'}"
        )
    found = columns[column]["half_width_95"]
    if found is None:
        raise NoReceiptError(
            f"the error of {column!r} differs by row; have dp_interval_low({column}) and dp_interval_high({column}) in "
            f"model {name!r}, and test these"
        )
    return float(found)


def price_sentence(receipt: Receipt) -> str:
    """Mechanism and price in a few words, for dbt's line about a model."""
    if receipt.reused:
        return f"{receipt.mechanism}, as stored, rho 0"
    return f"{receipt.mechanism}, charged rho {receipt.charged_rho:.4g}, delta {receipt.charged_delta:.2g}"


def brief(plan: Sequence[PlanRow]) -> list[str]:
    """The lines of a plan that say how it is noised, how well, and at which price."""
    return [
        f"{_IN_BRIEF[section]}, {name}: {value}"
        for section, name, value in plan
        if section in _IN_BRIEF and name != "query hash"
    ]


def as_comment(lines: Sequence[str]) -> str:
    """Lines as an SQL comment."""
    return "".join(f"-- {line}\n" for text in ("dpsql:", *lines) for line in text.splitlines())


def as_markdown(lines: Sequence[str]) -> str:
    """Lines as a part of a model's description in dbt's documentation."""
    return "\n\n**Differential privacy**\n\n" + "".join(f"- {line}\n" for line in lines)


def _receipt_path(folder: Path, unique_id: str) -> Path:
    return folder / "receipts" / f"{unique_id}.json"


def _write(path: Path, paper: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, suffix=".json")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(_finite(paper), file, indent=2, allow_nan=False)
    Path(unfinished).replace(path)


def _finite(value: Any) -> Any:
    """JSON has no word for NaN and infinity: they are written as text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {name: _finite(one) for name, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
        case _:
            return value
