"""DuckDB's SQL plus the private clauses, as a sqlglot dialect.

Added to the DuckDB dialect:

- ``SELECT WITH DIFFERENTIAL_PRIVACY [OPTIONS (name = value, …)] …`` (GoogleSQL's clause);
- named arguments on aggregates (``contribution_bounds_per_group => (lo, hi)``), after DISTINCT too;
- ``CALL f(…)`` as a statement with a tree, where sqlglot keeps (and logs) opaque text;
- ``x AT TIME ZONE 'zone'`` as the call ``timezone('zone', x)``, so that one expression has one spelling;
- ``FETCH FIRST n ROWS ONLY`` as LIMIT, whole numbers of intervals in parentheses, and names in back quotes;
- a place in the text for every call and every leaf of the tree, and the name that a function was written with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.errors import ParseError, Span
from dpsql.operations.spans import span_at

MAX_NODES = 100_000
"""Largest tree: a text that unfolds to more is a mistake or an attack on the curator's memory."""

_E = TypeVar("_E", bound=exp.Expr)
_PLAIN_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SETS = {TokenType.CUBE, TokenType.ROLLUP, TokenType.GROUPING_SETS}
_MOST_WRITTEN = 60
TOO_DEEP = "the query is nested too deeply"


class DifferentialPrivacy(exp.Expression):
    """The clause ``WITH DIFFERENTIAL_PRIVACY OPTIONS (…)``; stands in the ``hint`` slot of a SELECT."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": False}


class Call(exp.Expression):
    """The statement ``CALL f(…)``; ``this`` is the function with its arguments."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


def _builder(name: str, node: type[exp.AggFunc] | None = None) -> Callable[[list[exp.Expr]], exp.Expr]:
    """Makes a call by name of arguments; of one argument the node, if one is given."""
    return lambda arguments: (
        node(this=arguments[0]) if node and len(arguments) == 1 else exp.Anonymous(this=name, expressions=arguments)
    )


AGGREGATE_NODES: tuple[tuple[str, type[exp.AggFunc], tuple[str, ...]], ...] = (
    ("count", exp.Count, ()),
    ("count_if", exp.CountIf, ("COUNT_IF", "COUNTIF")),
    ("sum", exp.Sum, ("SUM",)),
    ("avg", exp.Avg, ("AVG", "MEAN")),
    ("var_pop", exp.VariancePop, ("VAR_POP",)),
    ("var_samp", exp.Variance, ("VAR_SAMP", "VARIANCE")),
    ("stddev_pop", exp.StddevPop, ("STDDEV_POP",)),
    ("stddev_samp", exp.StddevSamp, ("STDDEV_SAMP",)),
    ("stddev_samp", exp.Stddev, ("STDDEV",)),
    ("bool_or", exp.LogicalOr, ("BOOL_OR", "LOGICAL_OR")),
    ("bool_and", exp.LogicalAnd, ("BOOL_AND", "LOGICAL_AND")),
)
"""Private aggregates with their sqlglot nodes, and spellings of which the node has no place for named arguments.

With these they are calls by name.
"""
CALLED_BY_NAME = (
    *("median", "quantile", "quantile_cont", "quantile_disc", "approx_quantile"),
    *("geomean", "geometric_mean"),
    *("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2"),
)
"""Private aggregates that are calls by name always."""
_BY_NAME = (
    "approx_quantiles", "approx_top_k", "array_insert", "array_remove_at", "array_union_agg", "collation", "compress",
    "datetime", "decompress_binary", "decompress_string", "decrypt", "decrypt_raw", "editdist3", "encrypt",
    "encrypt_raw", "last_day_of_month", "levenshtein", "minhash", "number_to_str", "parse_ip", "parse_url", "rand",
    "random", "sha2", "sort_array", "soundex", "timestamp_diff", "timestampdiff", "to_binary", "to_char",
    "to_double", "to_number",
)  # fmt: skip
"""Functions that sqlglot cannot always write as DuckDB SQL, or reads wrongly. They are calls by name, too."""


class PrivateParser(DuckDBParser):
    """DuckDB's parser with the private clauses."""

    FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: parser for name, parser in DuckDBParser.FUNCTION_PARSERS.items() if name.lower() not in CALLED_BY_NAME
    }

    FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
        **DuckDBParser.FUNCTIONS,
        **{spelling: _builder(name, node) for name, node, spellings in AGGREGATE_NODES for spelling in spellings},
        **{name.upper(): _builder(name) for name in (*CALLED_BY_NAME, *_BY_NAME)},
        "APPROX_COUNT_DISTINCT": _builder("approx_count_distinct", exp.ApproxDistinct),
    }

    QUERY_MODIFIER_PARSERS: ClassVar[dict[TokenType, Callable[..., Any]]] = {
        **DuckDBParser.QUERY_MODIFIER_PARSERS,
        TokenType.FETCH: lambda self: ("limit", self._parse_fetch()),
    }

    def _parse_fetch(self) -> exp.Limit:
        """Read ``FETCH FIRST n ROWS ONLY`` as the LIMIT that it means."""
        fetch = self._parse_limit()
        count, options = fetch and fetch.args.get("count"), fetch and fetch.args.get("limit_options")
        is_number = count is None or count.is_int or isinstance(count, exp.Placeholder | exp.Parameter)
        if not is_number or not options or options.args.get("percent") or options.args.get("with_ties"):
            self.raise_error("Expecting a number of rows, as in FETCH FIRST 10 ROWS ONLY")
        return self.expression(exp.Limit(expression=count or exp.Literal.number(1)))

    def _parse_interval_span(self, this: exp.Expr, parse_function_unit: bool = True) -> exp.Interval:
        """Read an interval. A whole number in parentheses is the number itself."""
        number = this.unnest()
        return super()._parse_interval_span(number if number.is_int else this, parse_function_unit)

    def _parse_statement(self) -> exp.Expr | None:
        if self._match_text_seq("CALL"):
            function = self._parse_function(optional_parens=False)
            if function is None:
                self.raise_error("CALL needs a function with its arguments in parentheses")
            return self.expression(Call(this=function))
        return super()._parse_statement()

    def expression(self, instance: _E, token: Token | None = None, comments: list[str] | None = None) -> _E:
        """Finish a node; a leaf gets the place of its token."""
        built: _E = super().expression(instance, token, comments)
        if next(built.iter_expressions(), None) is None and "end" not in built.meta:
            built.update_positions(self._prev)
        return built

    def _parse_function_call(
        self,
        functions: dict[str, Callable[..., Any]] | None = None,
        anonymous: bool = False,
        optional_parens: bool = True,
        any_token: bool = False,
    ) -> exp.Expr | None:
        token = self._curr
        call = super()._parse_function_call(functions, anonymous, optional_parens, any_token)
        function = call
        while isinstance(function, exp.Expr) and not isinstance(function, exp.Func):
            function = function.args.get("this")
        if isinstance(function, exp.Func):
            function.update_positions(token)
            function.meta["written"] = token.text
            for argument in function.expressions:
                if isinstance(argument, exp.Kwarg | exp.PropertyEQ):
                    _keep_auto(argument)
        return call

    def _parse_at_time_zone(self, this: exp.Expr | None) -> exp.Expr | None:
        if this is None or not self._match_text_seq("AT", "TIME", "ZONE"):
            return this
        token = self._tokens[self._index - 3]
        zone = self._parse_unary()
        if zone is None:
            self.raise_error("AT TIME ZONE needs a zone, as in AT TIME ZONE 'Europe/Berlin'")
        call = exp.Anonymous(this="timezone", expressions=[zone, this])
        call.update_positions(token)
        call.meta["written"] = "timezone"
        return self._parse_at_time_zone(call)

    def _parse_lambda(self, alias: bool = False) -> exp.Expr | None:
        if not self._match(TokenType.DISTINCT):
            return super()._parse_lambda(alias)
        # DISTINCT ends where named arguments of the call begin
        values = [self._parse_disjunction()]
        while not self._is_before_named_argument() and self._match(TokenType.COMMA):
            values.append(self._parse_disjunction())
        if len(values) > 1 and None in values:
            self.raise_error("DISTINCT takes values, as in count(DISTINCT x)")
        return self._parse_order(self.expression(exp.Distinct(expressions=values)))

    def _is_before_named_argument(self) -> bool:
        following = self._tokens[self._index : self._index + 3]
        return len(following) == 3 and following[2].token_type in (TokenType.FARROW, TokenType.COLON_EQ)

    def _warn_unsupported(self) -> None:
        """Log nothing: sqlglot would write the text of a statement that it keeps opaque to the log."""

    def _parse_placeholder(self) -> exp.Expr | None:
        token = self._curr
        placeholder = super()._parse_placeholder()
        if isinstance(placeholder, exp.Placeholder):
            # sqlglot leaves no position on it, and the values of ? go by position
            placeholder.update_positions(token)
        return placeholder

    def _parse_hint(self) -> exp.Hint | None:
        if not self._match_text_seq("WITH", "DIFFERENTIAL_PRIVACY"):
            return super()._parse_hint()
        options = self._parse_wrapped_csv(self._parse_option) if self._match_text_seq("OPTIONS") else []
        # sqlglot types this slot as Hint; it only ever hangs the node under the key "hint".
        return self.expression(DifferentialPrivacy(expressions=options))  # type: ignore[return-value]

    def _parse_option(self) -> exp.Expr | None:
        """Read ``name = value``; the ``:=`` of declarations has a message of its own."""
        option = self._parse_disjunction()
        if self._curr and self._curr.token_type in (TokenType.COLON_EQ, TokenType.FARROW):
            value = self._tokens[self._index + 1].text if self._index + 1 < len(self._tokens) else "…"
            name = option.name if isinstance(option, exp.Column) else "name"
            self.raise_error(f"an option is given with =. Write {name} = {value}")
        return option


class GroupingSetsParser(PrivateParser):
    """The parser of a text with grouping sets, whose terms are expressions of any kind, as in ``ROLLUP (x > 1, y)``.

    sqlglot reads no comparison there, and no condition.
    """

    KINDS: ClassVar[dict[TokenType, type[exp.Cube | exp.Rollup]]] = {
        TokenType.CUBE: exp.Cube,
        TokenType.ROLLUP: exp.Rollup,
    }

    def _parse_cube_or_rollup(self, with_prefix: bool = False) -> exp.Cube | exp.Rollup | None:
        kind = self.KINDS.get(self._curr.token_type) if self._curr and not with_prefix else None
        if kind is None:
            return super()._parse_cube_or_rollup(with_prefix)
        self._advance()
        return self.expression(kind(expressions=self._parse_wrapped_csv(self._parse_disjunction)))

    def _parse_grouping_set(self) -> exp.Expr | None:
        return self._parse_grouping_sets() or self._parse_cube_or_rollup() or self._parse_disjunction()


class PrivateDuckDB(DuckDB):
    """DuckDB with the private clauses."""

    Parser = PrivateParser

    class Tokenizer(DuckDB.Tokenizer):
        """DuckDB's tokenizer, to which CALL is a word like any other, and back quotes are quotes of names."""

        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]
        # sqlglot looks for the end of a text $n$…$n$ after a parameter $n, and would lose its place at a later ''
        STRING_ESCAPES_ALLOWED_IN_RAW_STRINGS = False
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            word: kind for word, kind in DuckDB.Tokenizer.KEYWORDS.items() if word != "CALL"
        }


def _keep_auto(argument: exp.Expr) -> None:
    """The word AUTO as bounds or norm, in a named argument, is no column."""
    value = argument.args["expression"]
    bounds = argument.this.name.lower().startswith(("contribution_bounds_", "contribution_norm"))
    if bounds and isinstance(value, exp.Column) and not value.table and value.name.upper() == "AUTO":
        word = exp.Var(this="AUTO")
        word.meta.update(value.this.meta)
        value.replace(word)


def span_of(node: exp.Expr, text: str) -> Span | None:
    """Place of a node in ``text``, from the positions that the parser left on it and on its parts."""
    positions = [part.meta for part in node.walk() if part.meta.get("end") is not None]
    if not positions:
        return span_of(node.parent, text) if node.parent is not None else None
    return span_at(text, min(p["start"] for p in positions), max(p["end"] for p in positions) + 1)


def parse_statement(text: str) -> exp.Expr:
    """Parse exactly one statement.

    Raises:
        ParseError: the text is no statement, is several, or is not valid; carries the place where known.

    """
    require_unicode(text)
    dialect = PrivateDuckDB()
    tokens: list[Token] = []
    try:
        tokens = dialect.tokenize(text)
        for token in tokens:
            # sqlglot obeys comments: some rename functions, some write into the tree
            token.comments.clear()
        kind = GroupingSetsParser if _SETS & {token.token_type for token in tokens} else PrivateParser
        statements = [one for one in kind(dialect=dialect, max_nodes=MAX_NODES).parse(tokens, text) if one is not None]
    except SqlglotError as error:
        from dpsql.operations.syntax_errors import syntax_error  # noqa: PLC0415 — only if a text is refused

        raise syntax_error(error, tokens, text, parse_statement) from None
    except RecursionError:
        raise ParseError(TOO_DEEP) from None
    except (ValueError, AttributeError):
        from dpsql.operations.syntax_errors import blank_error  # noqa: PLC0415 — only if a text is refused

        # sqlglot stumbles over its own tree, as at {: 5}
        raise blank_error(tokens, text) or ParseError("not valid SQL") from None
    if len(statements) != 1:
        raise ParseError(f"expected one SQL statement, found {len(statements)}")
    return statements[0]


def require_unicode(text: str) -> None:
    """Refuse lone surrogates, which no engine can read.

    Raises:
        ParseError: the text holds one.

    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ParseError("the text holds half a character (a lone surrogate)") from None


def to_sql(node: exp.Expr) -> str:
    """DuckDB text of a tree, identifiers quoted, comments dropped; the only way SQL is written.

    Raises:
        ParseError: a part of the tree has no DuckDB text; it is not dropped silently.

    """
    try:
        return node.sql(
            dialect=DuckDB,
            identify=True,
            comments=False,
            normalize_functions="lower",
            unsupported_level=ErrorLevel.RAISE,
        )
    except SqlglotError:
        raise ParseError(f"{written(node)} cannot be written as DuckDB SQL.") from None


def unquoted(node: exp.Expr) -> str:
    """Return the DuckDB text of a tree for people: names quoted only where they must be, columns as they were called.

    A column of a join may have another name in the joined rows. Its identifier remembers table and name of the text.
    """
    copied = node.copy()
    for column in copied.find_all(exp.Column):
        if called := column.this.meta.get("called"):
            table, name = called
            column.set("table", exp.to_identifier(table) if table else None)
            column.this.set("this", name)
    for identifier in copied.find_all(exp.Identifier):
        identifier.set("quoted", not _PLAIN_NAME.match(identifier.name))
    return copied.sql(dialect=DuckDB, comments=False, normalize_functions="lower", unsupported_level=ErrorLevel.IGNORE)


def shown_call(text: str) -> str:
    """Return the text of a call as receipts print it."""
    return unquoted(parse_statement(f"SELECT {text}").expressions[0])


def written(node: exp.Expr) -> str:
    """Short text of a node for messages; a function goes by the name it was written with."""
    name = node.meta.get("written")
    if name is not None:
        return f"{str(name).lower()}()"
    if isinstance(node, DifferentialPrivacy):
        return "OPTIONS"
    copied = node.copy()
    for select in copied.find_all(exp.Select):
        # a message has no room for options
        select.set("hint", None)
    text = unquoted(copied)
    return text if len(text) <= _MOST_WRITTEN else f"{text[: _MOST_WRITTEN - 1].rstrip()}…"


def quote(identifier: str) -> str:
    """An identifier as quoted DuckDB text."""
    return '"' + identifier.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text as DuckDB reads it, in single quotes."""
    return "'" + text.replace("'", "''") + "'"
