"""At which levels a frame is released: the request, its window and ceiling."""

from __future__ import annotations

from sqlglot import exp

from dpsql.query.clauses import Clauses
from dpsql.query.environment import TableRules
from dpsql.query.frame import NANO, Window
from dpsql.query.options import QueryOptions
from dpsql.query.private_query import Request
from dpsql.query.refusals import Refusals


def read_request(clauses: Clauses, rules: TableRules, hint: exp.Expr | None, refusals: Refusals) -> Request:
    """How private the answer shall be: what the query says, else what the policy says."""
    options = clauses.options
    rho, epsilon = options.rho, options.epsilon
    if rho is None and epsilon is None:
        rho, epsilon = rules.default_rho, rules.default_epsilon if rules.default_rho is None else None
    if rho is None and epsilon is None:
        refusals.add(
            "privacy_level_missing", clauses.source, "neither policy nor query says how private the answer shall be.",
            "Write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 0.5), or declare default_rho in dp_protect.",
        )  # fmt: skip
    if options.rho_window is not None and epsilon is not None:
        refusals.add(
            "option", hint, "a window is a range of rho, so it goes with rho.", "Give rho instead of epsilon.",
        )  # fmt: skip
    return Request(rho, epsilon, options.delta if options.delta is not None else rules.default_delta)


def read_window(
    options: QueryOptions, rules: TableRules, request: Request, *, private_keys: bool, ceiling: int | None,
    hint: exp.Expr | None, refusals: Refusals,
) -> Window | None:  # fmt: skip
    """The window of a frame; public keys need none, and a query by epsilon leaves the policy's.

    Another delta is another window, since the first release pays for all.
    """
    levels = options.rho_window or (rules.rho_window if request.epsilon is None else None)
    if levels is None or not private_keys:
        return None
    low, high = (round(level * NANO) for level in levels)
    if ceiling is not None and ceiling != high:
        refusals.add(
            "option", hint, "a window ends at the ceiling.",
            f"Write rho_window = [{low / NANO:.9g}, {ceiling / NANO:.9g}].",
        )  # fmt: skip
    return Window(low, high, request.delta)


def read_ceiling(options: QueryOptions, rules: TableRules, hint: exp.Expr | None, refusals: Refusals) -> int | None:
    """The ceiling of a frame in nano-rho: the policy's, or one that is asked for and is no higher."""
    most = rules.rho_limit if rules.rho_ceiling is None else rules.rho_ceiling
    level = options.rho_ceiling if options.rho_ceiling is not None else rules.rho_ceiling
    if level is not None and most is not None and round(level * NANO) > round(most * NANO):
        refusals.add(
            "option", hint, "the ceiling is above what the policy draws, or this reader may be shown.",
            f"Write at most rho_ceiling = {most:.9g}, or leave it out.",
        )  # fmt: skip
    return None if level is None else max(1, round(level * NANO))


def check_threshold(options: QueryOptions, *, private_keys: bool, hint: exp.Expr | None, refusals: Refusals) -> None:
    """Note a refusal for a threshold where no key hides."""
    if options.own_threshold and not private_keys:
        refusals.add(
            "option", hint, "public keys pass no threshold.", "Leave own_threshold out; every listed key is shown.",
        )  # fmt: skip
