"""The command dbt."""

from __future__ import annotations

import argparse

from dpsql.frontends.dbt.project import write_project_files


def dbt(arguments: argparse.Namespace) -> None:
    """Write the files that a dbt project needs."""
    profiles, packages = write_project_files(arguments.project_dir, arguments.database)
    print(f"wrote {profiles} and {packages}; now run: dbt deps")
