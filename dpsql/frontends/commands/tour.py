"""The command demo."""

from __future__ import annotations

import argparse
import tempfile
import webbrowser
from pathlib import Path

from dpsql.frontends.demo import run_demo


def demo(arguments: argparse.Namespace) -> None:
    """Tell the story of the demo, and show its pictures if they are requested."""
    page: Path | None = arguments.html
    if page is None and arguments.open:
        page = Path(tempfile.mkdtemp(prefix="dpsql-demo-"), "demo.html")
    run_demo(page)
    if page is not None:
        shown = arguments.open and webbrowser.open(page.resolve().as_uri())
        print(f"\nThe pictures are {'shown, and ' if shown else ''}in {page}")
