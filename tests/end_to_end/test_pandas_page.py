"""The pages on pandas run as written, and name every argument and method."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path

import pytest

import dpsql
from dpsql.frontends.frames import privacy_unit
from dpsql.frontends.frames.groupby import FrameGroupBy
from dpsql.frontends.pandas_accessor import ArrowFrame, PandasFrame, PolarsFrame
from tests.deterministic_entropy import seeded_system
from tests.documents.page_numbers import check_outputs
from tests.documents.page_runs import SEED
from tests.documents.pages import ROOT, read_page

PAGES = {name: read_page(ROOT / name) for name in ("docs/pandas.md", "docs/pandas-methods.md")}
PAGE = "".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)


def test_every_block_prints_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    # frames of other tests have numbers, too
    monkeypatch.setattr(privacy_unit, "_numbers", itertools.count(1))
    names: dict[str, object] = {}
    for name, page in PAGES.items():
        outputs = []
        for block in page.blocks:
            place = f"{name}, line {block.line}"
            assert block.language == "python", place
            assert block.output is not None, place
            with seeded_system(SEED):
                exec(compile(block.text, place, "exec"), names)  # noqa: S102 — the pages are ours
            # a page may leave out the last part of a receipt: its heading ends in …
            shown, left_out, _ = block.output.partition("bounds   …\n")
            printed = capsys.readouterr().out
            outputs.append((place, shown, printed.partition("\nbounds   ")[0] if left_out else printed))
        check_outputs(name, outputs)


def test_the_pages_name_every_argument_and_method() -> None:
    for arguments in (PandasFrame.groupby, ArrowFrame.groupby, PolarsFrame.groupby, dpsql.unit):
        for name in set(inspect.signature(arguments).parameters) - {"self", "by", "options"}:
            assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE), name
    for name in vars(FrameGroupBy):
        assert name.startswith("_") or f".{name}(" in PAGE or f"`.{name}" in PAGE, name
