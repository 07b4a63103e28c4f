"""The table of the demo, where noise hides an average."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dpsql.frontends import demo


def test_an_average_that_is_lost_in_noise_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    ends = {"aircraft": ([5.0], [31.0]), "minutes": ([0.0], [1_440.0])}

    class Answer(list[Any]):
        layout = SimpleNamespace(interval=lambda name: tuple(pa.chunked_array([one]) for one in ends[name]))

    demo._compare(Answer([("OO", 18, None)]), {"OO": (28, 83.0)})  # type: ignore[arg-type]
    *_, row = capsys.readouterr().out.splitlines()
    assert "NULL" in row
    assert row.endswith("83")
