"""Random row expressions over every allowed function, cast and comparison, with literals at the ends of every type."""

from __future__ import annotations

from hypothesis import strategies as st

from dpsql.sql.row_rules import FUNCTION_EXAMPLES

TYPES: dict[str, str] = {
    "b": "BOOLEAN", "i": "INTEGER", "j": "BIGINT", "small": "TINYINT", "big": "HUGEINT", "u": "UBIGINT",
    "f": "FLOAT", "v": "DOUBLE", "fee": "DECIMAL(9, 2)", "wide": "DECIMAL(38, 0)", "s": "VARCHAR", "w": "VARCHAR",
    "day": "DATE", "moment": "TIMESTAMP", "seen": "TIMESTAMPTZ", "sec": "TIMESTAMP_S", "milli": "TIMESTAMP_MS",
    "nano": "TIMESTAMP_NS", "id": "UUID", "clock": "TIME", "span": "INTERVAL", "listed": "INTEGER[]",
}  # fmt: skip
"""Columns of the table, each of another type."""

PLAIN = (
    "true, 1, 2, 3, 4, 5, 1.5, 2.5, 3.25, 7, 's', '12', DATE '2026-01-31', TIMESTAMP '2026-01-31 10:00', "
    "TIMESTAMPTZ '2026-01-31 10:00+00', '2026-01-31', '2026-01-31', '2026-01-31', "
    "'00000000-0000-0000-0000-000000000001', TIME '10:00', INTERVAL 1 DAY, [1, 2]"
)
LEAST = (
    "false, -2147483648, -9223372036854775808, -128, -170141183460469231731687303715884105727, 0, '-inf', "
    "'-inf', -9999999.99, -99999999999999999999999999999999999999, '', '', DATE '5877642-06-25 (BC)', "
    "TIMESTAMP '290309-12-22 (BC) 00:00:00', TIMESTAMPTZ '290309-12-22 (BC) 00:00:00+00', "
    "TIMESTAMP '290309-12-22 (BC)', TIMESTAMP '290309-12-22 (BC)', '1677-09-22', "
    "'00000000-0000-0000-0000-000000000000', TIME '00:00', INTERVAL '-99999999 MONTHS', []"
)
MOST = (
    "true, 2147483647, 9223372036854775807, 127, 170141183460469231731687303715884105727, 18446744073709551615, 'inf', "
    "'nan', 9999999.99, 99999999999999999999999999999999999999, 'zzzzzzzzzzzzzzzzzzzz', '99999999999999999999', "
    "DATE '5881580-07-10', TIMESTAMP '294247-01-10 04:00:54', TIMESTAMPTZ '294247-01-10 04:00:54+00', "
    "TIMESTAMP '294247-01-10', TIMESTAMP '294247-01-10', '2262-04-11', 'ffffffff-ffff-ffff-ffff-ffffffffffff', "
    "TIME '23:59:59.999999', INTERVAL 99999999 MONTHS, [2147483647, NULL]"
)
ENDLESS = (
    "NULL, 0, 0, 0, 0, 0, '-0.0', '-0.0', 0, 0, 'infinity', '-infinity', 'infinity', 'infinity', '-infinity', "
    "TIMESTAMP '294247-01-10', TIMESTAMP '290309-12-22 (BC)', 'infinity', NULL, TIME '24:00:00', INTERVAL 0 DAY, NULL"
)
MISSING = ", ".join(["NULL"] * len(TYPES))

_LITERALS = (
    "0", "1", "-1", "2", "0.5", "-0.0", "1e308", "-1e308", "5e-324", "2147483647", "-2147483648", "9223372036854775807",
    "-9223372036854775808", "170141183460469231731687303715884105727", "340282366920938463463374607431768211455",
    "99999999999999999999999999999999999999", "1e400", "127::TINYINT", "-128::TINYINT", "255::UTINYINT",
    "18446744073709551615::UBIGINT", "170141183460469231731687303715884105727::HUGEINT", "'nan'::DOUBLE",
    "'inf'::DOUBLE", "'-inf'::FLOAT", "99.99::DECIMAL(4, 2)", "''", "'x'", "'12'", "'1e9'", "'infinity'", "'-1'",
    "'2020-02-30'", "'2020-01-01'", "'ß'", "'%'", "true", "false", "NULL",
    "DATE '5881580-07-10'", "DATE '5877642-06-25 (BC)'", "DATE 'infinity'", "DATE '-infinity'", "DATE '1970-01-01'",
    "TIMESTAMP '2020-01-31'", "TIMESTAMP '1960-01-01'", "TIMESTAMP '294247-01-10 04:00:54'",
    "TIMESTAMP '290309-12-22 (BC)'", "TIMESTAMP 'infinity'", "TIMESTAMPTZ '2020-01-31 00:00:00+00'",
    "TIMESTAMPTZ '294247-01-10 04:00:54+00'", "TIMESTAMPTZ '-infinity'", "'1677-09-22'::TIMESTAMP_NS",
    "'2262-04-11'::TIMESTAMP_NS", "'294247-01-10'::TIMESTAMP_S", "'290309-12-22 (BC)'::TIMESTAMP_MS",
    "'ffffffff-ffff-ffff-ffff-ffffffffffff'::UUID",
)  # fmt: skip
_CASTS = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL(3, 1)", "DECIMAL(38, 37)", "VARCHAR", "DATE", "TIMESTAMP", "TIMESTAMPTZ",
    "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "UUID",
)  # fmt: skip
_INTERVALS = (
    "INTERVAL 1 DAY", "INTERVAL 99999999 MONTH", "INTERVAL (-99999999) MONTH", "INTERVAL 999999 YEAR",
    "INTERVAL 9223372036 SECOND", "INTERVAL 1 WEEK",
)  # fmt: skip
_PARTS = ("year", "month", "week", "day", "hour", "second", "century", "decade", "quarter", "epoch", "isoyear")
_OPERATORS = ("+", "-", "*", "/", "//", "%", "&", "|", "||", "=", "<>", "<", ">=", "IS DISTINCT FROM", "AND", "OR")
_VARIABLES = ("x", "y", "z", "s", "t", "d", "e", "ts", "c")
_CALLS = tuple(
    example for example in FUNCTION_EXAMPLES if "cast" not in example and not example.startswith(("case", "if("))
)
PLACES = (
    "SELECT count(*) FROM t WHERE ({e}) IS NOT NULL",
    "SELECT count(*) FROM t WHERE i = 1 OR ({c})",
    "SELECT ({e}) AS k, count(*) FROM t GROUP BY k",
    "SELECT sum({e}, contribution_bounds_per_group => (0, 10)) FROM t",
    "SELECT count({e}), count(*) FILTER (WHERE {c}) FROM t",
    "SELECT k, count(*) FROM (SELECT ({e}) AS k FROM t WHERE {c}) GROUP BY k",
    "SELECT k, count(*) FROM (SELECT pid, max({e}) AS k FROM t GROUP BY pid HAVING bool_or({c})) GROUP BY k",
    "SELECT count(*) FROM t JOIN (SELECT pid, ({e}) AS k FROM t) AS o ON o.pid = t.pid AND ({c})",
    "SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM t AS o WHERE o.pid = t.pid AND o.i > 0) AND {c}",
    "SELECT count(DISTINCT {e}, contribution_bounds_per_group => (0, 2)), median(v, contribution_bounds_per_row => "
    "(0, 9)) FILTER (WHERE {c}) FROM t",
)  # fmt: skip


@st.composite
def _calls(draw: st.DrawFn, inner: st.SearchStrategy[str], *, fitting: bool = False) -> str:
    """A call of an allowed function, its arguments replaced by inner ones, or by columns and literals that fit."""
    name, _, rest = draw(st.sampled_from(_CALLS)).partition("(")
    listed = rest.removesuffix(")")
    if not listed:
        return f"{name}()"
    arguments = []
    for argument in listed.split(", "):
        if argument in _VARIABLES:
            arguments.append(draw(_fitting(_KIND_OF[argument]) if fitting else inner))
        elif argument.startswith("interval"):
            arguments.append(draw(st.sampled_from(_INTERVALS)))
        elif " from " in argument:
            arguments.append(f"{draw(st.sampled_from(_PARTS))} FROM {draw(_fitting('d') if fitting else inner)}")
        elif argument.startswith("'") and "%" not in argument:
            arguments.append(f"'{draw(st.sampled_from(_PARTS))}'")
        elif argument.isdigit():
            arguments.append(draw(st.sampled_from((argument, draw(inner)))))
        else:
            arguments.append(argument)
    return f"{name}({', '.join(arguments)})"


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(inner, min_size=1, max_size=3).map(", ".join)
    return st.one_of(
        _calls(inner),
        _calls(inner),
        st.builds("CAST({} AS {})".format, inner, st.sampled_from(_CASTS)),
        st.builds("TRY_CAST({} AS {})".format, inner, st.sampled_from(_CASTS)),
        st.builds("({} {} {})".format, inner, st.sampled_from(_OPERATORS), inner),
        st.builds("({} BETWEEN {} AND {})".format, inner, inner, inner),
        st.builds("({} IN ({}))".format, inner, listed),
        st.builds("({} {} {})".format, inner, st.sampled_from(("+", "-")), st.sampled_from(_INTERVALS)),
        st.builds("CASE WHEN {} THEN {} ELSE {} END".format, _compared(inner), inner, inner),
        st.builds("CASE {} WHEN {} THEN {} END".format, inner, inner, inner),
        st.builds("({} LIKE '1%')".format, inner),
        _compared(inner),
    )


def _compared(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("({} {} {})".format, inner, st.sampled_from(("=", "<", ">=", "<>", "IS DISTINCT FROM")), inner)


_ATOMS = st.sampled_from(tuple(TYPES)) | st.sampled_from(_LITERALS)
_KINDS = {
    "x": ("i", "j", "small", "big", "u", "f", "v", "fee", "wide"),
    "s": ("s", "w"),
    "d": ("day", "moment", "seen"),
    "c": ("b",),
}
"""Columns that a variable of an example may stand for; literals are of all."""
_KIND_OF = {"x": "x", "y": "x", "z": "x", "s": "s", "t": "s", "d": "d", "e": "d", "ts": "d", "c": "c"}
_LITERALS_OF = {
    "x": tuple(one for one in _LITERALS if not one.startswith(("DATE", "TIME", "'")) or "DOUBLE" in one),
    "s": tuple(one for one in _LITERALS if one.startswith("'") and "::" not in one),
    "d": tuple(one for one in _LITERALS if one.startswith(("DATE", "TIME"))),
    "c": ("true", "false", "NULL"),
}


def _fitting(kind: str) -> st.SearchStrategy[str]:
    """A column or literal that the binder takes for a kind, or one of another kind."""
    own = st.sampled_from(_KINDS[kind]) | st.sampled_from(_LITERALS_OF[kind])
    return st.integers(0, 5).flatmap(lambda odd: own if odd else _ATOMS)


@st.composite
def _typed(draw: st.DrawFn) -> str:
    """An expression whose parts fit one another more often than not."""
    form = draw(st.integers(0, 5))
    if form < 3:
        kinds = iter(draw(st.permutations(("x", "s", "d"))))
        return draw(_calls(_fitting(next(kinds)), fitting=True))
    kind = draw(st.sampled_from(("x", "s", "d", "d")))
    inner = _fitting(kind)
    if form == 3:
        return f"({draw(inner)} BETWEEN {draw(inner)} AND {draw(inner)})"
    if form == 4:
        return f"CAST({draw(inner)} AS {draw(st.sampled_from(_CASTS))})"
    return draw(
        st.builds("CASE WHEN {} THEN {} ELSE {} END".format, _compared(inner), inner, inner)
        | st.builds("({} IN ({}, {}))".format, inner, inner, inner)
        | st.builds("({} {} {})".format, inner, st.sampled_from(("+", "-", "*", "//", "||")), inner)
        | st.builds("({} + {})".format, _fitting("d"), st.sampled_from(_INTERVALS))
    )


EXPRESSIONS = _typed() | _typed() | st.recursive(_typed() | _ATOMS, _grown, max_leaves=4)
_SAME = st.sampled_from(("x", "s", "d")).flatmap(
    lambda kind: st.builds("({} BETWEEN {} AND {})".format, *[_fitting(kind)] * 3) | _compared(_fitting(kind))
)
CONDITIONS = _SAME | _SAME | _compared(EXPRESSIONS)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A query of the table."""
    return draw(st.sampled_from(PLACES)).format(e=draw(EXPRESSIONS), c=draw(CONDITIONS))
