"""Comparisons of columns in SQL: of one type, or of whole numbers of two widths.

DuckDB compares two other types through a cast that may fail on a row, or that may hold different values equal.
"""

from __future__ import annotations

_SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
"""Whole-number types, each wider than the one before."""


def compared_type(one: str, other: str) -> str:
    """Return the type in which values of two types are compared, or an empty text if there is none.

    Of whole numbers it is the narrowest type that has all values of both: a cast to it fails on no value, and keeps
    different values apart.

    >>> compared_type("INTEGER", "BIGINT"), compared_type("UINTEGER", "INTEGER"), compared_type("UHUGEINT", "UTINYINT")
    ('BIGINT', 'BIGINT', 'UHUGEINT')
    >>> compared_type("DATE", "DATE"), compared_type("INTEGER", "VARCHAR"), compared_type("HUGEINT", "UHUGEINT")
    ('DATE', '', '')

    """
    if one == other:
        return one
    bare = [kind.removeprefix("U") for kind in (one, other)]
    if not all(kind in _SIGNED for kind in bare):
        return ""
    widths = [_SIGNED.index(kind) for kind in bare]
    unsigned = [kind.startswith("U") for kind in (one, other)]
    if all(unsigned):
        return f"U{_SIGNED[max(widths)]}"
    # a signed type has the values of an unsigned one from the next width on
    needed = max(width + is_unsigned for width, is_unsigned in zip(widths, unsigned, strict=True))
    return _SIGNED[needed] if needed < len(_SIGNED) else ""


def comparison(left: str, sign: str, right: str, types: tuple[str, str]) -> str:
    """Return SQL that compares two columns of the given types.

    Texts are compared by their bytes, because DuckDB cannot compare two collations.
    """
    one, other = comparable(left, right, types)
    return f"{one} {sign} {other}"


def comparable(left: str, right: str, types: tuple[str, str]) -> tuple[str, str]:
    """Return two columns as SQL of one type and under no collation."""
    one, other = (cast_to(sql, kind, compared_type(*types)) for sql, kind in zip((left, right), types, strict=True))
    return bytewise(one, types[0]), bytewise(other, types[1])


def cast_to(sql: str, before: str, after: str) -> str:
    """Return SQL of one type as SQL of another; the cast is not written if there is nothing to do."""
    return sql if before == after else f"CAST({sql} AS {after})"


def bytewise(sql: str, kind: str) -> str:
    """Return a value as it is compared, under no collation."""
    return f'{sql} COLLATE "binary"' if kind == "VARCHAR" else sql
