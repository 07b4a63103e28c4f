"""The curator's declarations: CALL dp_unit, dp_protect, dp_link, dp_domain, dp_public, dp_analyst, dp_new_version.

A declaration that is repeated keeps what it does not name, removes what it says is NULL, and asks for
``replace := true`` where it would protect less than before.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.query.environment import folded
from dpsql.query.statements import FunctionCall
from dpsql.session.declarations.arguments import ARGUMENTS, BUDGET, TABLE_RULES, Arguments, Books
from dpsql.session.declarations.budgets import budgeted, declare_unit
from dpsql.session.declarations.domains import declare_domain
from dpsql.session.declarations.looser import looser_analyst, require_no_looser
from dpsql.session.declarations.names import remember, require_declared, split_name, table_of
from dpsql.session.declarations.public import declare_public
from dpsql.session.declarations.tables import declare_linked, declare_protected
from dpsql.session.links import linked
from dpsql.session.reader import CURATOR
from dpsql.state import NANO_PER_RHO, ClearedAnalyst, rho_nano_down

__all__ = ["ARGUMENTS", "BUDGET", "TABLE_RULES", "Books", "budgeted", "declare", "options_of", "split_name"]


def declare(call: FunctionCall, books: Books, engine: Engine) -> str:
    """Carry out one declaration; returns a sentence that says what now holds.

    Raises:
        PolicyError: an argument is missing, unknown or contradicts an earlier declaration; nothing changed.

    """
    match call.name:
        case "dp_unit":
            return declare_unit(call, books)
        case "dp_protect":
            return declare_protected(call, books, engine)
        case "dp_link":
            return declare_linked(call, books, engine)
        case "dp_domain":
            return declare_domain(call, books, engine)
        case "dp_public":
            return declare_public(call, books, engine)
        case "dp_analyst":
            return _analyst(call, books)
        case _:
            return _new_version(call, books, engine)


def _analyst(call: FunctionCall, books: Books) -> str:
    arguments = Arguments(call, 1)
    name, limit = arguments.names[0].strip(), arguments.number("rho_limit")
    if folded(name) == CURATOR:
        raise PolicyError("the curator may be shown everything; an analyst needs a name of their own")
    before = books.read().policy().analyst(name)
    if before is None and arguments.removes("rho_limit"):
        raise PolicyError("rho_limit takes a number; leave it out for any level")
    rho_limit = None if limit is None else rho_nano_down(limit)
    if before is not None:
        name = before.name
        rho_limit = rho_limit if arguments.names_any("rho_limit") else before.rho_limit
    analyst = ClearedAnalyst(name, rho_limit)
    changes = looser_analyst(before, analyst)
    require_no_looser(f"people from analyst {name}", changes, replace=arguments.flag("replace"))
    books.write().declare_analyst(analyst)
    shown = "any level" if rho_limit is None else f"levels up to rho = {rho_limit / NANO_PER_RHO:.9g}"
    return f"analyst {name} may be shown {shown}"


def _new_version(call: FunctionCall, books: Books, engine: Engine) -> str:
    arguments = Arguments(call, 1)
    schema = table_of(split_name(arguments.names[0]), engine)
    version = arguments.text("version")
    require_declared(schema, books)
    policy = books.read().policy()
    if policy.public_table(schema.canonical) is not None and not engine.is_base_table(schema):
        raise PolicyError(f"{schema.canonical!r} is a view now, and a public table must be a base table")
    # what a link needs is looked up before anything changes
    known = linked(schema, policy, engine) if policy.protected_table(schema.canonical) is not None else None
    state = books.write()
    version = state.new_version(schema.canonical, version)
    if known is not None:
        remember(known, state)
    return f"table {schema.canonical} is at version {version}"


def options_of(call: FunctionCall) -> tuple[str, Mapping[str, object]]:
    """Query text and options of ``dp_query($$…$$, rho := 0.1)`` or ``dp_explain``."""
    if len(call.positional) != 1 or not isinstance(call.positional[0], str):
        raise PolicyError(f"{call.name} takes the query as text: FROM {call.name}($$ SELECT … $$, rho := 0.1)")
    return call.positional[0], call.named
