"""Arguments that every ``groupby`` of a frame takes, written once for type checkers, editors and the console.

A type checker reads them from ``Unpack[Terms]``. At run time `with_terms` puts them into the signature of a method, so
that ``help`` and completion in a notebook show them, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ForwardRef, TypedDict, TypeVar

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


class SqlOptions(TypedDict, total=False):
    """Further options of ``Session.sql`` that a question about a frame takes."""

    at_least: float | None
    bounding: str | None
    confidence: float | None
    coverage: bool | None
    extremes: str | None
    group_selection_strategy: str | None
    max_epsilon: float | None
    max_rho: float | None
    method: str | None
    min_privacy_units_per_group: int | None
    other_group: str | None
    own_threshold: bool | None
    refresh: bool | None
    rho_ceiling: float | None
    rho_window: Sequence[float] | None
    sketch_size: int | None
    target_half_width: float | Mapping[str, float] | None
    target_relative_error: float | None
    top_k: int | None


class Terms(SqlOptions, total=False):
    """Terms of an answer: its privacy, the bounds of its units, and its public keys."""

    rho: float | None
    epsilon: float | None
    delta: float | None
    max_groups: int | str | None
    max_rows_per_group: int | None
    max_rows_norm: float | None
    public_keys: object
    mechanism: str | None


def with_terms(method: MethodT) -> MethodT:
    """Return a method that shows the arguments of `Terms` in its signature, after ``unit``, and ``**options`` last.

    Arguments of `SqlOptions` stay in ``**options``, where ``Session.sql`` has them, too.
    """
    signature = inspect.signature(method)
    own = signature.parameters
    named = [name for name in Terms.__annotations__ if name not in SqlOptions.__annotations__]
    shown = [own["unit"].replace(name=name, default=None, annotation=_annotation(name)) for name in named]
    place = list(own).index("unit") + 1
    *others, options = own.values()
    parameters = [*others[:place], *shown, *others[place:], options.replace(annotation="object")]
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


def _annotation(name: str) -> str:
    found = Terms.__annotations__[name]
    return found.__forward_arg__ if isinstance(found, ForwardRef) else str(found)
