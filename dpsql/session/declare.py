"""The curator's declarations: CALL dp_unit, dp_protect, dp_unprotect, dp_link, dp_domain, dp_public, …

A declaration that is repeated keeps what it does not name, removes what it says is NULL, and asks for
``replace := true`` where it would protect less than before. Those of units, tables and columns are in
``dpsql.session.declarations.tables``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpsql.cascade.reader import CURATOR
from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import folded
from dpsql.plan.environment.links import linked
from dpsql.session.declarations.arguments import (
    ARGUMENTS,
    BUDGET,
    TABLE_RULES,
    Arguments,
    StateAccess,
    remember,
    require_declared,
    rho_nano,
    split_name,
    table_of,
)
from dpsql.session.declarations.budgets import unit_as_named
from dpsql.session.declarations.domains import declare_domain
from dpsql.session.declarations.protection import looser, require_no_looser
from dpsql.session.declarations.public import declare_public
from dpsql.session.declarations.tables import (
    declare_linked,
    declare_protected,
    declare_unit,
)
from dpsql.session.declarations.undoing import declare_unprotected
from dpsql.sql.statements import FunctionCall
from dpsql.state import NANO_PER_RHO, ClearedAnalyst, checked

__all__ = ["ARGUMENTS", "BUDGET", "TABLE_RULES", "StateAccess", "declare", "split_name", "unit_as_named"]


def declare(call: FunctionCall, access: StateAccess, engine: Engine, *, tells_of_rows: bool = False) -> str:
    """Carry out one declaration; returns a sentence that says what now holds.

    Args:
        call: the declaration.
        access: the state to declare in.
        engine: knows tables and views.
        tells_of_rows: whether the sentence may say how many rows new bounds keep. Only the curator may read it then.

    Raises:
        PolicyError: an argument is missing, unknown or contradicts an earlier declaration; nothing changed.

    """
    before = access.read().policy() if tells_of_rows and not _BOUNDS.isdisjoint(call.named) else None
    told = _DECLARE[call.name](Arguments(call), access, engine)
    if before:
        from dpsql.session.declarations.kept_rows import kept_note  # noqa: PLC0415 — few declarations need it

        told += kept_note(Arguments(call).names[0], before, access.read().policy(), engine)
    return told


def _declare_analyst(arguments: Arguments, access: StateAccess, _engine: Engine) -> str:
    name = arguments.names[0].strip()
    if folded(name) == CURATOR:
        raise PolicyError("the curator may be shown everything; an analyst needs a name of their own")
    before = access.read().policy().analyst(name)
    for setting, without in (("rho_limit", "for any level"), ("budget_part", "for all of the budget")):
        if not before and arguments.removes(setting):
            raise PolicyError(f"{setting} takes a number; leave it out {without}")
    limit, budget_part = rho_nano(arguments.read("rho_limit", float)), arguments.read("budget_part", float)
    if before:
        name = before.name
        limit = limit if arguments.names_any("rho_limit") else before.rho_limit
        budget_part = budget_part if arguments.names_any("budget_part") else before.budget_part
    analyst = checked(ClearedAnalyst(name, limit, budget_part))
    require_no_looser(f"people from analyst {analyst.name}", looser(before, analyst), replace=arguments.flag("replace"))
    access.write().declare_analyst(analyst)
    shown = f"levels up to rho = {analyst.rho_limit / NANO_PER_RHO:.9g}" if analyst.rho_limit else "any level"
    if analyst.budget_part is None:
        return f"analyst {analyst.name} may be shown {shown}"
    part = f"{analyst.budget_part:.9g} of the budget of each unit"
    return f"analyst {analyst.name} may be shown {shown}, and may spend at most {part}"


def _declare_version(arguments: Arguments, access: StateAccess, engine: Engine) -> str:
    schema = table_of(split_name(arguments.names[0]), engine)
    version = arguments.read("version", str)
    require_declared(schema, access)
    policy = access.read().policy()
    if policy.public_table(schema.canonical) and not engine.is_base_table(schema):
        raise PolicyError(f"{schema.canonical!r} is a view now, and a public table must be a base table")
    # what a link needs is looked up before anything changes
    known = linked(schema, policy, engine)
    state = access.write()
    version = state.new_version(schema.canonical, version)
    if policy.protected_table(schema.canonical):
        remember(known, state)
    return f"table {schema.canonical} is at version {version}"


def _accept_state(_arguments: Arguments, access: StateAccess, _engine: Engine) -> str:
    """Accept a state file that its database contradicts."""
    age = access.read().age
    kinds = age.accept() if age else {}
    sentences = [_ACCEPTED[kind].format(charge=charge) for kind, charge in kinds.items()]
    return "; ".join(sentences) or "nothing contradicts the state file; nothing was changed"


_ACCEPTED = {
    "restored": "this copy is the state file of the database from now on; "
    "charges that it lacks (up to number {charge}) are forgotten",
    "second": "this state file replaces the other one of the database from now on; "
    "charges of that one (up to number {charge}) are forgotten",
    "swapped": "the state file belongs to the open database, too, from now on, with its charges and stored answers",
}


_BOUNDS = frozenset({"max_groups_contributed", "max_rows_per_group"})
_DECLARE: Mapping[str, Callable[[Arguments, StateAccess, Engine], str]] = {
    "dp_unit": declare_unit,
    "dp_protect": declare_protected,
    "dp_unprotect": declare_unprotected,
    "dp_link": declare_linked,
    "dp_domain": declare_domain,
    "dp_public": declare_public,
    "dp_analyst": _declare_analyst,
    "dp_new_version": _declare_version,
    "dp_accept_state": _accept_state,
}
