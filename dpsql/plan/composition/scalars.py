"""A private answer of one number inside private rows, as in ``WHERE cost > (SELECT avg(cost) FROM visits)``.

The rows meet a list of one value. The identity of the list names the points that the number comes from and not the
number, so neither the identity nor the price of what is asked of the rows hangs on luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.operations.dialect import unquoted
from dpsql.plan.composition.lift import HIDDEN
from dpsql.sql.source.listed_rows import IDENTITY

_SCALAR = "scalar"
_VALUE = "value"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A query of one number that private rows wait for.

    Attributes:
        name: of the list that holds the number.
        sql: the query as it stands in the text.
        outer: the query over the answers of its own private parts.
        place: where the query stands in the text.

    """

    name: str
    sql: str
    outer: exp.Query
    place: exp.Expr

    @property
    def reads(self) -> frozenset[str]:
        """Names under which it reads answers and public tables."""
        return frozenset(table.name for table in self.outer.find_all(exp.Table))

    @property
    def column(self) -> exp.Column:
        """The number as a column of the rows."""
        return exp.column(_VALUE, table=self.name, quoted=True)

    @property
    def join(self) -> exp.Join:
        """The list as a join of the rows, with NULL as its value."""
        alias = exp.TableAlias(this=exp.to_identifier(self.name), columns=[exp.to_identifier(_VALUE)])
        values = exp.Values(expressions=[exp.Tuple(expressions=[exp.Null()])], alias=alias)
        values.meta[_SCALAR] = self.name
        return exp.Join(this=values, kind="CROSS")


@dataclass(frozen=True, slots=True)
class Filling:
    """The value that a scalar has, or will have.

    Attributes:
        type: its type.
        identity: of the points that it comes from.
        value: as text; None for NULL, and for what is not known yet.

    """

    type: str
    identity: str
    value: str | None = None


def filled(tree: exp.Query, fillings: Mapping[str, Filling]) -> exp.Query:
    """Return a private query with values for the scalars that it waits for, by their names."""
    tree = tree.copy()
    for values in list(tree.find_all(exp.Values)):
        filling = fillings.get(values.meta.get(_SCALAR, ""))
        if filling:
            literal = exp.Null() if filling.value is None else exp.Literal.string(filling.value)
            values.set("expressions", [exp.Tuple(expressions=[exp.cast(literal, filling.type, dialect="duckdb")])])
            values.meta[IDENTITY] = filling.identity
    return tree


def hidden_texts(tree: exp.Query) -> dict[str, str]:
    """Return the expressions of a private query that have hidden names, as text, by these names."""
    hidden = (one for one in tree.find_all(exp.Alias) if one.alias.startswith(HIDDEN))
    return {one.alias: unquoted(one.this) for one in hidden}


def written_out(tree: exp.Query, scalars: Sequence[Scalar] = ()) -> exp.Query:
    """Return a private query for people to read: with values of scalars, without names of hidden values.

    Args:
        tree: the query.
        scalars: those that it waits for, whose queries stand for values that are not known yet.

    """
    queries: dict[str, exp.Expr] = {one.name: exp.Var(this=f"({one.sql})") for one in scalars}
    tree = tree.copy()
    for alias in list(tree.find_all(exp.Alias)):
        if alias.alias.startswith(HIDDEN):
            alias.replace(alias.this)
    for join in list(tree.find_all(exp.Join)):
        name = join.this.meta.get(_SCALAR)
        if name is None:
            continue
        value = join.this.expressions[0].expressions[0].unalias()
        literal = value.this if isinstance(value, exp.Cast) else value
        shown = queries.get(name, exp.Null())
        if isinstance(literal, exp.Literal):
            shown = exp.Literal.number(literal.name)
        for column in list(tree.find_all(exp.Column)):
            if column.table == name:
                column.replace(shown.copy())
        join.pop()
    return tree
