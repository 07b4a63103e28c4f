"""A text at another level: the same statement with another value of the option that says its level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from dpsql.operations.dialect import DifferentialPrivacy
from dpsql.sql.statements import SelectStatement

LEVELS = frozenset({"rho", "epsilon", "target_half_width", "target_relative_error"})
"""Options that name a level, or a target that a level is found for."""
Level = float | Mapping[str, float]
"""The value of a level: a number, or half widths by the names of columns."""


def with_levels(
    levels: Mapping[str, Level], statement: SelectStatement, options: Mapping[str, object]
) -> tuple[SelectStatement, Mapping[str, object]]:
    """Return a statement and its options with other levels.

    A level that the text names is replaced there. Any other one is an option beside the text.

    Args:
        levels: values by name: delta, and the option that says the level (rho, epsilon, a half width or a cap).
        statement: the text.
        options: those beside the text.

    """
    tree, named = statement.tree.copy(), set()
    for hint in tree.find_all(DifferentialPrivacy):
        for option in hint.expressions:
            name = option.this.name.lower() if isinstance(option, exp.EQ) else ""
            if name in levels:
                option.set("expression", _literal(levels[name]))
                named.add(name)
    given = {name: value for name, value in options.items() if name not in levels}
    return replace(statement, tree=tree), given | {name: levels[name] for name in levels.keys() - named}


def names_level(tree: exp.Expr, options: Mapping[str, object]) -> bool:
    """Check that a statement, or an option beside it, names a level or a target."""
    hints = tree.find_all(DifferentialPrivacy)
    written = (option.this.name.lower() for hint in hints for option in hint.expressions if isinstance(option, exp.EQ))
    return not LEVELS.isdisjoint((*written, *options))


def _literal(value: Level) -> exp.Expr:
    """Return a value as it is written in a query."""
    if not isinstance(value, Mapping):
        return exp.Literal.number(f"{value:.9g}")
    fields = [
        exp.PropertyEQ(this=exp.to_identifier(name, quoted=True), expression=_literal(width))
        for name, width in value.items()
    ]
    return exp.Struct(expressions=fields)
