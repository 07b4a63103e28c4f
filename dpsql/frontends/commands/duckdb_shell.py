"""Commands around the DuckDB shell: shell, install-extension and helper."""

from __future__ import annotations

import argparse
import sys

from dpsql.frontends.shell import answering, launch


def shell(arguments: argparse.Namespace) -> None:
    """Become the DuckDB shell."""
    launch.run_shell(arguments.database, arguments.state, arguments.arguments)


def install_extension(arguments: argparse.Namespace) -> None:
    """Put the extension in place, and say how a shell loads it."""
    print(launch.install_extension(arguments.folder))
    print(
        "Write this line into ~/.duckdbrc, in place of an older one, and start the shell with: duckdb -unsigned",
        file=sys.stderr,
    )


def helper(_: argparse.Namespace) -> None:
    """Answer the extension that started this process."""
    answering.main()
