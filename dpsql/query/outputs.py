"""What is computed from keys and aggregates: select list, HAVING and ORDER BY, checked and rewritten."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.query.aggregate_calls import OVER_RESULT, is_aggregate_call, is_interval_call
from dpsql.query.allowed import check_grouped
from dpsql.query.clauses import Clauses
from dpsql.query.dialect import quote, to_sql, written
from dpsql.query.environment import Column, Environment, types_of
from dpsql.query.keys import Key
from dpsql.query.names import ResolvedSelect
from dpsql.query.private_query import Estimate, Finish, OutputColumn
from dpsql.query.refusals import Refusals
from dpsql.query.shielded import as_condition, guarded
from dpsql.query.windows import is_over_result, parts_of, range_terms, window_sql

_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")


def check_outputs(resolved: ResolvedSelect, refusals: Refusals) -> None:
    """Note a refusal for every part that is neither a key nor an aggregate nor computed from them."""
    keys = {to_sql(key) for key in resolved.keys}

    def answered(node: exp.Expr) -> bool:
        return is_aggregate_call(node) or is_interval_call(node) or is_over_result(node) or to_sql(node) in keys

    def check(root: exp.Expr) -> None:
        for node in check_grouped(root, refusals, answered):
            if is_over_result(node):
                for part in parts_of(node):
                    check(part)
            elif is_interval_call(node) and interval_target(node, resolved) is None:
                refusals.add(
                    "interval_argument", node, f"{written(node)} takes the alias of one aggregate.",
                    "Write count(*) AS n, dp_interval_low(n).",
                )  # fmt: skip

    for root in resolved.outputs:
        check(root)


def interval_target(node: exp.Expr, resolved: ResolvedSelect) -> exp.Expr | None:
    """The aggregate that dp_interval_low(alias) is about; None where the argument is no alias of one aggregate."""
    argument = node.expressions[0] if len(node.expressions) == 1 else None
    if not isinstance(argument, exp.Column) or argument.table:
        return None
    named = [item.expression for item in resolved.items if item.name.lower() == argument.name.lower()]
    return named[0] if named and is_aggregate_call(named[0]) else None


class Finisher:
    """Rewrites the select list, HAVING and ORDER BY into SQL over the noisy table."""

    def __init__(
        self,
        clauses: Clauses,
        resolved: ResolvedSelect,
        keys: Sequence[Key],
        aggregate_texts: Sequence[str],
        estimates: Sequence[Estimate],
        environment: Environment,
        text: str,
    ) -> None:
        self._clauses = clauses
        self._resolved = resolved
        self._estimates = estimates
        self._environment = environment
        self._text = text
        by_sql = {key.sql: index for index, key in enumerate(keys)}
        self._keys = {text: by_sql[text] for text in map(to_sql, resolved.keys)}
        self._aggregates = {text: index for index, text in enumerate(aggregate_texts)}
        self._windows: dict[str, exp.Expr] = {}
        self._noisy = [Column(f"key_{i}", key.type, True) for i, key in enumerate(keys)]
        for i, estimate in enumerate(estimates):
            self._noisy.append(Column(f"agg_{i}", estimate.type, True))
            self._noisy += [Column(f"agg_{i}_{end}", "DOUBLE", True) for end in ("low", "high")]

    def finish(self) -> Finish:
        """The SQL of every output, with its type.

        Raises:
            SchemaError: an output does not bind.

        """
        texts = [self._rewrite(item.expression) for item in self._resolved.items]
        having, qualify = (self._condition(node) for node in (self._resolved.having, self._resolved.qualify))
        # a constant orders nothing, and written out it would be read as a position
        ordering = [term for term in self._resolved.order if any(map(_varies, term.walk()))]
        terms = [(term, self._rewrite(term.this)) for term in ordering]
        shown = [(item.expression, text) for item, text in zip(self._resolved.items, texts, strict=True)]
        windows = list(self._windows)
        kinds = types_of(self._environment, self._noisy, [(self._windows[sql], sql) for sql in windows], self._text)
        noisy = [*self._noisy, *(Column(f"window_{i}", kind, True) for i, kind in enumerate(kinds))]
        types = types_of(self._environment, noisy, shown, self._text)
        # what does not bind is refused now, before anything is charged
        types_of(self._environment, noisy, [*having, *qualify, *terms], self._text)
        columns = tuple(
            OutputColumn(item.name, text, kind, self._aggregates.get(to_sql(item.expression)))
            for item, text, kind in zip(self._resolved.items, texts, types, strict=True)
        )
        # ties are broken by the keys, which tell rows apart, so that the order never depends on anything else
        order = [f"{guarded(text)} {_direction(term)}" for term, text in terms]
        order += [f"{quote(f'key_{index}')} ASC NULLS LAST" for index in self._keys.values()]
        conditions = [part[0][1] if part else "" for part in (having, qualify)]
        limits = self._clauses.limit, self._clauses.offset
        return Finish(columns, conditions[0], tuple(windows), conditions[1], tuple(order), *limits)

    def _condition(self, node: exp.Expr | None) -> list[tuple[exp.Expr, str]]:
        return [] if node is None else [(node, as_condition(self._rewrite(node)))]

    def _rewrite(self, root: exp.Expr) -> str:
        copied = exp.Paren(this=root.copy())
        self._replace(copied)
        return to_sql(copied.this)

    def _replace(self, parent: exp.Expr) -> None:
        for child in list(parent.iter_expressions()):
            # the function of a window may read as an aggregate does
            replacement = None if child.meta.get(OVER_RESULT) else self._noisy_column(child)
            if replacement is not None:
                child.replace(replacement)
                continue
            self._replace(child)
            if isinstance(child, exp.Window):
                child.replace(self._window_column(child))

    def _window_column(self, node: exp.Window) -> exp.Expr:
        for term in range_terms(node):
            # in the type of a whole number the ends of a range may lie beyond it, which fails aloud
            (kind,) = types_of(self._environment, self._noisy, [(term.this, to_sql(term.this))], self._text)
            if kind in _WHOLE:
                term.set("this", exp.cast(term.this.copy(), "HUGEINT", dialect="duckdb"))
        sql = window_sql(node, [f"key_{index}" for index in sorted(self._keys.values())])
        self._windows.setdefault(sql, node)
        place = list(self._windows).index(sql)
        return exp.column(exp.to_identifier(f"window_{place}", quoted=True))

    def _noisy_column(self, node: exp.Expr) -> exp.Expr | None:
        text = to_sql(node)
        if text in self._keys:
            return exp.column(exp.to_identifier(f"key_{self._keys[text]}", quoted=True))
        if text in self._aggregates:
            return exp.column(exp.to_identifier(f"agg_{self._aggregates[text]}", quoted=True))
        if is_interval_call(node):
            return self._interval_column(node)
        return None

    def _interval_column(self, node: exp.Expr) -> exp.Expr:
        target = interval_target(node, self._resolved)
        if target is None:
            raise AssertionError("check_outputs refused this call before")
        end = node.name.lower().removeprefix("dp_interval_")
        return exp.column(exp.to_identifier(f"agg_{self._aggregates[to_sql(target)]}_{end}", quoted=True))


def _varies(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Window) or is_aggregate_call(node) or is_interval_call(node)


def _direction(term: exp.Expr) -> str:
    direction = "DESC" if term.args.get("desc") else "ASC"
    return f"{direction} NULLS {'FIRST' if term.args.get('nulls_first') else 'LAST'}"
