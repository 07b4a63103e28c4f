"""The way of a query, drawn to docs/pictures/query.svg and as a table: python -m tests.documents.query_picture.

Both are made of ``tests/structure/query_steps.py``, which a test compares with a query that runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tests.documents.pages import ROOT, with_block
from tests.structure.query_steps import CHARGE, STEPS, Step

PICTURE = ROOT / "docs" / "pictures" / "query.svg"
PAGE = ROOT / "docs" / "architecture.md"
BEGINS, ENDS = "<!-- steps: python -m tests.documents.query_picture -->\n", "<!-- end of steps -->\n"

_WIDTH, _LEFT, _BOX_WIDTH, _BOX_HEIGHT, _PITCH, _TOP = 820, 20, 540, 52, 86, 50
_STORE_LEFT, _STORE_WIDTH = 650, 150
_MIDDLE = _LEFT + _BOX_WIDTH // 2
_STYLE = """
  .ground { fill: #ffffff } .box { fill: #eef3f8; stroke: #5b7083 } .store { fill: #fdf3dc; stroke: #a07a1f }
  .line { stroke: #5b7083; fill: none } .divide { stroke: #b3261e; stroke-dasharray: 6 4 }
  .head { fill: #5b7083 } text { font-family: Helvetica, Arial, sans-serif; font-size: 13px; fill: #1d2730 }
  .verb { font-weight: bold; font-size: 14px } .small { font-size: 12px; fill: #4a5a67 } .warn { fill: #b3261e }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #14191e } .box { fill: #22303c; stroke: #8fa6b8 } .store { fill: #3a3118; stroke: #d2ab4e }
    .line { stroke: #8fa6b8 } .head { fill: #8fa6b8 } .divide { stroke: #ff8a80 }
    text { fill: #e8eef3 } .small { fill: #b9c6d0 } .warn { fill: #ff8a80 }
  }
"""
_HEIGHT = _TOP + _PITCH * len(STEPS) + 24


def table() -> str:
    """The steps as a Markdown table."""
    lines = ["| step | what it does | functions, below `dpsql/` | hands on |", "| --- | --- | --- | --- |"]
    for number, step in enumerate(STEPS, start=1):
        functions = ", ".join(f"`{name.replace(':', ' ')}`" for name in step.functions)
        lines.append(f"| {number} {step.verb} | {step.purpose} | {functions} | {step.hands_on} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """A page with the table between its two marks."""
    return with_block(page, BEGINS, table(), ENDS)


def picture() -> str:
    """The steps as an SVG file, for light and dark screens."""
    size, title = f"0 0 {_WIDTH} {_HEIGHT}", "The way of a query through dpsql"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="{title}">',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
            *_arrow(_MIDDLE, _TOP - 32, _MIDDLE, _TOP, "SQL, from any front end"),
            *(line for number, step in enumerate(STEPS) for line in _step(number, step)),
            *_stores(),
            *_division(),
            "</svg>\n",
        ]
    )


def _step(number: int, step: Step) -> Iterator[str]:
    top = _top(number)
    yield f'<rect class="box" x="{_LEFT}" y="{top}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
    yield _text(_LEFT + 12, top + 21, f"{number + 1} {step.verb}", "verb")
    yield _text(_LEFT + 122, top + 21, step.purpose)
    yield _text(_LEFT + 122, top + 40, "in " + ", ".join(step.rooms), "small")
    yield from _arrow(_MIDDLE, top + _BOX_HEIGHT, _MIDDLE, top + _PITCH, step.hands_on)


def _stores() -> Iterator[str]:
    places = {step.verb: _top(number) for number, step in enumerate(STEPS)}
    yield from _store(
        places["plan"], places["charge"] + _BOX_HEIGHT, ("state file", "policy, ledger,", "stored points")
    )
    yield from _store(places["aggregate"], places["aggregate"] + _BOX_HEIGHT, ("rows in DuckDB",))
    yield from _store(places["release"], places["release"] + _BOX_HEIGHT, ("state file",))
    right = _LEFT + _BOX_WIDTH
    for verb, words, comes in (
        ("plan", "policy", True),
        ("calibrate", "points", True),
        ("charge", "price", False),
        ("aggregate", "rows", True),
        ("release", "points", False),
    ):
        height = places[verb] + _BOX_HEIGHT // 2
        start, end = (_STORE_LEFT, right) if comes else (right, _STORE_LEFT)
        yield from _arrow(start, height, end, height, "")
        yield _text(right + 24, height - 6, words, "small")


def _store(top: int, bottom: int, lines: tuple[str, ...]) -> Iterator[str]:
    yield (f'<rect class="store" x="{_STORE_LEFT}" y="{top}" width="{_STORE_WIDTH}" height="{bottom - top}" rx="6"/>')
    first = (top + bottom) // 2 + 5 - 9 * (len(lines) - 1)
    for number, line in enumerate(lines):
        yield _text(_STORE_LEFT + 14, first + 18 * number, line, "small" if number else "verb")


def _division() -> Iterator[str]:
    height = _top(CHARGE + 1) - 8
    yield f'<line class="divide" x1="{_LEFT}" y1="{height}" x2="{_STORE_LEFT + _STORE_WIDTH}" y2="{height}"/>'
    yield _text(_LEFT, height - 6, "no row is read above this line", "small warn")


def _arrow(x1: int, y1: int, x2: int, y2: int, words: str) -> Iterator[str]:
    yield f'<line class="line" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#tip)"/>'
    if words:
        yield _text(x1 + 12, (y1 + y2) // 2 + 4, words, "small")


def _text(x: int, y: int, words: str, style: str = "") -> str:
    shown_as = f' class="{style}"' if style else ""
    return f'<text{shown_as} x="{x}" y="{y}">{escape(words)}</text>'


def _top(number: int) -> int:
    return _TOP + _PITCH * number


def main() -> None:
    """Draw the picture and write the table."""
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
