"""Prints the outputs of a page again, with new noise of the operating system, and writes them below its blocks.

`python -m tests.documents.reprint docs/choosing.md` rewrites a page whose numbers have changed. Read the difference:
a number in its text may quote an output.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from tests.documents.page_runs import run_page
from tests.documents.pages import ROOT, read_page


def reprinted(path: Path, root: Path = ROOT) -> str:
    """Return the text of a page with the outputs of a new run."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.dict("os.environ", COLUMNS="100"),
    ):
        Path("sample_data").symlink_to(ROOT / "sample_data")
        outputs = run_page(read_page(path, root)).outputs
    done, rest = "", path.read_text(encoding="utf-8")
    for _, expected, printed in outputs:
        before, _, rest = rest.partition(f"```\n```\n{expected}```\n")
        lines = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
        done += f"{before}```\n```\n{lines}\n```\n"
    return done + rest


def main(names: Sequence[str]) -> None:
    """Rewrite the pages of these names."""
    for name in names:
        page = ROOT / name
        page.write_text(reprinted(page), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
