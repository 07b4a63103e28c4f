"""Outputs: results on a terminal, in files and as bytes, and the line that says how long an answer takes.

CSV and Parquet are written by DuckDB itself, so that every type has DuckDB's own spelling.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow.compute as pc

from dpsql.errors import DpsqlError
from dpsql.session import Result, text_literal

_TICK_SECONDS = 1.0


RECEIPT_AT = "the receipt (--receipt)"
"""The place of the receipt for a reader of the command line."""


def show(result: Result, arguments: argparse.Namespace, *, listing: Callable[[Result], str] | None = None) -> None:
    """Print or write a result. Rows alone have their lines on error, bounds and price apart, on stderr."""
    if arguments.format == "box":
        text = result.printed(receipt_at=RECEIPT_AT) if listing is None else listing(result)
        if result.receipt is not None and arguments.receipt:
            text += f"\n{result.receipt}\n"
        content = text.encode()
    else:
        content = encoded(result, arguments.format)
    if arguments.output is None:
        sys.stdout.write(content.decode())
    else:
        arguments.output.write_bytes(content)
    has_lines = arguments.format == "box" or (arguments.format == "markdown" and not arguments.receipt)
    if not has_lines and result.receipt is not None:
        lines = [str(result.receipt)] if arguments.receipt else result.lines_below(receipt_at=RECEIPT_AT)
        print("\n".join(lines), file=sys.stderr)


def short_hashes(result: Result) -> str:
    """Return a box with the first letters of each query hash."""
    table = result.arrow()
    place = table.schema.get_field_index("query_hash")
    short = pc.utf8_slice_codeunits(table.column(place), 0, 12)
    return str(Result(table.set_column(place, "query_hash", short)))


def sections(result: Result) -> str:
    """Return rows (section, name, value) as a list in the width of the screen."""
    return _listed([(section, name, value) for section, name, value in result.fetchall()])


def records(result: Result) -> str:
    """Return every row as a list of its columns, headed by the first one."""
    return _listed(
        [
            (str(head), name, f"{value:.9g}" if isinstance(value, float) else "NULL" if value is None else str(value))
            for head, *values in result.fetchall()
            for name, value in zip(result.columns[1:], values, strict=True)
        ]
    )


def _listed(lines: Sequence[tuple[str, str, str]]) -> str:
    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 120))
    first, second = (max((len(line[i]) for line in lines), default=0) + 2 for i in (0, 1))
    # a name as long as an expression stands on a line of its own
    second = min(second, width // 3)
    shown = []
    before = None
    for section, name, value in lines:
        head = f"{section if section != before else '':<{first}}{name:<{second}}"
        before = section
        if len(name) >= second:
            shown.append(head.rstrip())
            head = ""
        indent = " " * (first + second)
        shown += textwrap.wrap(value, width, initial_indent=head or indent, subsequent_indent=indent) or [head]
    return "".join(f"{line}\n" for line in shown)


@contextlib.contextmanager
def progress(doing: str, share_done: Callable[[], float | None] | None) -> Iterator[None]:
    """Show the seconds so far on the terminal, from the first second on, and the share that is done if it is known."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    began = time.monotonic()

    def tick() -> None:
        while not done.wait(_TICK_SECONDS):
            share = None if share_done is None else share_done()
            done_so_far = "" if share is None else f", {share:4.0%}"
            sys.stderr.write(f"\r{doing} … {time.monotonic() - began:.0f} s{done_so_far}\x1b[K ")
            sys.stderr.flush()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def encoded(result: Result, file_format: str) -> bytes:
    """Return a result in one of ``TEXT_FORMATS`` or as parquet."""
    if file_format in ("csv", "parquet"):
        return copied(result, file_format)
    if file_format == "markdown":
        return result.markdown(receipt_at=RECEIPT_AT).encode()
    from dpsql.remote import documents  # noqa: PLC0415 — few answers are written as JSON

    if file_format == "json":
        return documents.document_text(documents.answer_document(result)).encode()
    return "".join(f"{documents.json_text(row)}\n" for row in documents.answer_rows(result)).encode()


def refused(error: DpsqlError, file_format: str) -> str:
    """Return the JSON document of an error, in one line if rows have one each."""
    from dpsql.remote import documents  # noqa: PLC0415 — few errors are written as JSON

    document = documents.refusal_document(error)
    return documents.document_text(document) if file_format == "json" else f"{documents.json_text(document)}\n"


def copied(result: Result, file_format: str) -> bytes:
    """Return the file that DuckDB writes of a result, as csv or parquet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result")
        if file_format == "parquet":
            result.to_parquet(path)
        else:
            with duckdb.connect(":memory:") as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.register("result", result.arrow())
                connection.execute(f"COPY (FROM result) TO {text_literal(str(path))} (FORMAT csv, HEADER true)")
        return path.read_bytes()
