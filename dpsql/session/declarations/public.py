"""CALL dp_public: tables that hold nothing about any unit."""

from __future__ import annotations

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.query.statements import FunctionCall
from dpsql.session.declarations.arguments import Arguments, Books
from dpsql.session.declarations.names import split_name, table_of
from dpsql.session.declarations.people import people_in
from dpsql.state import PublicTable


def declare_public(call: FunctionCall, books: Books, engine: Engine) -> str:
    """Declare a table public, or, as long as nothing was released of it, that it is not."""
    arguments = Arguments(call, 1)
    arguments.require_kept("public")
    schema = table_of(split_name(arguments.names[0]), engine)
    policy = books.read().policy()
    before = policy.public_table(schema.canonical)
    if arguments.flag("public") is False:
        if arguments.names_any("version", "public_by_decision"):
            raise PolicyError("public := false stands alone: it takes a declaration back")
        if before is not None:
            books.write().withdraw_public(schema.canonical)
        return f"table {schema.canonical} is not public"
    if not engine.is_base_table(schema):
        raise PolicyError(
            f"{schema.canonical!r} is a view; a public table must be a base table, "
            "because a view may reach a protected one"
        )
    decision = arguments.text("public_by_decision")
    if decision is not None and not decision.strip():
        raise PolicyError("public_by_decision takes the reason, as in public_by_decision := 'a published register'")
    if before is not None and not arguments.names_any("public_by_decision"):
        decision = before.decision
    elif decision is None and policy.protected_table(schema.canonical) is None:
        reason = people_in(schema, policy, engine)
        if reason is not None:
            raise PolicyError(
                f"table {schema.canonical!r} {reason}. If it holds nothing about any person, say so with the reason: "
                "public_by_decision := 'a published register'"
            )
    books.write().declare_public(PublicTable(schema.canonical, arguments.version(), decision))
    return f"table {schema.canonical} is public"
