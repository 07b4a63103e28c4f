"""Registration of ``df.dp``: at once if pandas is imported already, otherwise as soon as it is.

dpsql does not import pandas for the accessor. A finder at the head of ``sys.meta_path`` waits for the import of pandas
and leaves it to the finders behind itself. The finder stays there, because pandas may be imported anew.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def watch_pandas() -> None:
    """Register ``df.dp`` now if pandas is imported, and whenever pandas is imported later."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    if sys.modules.get("pandas") is not None:
        # if another thread is still importing pandas, this waits for it
        register_accessor(import_module("pandas"))


def register_accessor(pandas: Any) -> None:
    """Give data frames the accessor ``dp``, unless they have it; its own modules are imported when it is first used."""
    frame = getattr(pandas, "DataFrame", None)
    # another module may be called pandas
    if frame is not None and getattr(frame, "dp", None) is not private_view:
        pandas.api.extensions.register_dataframe_accessor("dp")(private_view)


def private_view(frame: Any) -> Any:
    """Return the private view of a DataFrame: ``df.dp``, a `PandasFrame`."""
    return import_module("dpsql.frontends.pandas_accessor").PandasFrame(frame)


class PandasFinder:
    """Finder of pandas alone, which adds the registration of ``df.dp`` to its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of pandas from the finders behind this one, with a `RegisteringLoader`; otherwise None."""
        if fullname != "pandas" or fullname in sys.modules:
            return None
        finders = iter(sys.meta_path)
        # consumes this finder and those before it
        any(finder is self for finder in finders)
        found = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            registering: Any = RegisteringLoader(spec.loader)
            spec.loader = registering
        return spec


class RegisteringLoader:
    """Loader of pandas that registers ``df.dp`` when pandas is executed, and otherwise is the loader it was given."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the loader of pandas creates."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute pandas, which keeps its own loader, and register ``df.dp``."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        register_accessor(module)


_FINDER = PandasFinder()
