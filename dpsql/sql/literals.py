"""Literals that cannot be cast to the type of what they are compared or computed with.

``admitted > '2025-13-01'`` is NULL on every row, because no date is written so. Such a query would be charged and say
nothing. So each operator and call that has a literal is computed once, on one row of NULLs in an empty database. If the
cast of the literal fails there, it fails on every row, and the query is refused. No row of a table is read for it.

An ENUM is read as text, so a literal beside one is compared as text. It is never refused: members of an ENUM are not
public.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column, Environment
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.sql.statements import MOST_TYPED_NODES

_PASSIVE = (exp.Var, exp.DataType, exp.DataTypeParam, exp.Identifier, exp.Interval, exp.Star)
"""Parts of an operator or call that have no value of their own."""
_CASTS = (exp.Cast, exp.Date)
_WITHOUT_VALUE = (exp.Paren, exp.Column, exp.TryCast, exp.Is, *_PASSIVE)
"""Nodes that cast none of their literals."""
_OF_ONE_TYPE = (exp.Predicate, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)
"""Operators and calls whose operands have one type."""
_NO_NUMBER = re.compile(r"DATE|TIMESTAMP.*|UUID")
"""Types that no number can be cast to."""
_EXAMPLES = (
    (re.compile(r"DATE"), "'2025-01-31'"),
    (re.compile(r"TIMESTAMP.*"), "'2025-01-31 12:00:00'"),
    (re.compile(r"TIME"), "'12:00:00'"),
    (re.compile(r"INTERVAL"), "'1 day'"),
    (re.compile(r"BOOLEAN"), "true"),
    (re.compile(r"UUID"), "'00000000-0000-0000-0000-000000000001'"),
    (re.compile(r".*INT.*|DECIMAL.*|FLOAT|DOUBLE"), "1"),
)
"""Types with a literal of each."""
_OTHERS = ("1", "'2025-01-31'")
"""Literals of which one fits where the type is not known."""
_MOST_WRITTEN = 80
_MOST_QUOTED = 40


@dataclass(frozen=True, slots=True)
class _Trial:
    """An expression that is computed on one row of NULLs.

    Attributes:
        node: the operator or call of the query that it is about.
        tree: the expression: the node, or one of its branches where the row of NULLs takes another one.
        literals: literals of ``tree`` that may not be cast.

    """

    node: exp.Expr
    tree: exp.Expr
    literals: tuple[exp.Expr, ...]

    def with_literals(self, count: int) -> exp.Expr:
        """Return the expression with NULL in place of all literals but the first ``count``."""
        return self._replaced({id(literal): exp.null() for literal in self.literals[count:]})

    def with_example(self, literal: exp.Expr, example: str) -> exp.Expr:
        """Return the expression with an example in place of one literal, and NULL in place of all others."""
        others = {id(other): exp.null() for other in self.literals if other is not literal}
        return self._replaced({**others, id(literal): _parsed(example)})

    def _replaced(self, parts: Mapping[int, exp.Expr]) -> exp.Expr:
        copied = self.tree.copy()
        for original, copy in list(zip(self.tree.walk(), copied.walk(), strict=True)):
            if id(original) in parts:
                copy.replace(parts[id(original)])
        return copied


def check_literals(
    roots: Sequence[exp.Expr],
    columns: Sequence[Column],
    environment: Environment,
    refusals: Refusals,
) -> None:
    """Note a refusal for the first literal of each operator or call that cannot be cast to the type that it needs.

    Args:
        roots: expressions.
        columns: the columns that they read, with their types.
        environment: computes on a row of NULLs.
        refusals: collects.

    """
    trials = [trial for root in roots for trial in _trials(root, {column.name: column.type for column in columns})]
    if not trials or sum(1 for trial in trials for _ in trial.tree.walk()) > MOST_TYPED_NODES:
        return
    computer = _Computer(columns, environment)
    failing = computer.failing([trial.tree for trial in trials])
    refused: set[int] = set()
    # the innermost one is said: what is around it fails with it
    for trial in (trials[place] for place in reversed(failing)):
        if any(id(part) in refused for part in trial.node.walk() if part is not trial.node):
            continue
        literal = computer.first_failing(trial)
        if literal is not None:
            refused.add(id(trial.node))
            _refuse(trial, literal, computer, refusals)


def as_truth(node: exp.Expr) -> exp.Expr:
    """Return a condition as an operand of NOT if it is a literal, so that it has an operator that casts it."""
    return exp.Not(this=node.copy()) if _is_text(node.unnest()) else node


@dataclass(frozen=True, slots=True)
class _Computer:
    """Computes expressions on one row of NULLs."""

    columns: Sequence[Column]
    environment: Environment

    def failing(self, trees: Sequence[exp.Expr]) -> tuple[int, ...]:
        """Return the places of expressions in which a conversion fails."""
        return self.environment.schemas.failed_conversions(tuple(self.columns), tuple(map(to_sql, trees)))

    def first_failing(self, trial: _Trial) -> exp.Expr | None:
        """Return the first literal of a trial that cannot be cast. Return None if something else fails."""
        others = [part for part in _operands(trial.tree) if not any(part is one for one in trial.literals)]
        if self.failing([trial.with_literals(0), *others]):
            return None
        low, high = 0, len(trial.literals)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.failing([trial.with_literals(middle)]) else (middle, high)
        return trial.literals[low]

    def type_beside(self, trial: _Trial) -> tuple[str, exp.Expr | None]:
        """Return the type that the literals of a trial meet, and the operand that has it; an empty text if unknown."""
        if isinstance(trial.node, _CASTS):
            return to_sql(trial.node.to) if isinstance(trial.node, exp.Cast) else "DATE", None
        others = [
            part for part in _operands(trial.tree) if not isinstance(part, (exp.Literal, exp.RawString, exp.Null))
        ]
        for part in others:
            try:
                (kind,) = self.environment.schemas.describe(self.columns, [to_sql(part)])
            except SchemaError:
                continue
            if kind != "VARCHAR":
                return kind, part
        return "", None


def _refuse(trial: _Trial, literal: exp.Expr, computer: _Computer, refusals: Refusals) -> None:
    """Note the refusal of a literal, with an expression to write in its place."""
    is_condition = isinstance(trial.node, exp.Connector | exp.Not)
    kind, beside = ("BOOLEAN", None) if is_condition else computer.type_beside(trial)
    examples = [example for pattern, example in _EXAMPLES if pattern.fullmatch(kind)]
    fits = (one for one in (*examples, *_OTHERS) if not computer.failing([trial.with_example(literal, one)]))
    example = next(fits, "NULL")
    text = to_sql(literal) if len(to_sql(literal)) <= _MOST_QUOTED else "this literal"
    name = _shown(beside, refusals.text, _MOST_QUOTED) if beside else ""
    whose = f", the type of {name}" if name else ""
    is_known = kind and isinstance(trial.node, (*_OF_ONE_TYPE, *_CASTS, exp.Connector, exp.Not))
    refusals.add(
        "literal",
        literal,
        f"{text} cannot be read as {kind}{whose}."
        if is_known
        else f"{text} cannot be read as a value of the type that is needed here.",
        f"Give a value of that type, as in {_cure(trial, literal, example, refusals.text) or example}.",
    )


def _cure(trial: _Trial, literal: exp.Expr, example: str, text: str) -> str:
    """Return the operator or call with an example in place of a literal; an empty text if it is not in the text so."""
    copied = trial.node.copy()
    for original, copy in list(zip(trial.node.walk(), copied.walk(), strict=True)):
        if original is literal and copy is not copied and not isinstance(trial.node, exp.Connector | exp.Not):
            copy.replace(_parsed(example))
            return _shown(copied, text, _MOST_WRITTEN)
    return ""


def _shown(node: exp.Expr, text: str, most: int) -> str:
    """Return a node as people read it; an empty text if it is long, or has columns of which the text says nothing."""
    names = [column.this.meta.get("called", ("", column.name))[1] for column in node.find_all(exp.Column)]
    shown = unquoted(node)
    return shown if len(shown) <= most and all(name.lower() in text.lower() for name in names) else ""


def _parsed(example: str) -> exp.Expr:
    if example.startswith("'"):
        return exp.Literal.string(example.strip("'"))
    return {"true": exp.true, "NULL": exp.null}[example]() if example.isalpha() else exp.Literal.number(example)


def _trials(root: exp.Expr, types: Mapping[str, str]) -> Iterator[_Trial]:
    """Return the trials of an expression, from the outermost node to the innermost."""
    if _is_text(root) and isinstance(root.parent, exp.Where):
        yield _Trial(root, (tree := as_truth(root)), (tree.this,))
    for node in root.walk():
        if isinstance(node, exp.Case) or (isinstance(node, exp.If) and not isinstance(node.parent, exp.Case)):
            yield from _trials_of_case(node, types)
        elif isinstance(node, _CASTS) and not isinstance(node, exp.TryCast):
            operand = node.this.unnest()
            if not node.this.find(exp.Column) and not isinstance(operand, exp.Null):
                yield _Trial(node, node, (operand,))
        elif isinstance(node, exp.Interval):
            if _is_text(node.this):
                yield _Trial(node, node, (node.this,))
        elif not isinstance(node, (*_WITHOUT_VALUE, exp.If)):
            yield from _trial(node, node, types)


def _trial(node: exp.Expr, tree: exp.Expr, types: Mapping[str, str]) -> Iterator[_Trial]:
    """Return the trial of an operator or call, if it has a literal beside something that is no text."""
    operands = _operands(tree)
    held = [types.get(part.name, "") for part in operands if isinstance(part, exp.Column)]
    numbers = any(map(_NO_NUMBER.fullmatch, held))
    literals = tuple(part for part in operands if _is_text(part) or (numbers and _is_number(part)))
    others = [part for part in operands if not any(part is one for one in literals)]
    texts_alone = len(held) == len(others) and all(kind == "VARCHAR" for kind in held)
    is_constant_call = isinstance(tree, exp.Func) and not isinstance(tree, _OF_ONE_TYPE) and not held
    if literals and not (texts_alone and held) and not (is_constant_call and not tree.find(exp.Column)):
        yield _Trial(node, tree, literals)


def _trials_of_case(node: exp.Expr, types: Mapping[str, str]) -> Iterator[_Trial]:
    """Return the trials of CASE and if(): each comparison, each condition and each branch by itself."""
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    default = node.args.get("default") or node.args.get("false")
    for branch in branches:
        condition = branch.this.unnest()
        if isinstance(node, exp.Case) and node.this:
            yield from _trial(node, exp.EQ(this=node.this.copy(), expression=condition.copy()), types)
        elif _is_text(condition):
            yield _Trial(node, (tree := as_truth(condition)), (tree.this,))
    values = [part for part in (*(branch.args["true"] for branch in branches), default) if part is not None]
    others = [part for part in values if not _is_text(part.unnest()) and not isinstance(part.unnest(), exp.Null)]
    if all(isinstance(part, exp.Column) and types.get(part.name) == "VARCHAR" for part in others):
        return
    for value in values:
        if _is_text(value.unnest()):
            literal = value.unnest().copy()
            ifs = [exp.If(this=exp.false(), true=other.copy()) for other in others]
            yield _Trial(node, exp.Case(ifs=ifs, default=literal), (literal,))


def _operands(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of an operator or call that have a value, without parentheses."""
    children = node.args.get("ifs") if isinstance(node, exp.Case) else None
    parts = [branch.args["true"] for branch in children] if children else list(node.iter_expressions())
    return [part.unnest() for part in parts if not isinstance(part, _PASSIVE)]


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and bool(node.is_string))


def _is_number(node: exp.Expr) -> bool:
    """Check that a node is a number, true or false."""
    inner = node.this if isinstance(node, exp.Neg) else node
    return isinstance(inner, exp.Boolean) or (isinstance(inner, exp.Literal) and not inner.is_string)
