"""``python -m dpsql`` is the command ``dpsql``."""

from __future__ import annotations

from dpsql.frontends.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
