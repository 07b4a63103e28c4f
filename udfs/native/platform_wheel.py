"""Hatchling's hook: a wheel that carries the native library is a wheel of this platform, any other is a pure one."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Tags the wheel; what is in it, ``force-include`` says."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        library = Path(self.root, "udfs", "native", "dpsql_native.duckdb_extension")
        if version == "standard" and library.is_file():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
