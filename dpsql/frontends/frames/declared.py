"""What a unit says of a source against what the state says: the state holds, and what it lacks is declared."""

from __future__ import annotations

import contextlib

from dpsql.engine import DuckDBEngine
from dpsql.errors import PolicyError
from dpsql.frontends.frames.privacy_unit import PrivacyUnit, canonical, place_of
from dpsql.frontends.frames.rows import Frame, create_source, open_database, require_column, sql_columns, without_rows
from dpsql.query.environment import folded
from dpsql.query.statements import Argument, FunctionCall
from dpsql.session.declarations.people import same_column
from dpsql.session.declare import Books, budgeted, declare
from dpsql.session.links import link_steps, unit_column
from dpsql.state import Policy, ProtectedTable


def declared_policy(unit: PrivacyUnit, source: str, frame: Frame, books: Books) -> Policy:
    """The policy, in which unit and source are declared; both are, here, where neither contradicts what is.

    Raises:
        PolicyError: the state says otherwise. No question changes what it says.
        SchemaError: the frame lacks the unit column.

    """
    policy = books.read().policy()
    _require_budget(unit, policy)
    protected = policy.protected_table(canonical(source))
    if protected is None:
        _declare(unit, source, frame, books)
        policy = books.read().policy()
    else:
        _require_agreement(unit, source, protected, policy)
    _require_version(unit, source, policy)
    return policy


def _require_budget(unit: PrivacyUnit, policy: Policy) -> None:
    known = policy.unit(unit.name)
    if known is None and unit.epsilon_budget is None:
        raise PolicyError(
            f"privacy unit {unit.name!r} has no budget yet; say what it may spend in all, as in "
            f"dpsql.unit({unit.name!r}, column={unit.column or unit.name!r}, epsilon_budget=3, delta_budget=1e-6)"
        )
    if known is None or unit.epsilon_budget is None:
        return
    if known != budgeted(known.name, unit.epsilon_budget, unit.delta_budget):
        raise PolicyError(
            f"privacy unit {unit.name!r} has another budget than epsilon_budget={unit.epsilon_budget!r}, "
            f"delta_budget={unit.delta_budget!r}; leave them out to use it, or change it with CALL dp_unit"
        )


def _require_agreement(unit: PrivacyUnit, source: str, protected: ProtectedTable, policy: Policy) -> None:
    if policy.unit(unit.name) != policy.unit(protected.unit):
        raise PolicyError(
            f"the rows of {source!r} belong to privacy unit {protected.unit!r}, which never changes: write "
            f"dpsql.unit({protected.unit!r}, …)"
        )
    if link_steps(policy, protected.table):
        raise PolicyError(
            f"rows of {source!r} find their privacy unit through another table, which a frame is without; ask in SQL, "
            "on the database"
        )
    column = unit_column(policy, protected.table)
    if unit.column is not None and folded(unit.column) != folded(column):
        raise PolicyError(f"the unit column of {source!r} is {column!r}, not {unit.column!r}; leave column out")


def _require_version(unit: PrivacyUnit, source: str, policy: Policy) -> None:
    versions = [known.version for known in policy.versions_of(canonical(source))]
    if unit.version is not None and unit.version not in versions:
        raise PolicyError(
            f"{source!r} has no version {unit.version!r}, only {', '.join(map(repr, versions))}; declare it with "
            f"unit.new_version({unit.version!r}), or with CALL dp_new_version"
        )


def _declare(unit: PrivacyUnit, source: str, frame: Frame, books: Books) -> None:
    """Declare the unit, where it is new, and the source, of which only names and types of columns are looked at."""
    if unit.state is not None and unit.column is None:
        names = ", ".join(repr(one.table) for one in books.read().policy().tables) or "none"
        raise PolicyError(
            f"{source!r} is not protected in {str(unit.state)!r} (protected: {names}); to protect it, say whose rows "
            f"they are: dpsql.unit({unit.name!r}, column='patient_id', …)"
        )
    column = require_column(frame, unit.column or unit.name, "the unit column")
    with contextlib.closing(open_database()) as connection:
        columns = sql_columns(frame, connection)
        create_source(connection, without_rows(frame), columns, place_of(source), None)
        engine = DuckDBEngine(connection)
        if not unit.separate_people:
            _require_other_people(unit, source, column, books)
        if unit.epsilon_budget is not None and books.read().policy().unit(unit.name) is None:
            books.write().declare_unit(budgeted(unit.name, unit.epsilon_budget, unit.delta_budget))
        said: dict[str, Argument] = {
            "unit": unit.name,
            "privacy_unit_column": column,
            "separate_people": unit.separate_people,
        }
        declare(FunctionCall("dp_protect", (source,), said), books, engine)


def _require_other_people(unit: PrivacyUnit, source: str, column: str, books: Books) -> None:
    """Refuse a second budget for people who have one, in the words of frames; nothing is declared yet.

    Raises:
        PolicyError: a table of another unit has a unit column of this name.

    """
    policy = books.read().policy()
    known = policy.unit(unit.name)
    other = same_column((column,), canonical(source), unit.name if known is None else known.name, policy)
    if other is not None:
        raise PolicyError(
            f"{source!r} seems to hold the people of {other.table!r}, which has the budget of unit {other.unit!r}: its "
            f"unit column is called {other.privacy_unit_column!r}, too. Write dpsql.unit({other.unit!r}, …) if these "
            "are the same people, or add separate_people=True if they are others"
        )
