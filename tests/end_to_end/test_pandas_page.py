"""The pages on pandas run as written, and name every argument and method."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import dpsql
from dpsql.frontends.frames.groupby import FrameGroupBy
from dpsql.frontends.pandas_accessor import ArrowFrame, PandasFrame, PolarsFrame

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("pandas.md", "pandas-methods.md"))
BLOCKS = re.findall(r"^```python\n(.*?)^```\n```\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_block_prints_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == PAGE.count("```python")
    names: dict[str, object] = {}
    for code, printed in BLOCKS:
        exec(compile(code, "pandas pages", "exec"), names)  # noqa: S102 — the pages are ours
        # numbers are noisy: everything else, word by word, is the same, up to a receipt's heading that ends in …
        shown, _, rest = printed.partition("bounds   …\n")
        found = capsys.readouterr().out.partition("\nbounds   " if len(shown) < len(printed) else "\0")[0]
        assert _words(found) == _words(shown + rest)


def _words(text: str) -> list[str]:
    return re.sub(r"-?[\d.]+(e-\d+)?", "#", text).split()


def test_the_pages_name_every_argument_and_method() -> None:
    for arguments in (PandasFrame.groupby, ArrowFrame.groupby, PolarsFrame.groupby, dpsql.unit):
        for name in set(inspect.signature(arguments).parameters) - {"self", "by", "options"}:
            assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE), name
    for name in vars(FrameGroupBy):
        assert name.startswith("_") or f".{name}(" in PAGE or f"`.{name}" in PAGE, name
