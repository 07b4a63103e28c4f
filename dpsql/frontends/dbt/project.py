"""``dpsql dbt init``: the two files that a dbt project needs to know of this package."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from dpsql.errors import DpsqlError

PACKAGE = Path(__file__).with_name("package")
"""The dbt package, wherever this Python package was installed to."""

_PROFILE = re.compile(r"""^profile:\s*(['"]?)([^'"#\n]+?)\1\s*(?:#.*)?$""", re.MULTILINE)


class ProjectError(DpsqlError):
    """The files cannot be written; the message says why, and nothing was changed."""


def write_project_files(project: Path, database: str) -> tuple[Path, Path]:
    """Write ``profiles.yml`` and ``packages.yml`` beside ``dbt_project.yml``; returns their paths.

    Args:
        project: folder with dbt_project.yml.
        database: the DuckDB file, relative to that folder or absolute.

    Raises:
        ProjectError: there is no project, it names no profile, or one of the files is there already.

    """
    settings = project / "dbt_project.yml"
    if not settings.is_file():
        raise ProjectError(f"there is no {settings}: name the folder of a dbt project, or make one with dbt init")
    profile = _PROFILE.search(settings.read_text(encoding="utf-8"))
    if profile is None:
        raise ProjectError(f"{settings} names no profile: write one in it, as in profile: clinic")
    texts = {
        project / "profiles.yml": _profiles(profile[2], database),
        project / "packages.yml": f"packages:\n  - local: {json.dumps(_package_from(project), ensure_ascii=False)}\n",
    }
    existing = {path: text for path, text in texts.items() if path.exists()}
    if existing:
        missing = "".join(f"\n\nin {path}:\n{text.rstrip()}" for path, text in existing.items())
        raise ProjectError(f"{' and '.join(map(str, existing))} would be overwritten; write this by hand{missing}")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return project / "profiles.yml", project / "packages.yml"


def _package_from(project: Path) -> str:
    """Return the path of the dbt package for ``packages.yml``: relative to the project's folder where that works.

    dbt joins the two paths as texts. So a relative path does not work below a link or from another drive.
    """
    folder = project.resolve()
    try:
        return Path(os.path.relpath(PACKAGE, folder)).as_posix() if folder == project.absolute() else str(PACKAGE)
    except ValueError:
        return str(PACKAGE)


def _profiles(profile: str, database: str) -> str:
    return f"""{json.dumps(profile, ensure_ascii=False)}:
  target: dev
  outputs:
    dev:
      type: duckdb
      path: {json.dumps(database, ensure_ascii=False)}
      plugins:
        - module: dpsql.frontends.dbt.plugin
"""
