"""Random texts of the everyday spellings, over the tables of ``retail_schema``, each beside a text of plain DuckDB.

The bounds of the schema bind nothing, and each group has many customers. So an answer without noise is that of DuckDB.
Quantiles are read from cells: a tolerance says how far from it they may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

KEYS_OF_COLUMNS = (
    "CALL dp_domain('store_sales', 'quantity', bounds := [0, 6], keys := [1, 2, 3, 4, 5, 6])",
    "CALL dp_domain('store_sales', 'store', keys := [0, 1, 2, 3, 4, 5])",
)
"""Declarations beside those of the schema: lists of values whose modes and histograms are asked."""
EXTREMES = "WITH DIFFERENTIAL_PRIVACY OPTIONS (extremes = 'quantile', coverage = FALSE) "
"""Options of each text. Other tests ask what bounds leave out, which would take half of the time here."""
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Column:
    """A column of a private text, the column of plain DuckDB that it equals, and how far from it it may be."""

    sql: str
    plain: str
    tolerance: float = 0.0


@dataclass(frozen=True)
class SpelledText:
    """A private text, the text of plain DuckDB with its rows, and the tolerance of each column."""

    sql: str
    plain: str
    tolerances: tuple[float, ...]


_KEYS = (
    "t.store",
    "t.quantity > 3",
    "strftime(date_trunc('quarter', t.day) + INTERVAL 40 DAY, '%G')",
    "time_bucket(INTERVAL 1 YEAR, t.day)",
    "strlen(i.category)",
    "replace(i.brand, 'o', 'oo')",
    "regexp_extract(i.category, '^([A-Z])', 1)",
    "regexp_matches(i.brand, '^[AB]')",
    "regexp_replace(i.category, '[aeiou]+', '_')",
    "date_diff('year', DATE '2020-06-01', t.day)",
)
_CONDITIONS = ("t.quantity > 1", "t.amount < 80", "regexp_matches(i.name, '[02468]$')", "strlen(i.brand) = 4")
_VALUES = (("t.amount", 8.0), ("t.profit", 8.0), ("t.quantity", 1.0))


def _quantiles(rng: Random) -> Column:
    (value, tolerance), share = rng.choice(_VALUES), rng.choice(_SHARES)
    spelled = rng.choice(
        (
            f"percentile_cont({share}) WITHIN GROUP (ORDER BY {value})",
            f"percentile_cont({1 - share:.2f}) WITHIN GROUP (ORDER BY {value} DESC)",
            f"percentile_disc({share}) WITHIN GROUP (ORDER BY {value})",
        )
    )
    return Column(spelled, f"quantile_cont({value}, {share})", tolerance)


def _list(rng: Random) -> Column:
    value, tolerance = rng.choice(_VALUES)
    shares = sorted(rng.sample(_SHARES, rng.randint(1, 4)))
    name = rng.choice(("quantile_cont", "approx_quantile", "quantile"))
    return Column(f"{name}({value}, {shares})", f"quantile_cont({value}, {shares})", tolerance)


def _named(rng: Random) -> Column:
    value, tolerance = rng.choice(_VALUES)
    low, high = {"t.amount": (0, 100), "t.profit": (-30, 50), "t.quantity": (0, 6)}[value]
    name = rng.choice(("median", "stddev_samp", "var_pop"))
    return Column(f"dp_{name}({value}, {low}, {high})", f"{name}({value})", tolerance if name == "median" else 0.0)


def _extreme(rng: Random) -> Column:
    (value, tolerance), (name, share) = rng.choice(_VALUES), rng.choice((("min", 0.01), ("max", 0.99)))
    return Column(f"{name}({value})", f"quantile_cont({value}, {share})", tolerance)


def _distinct(rng: Random) -> Column:
    value = rng.choice(("t.item", "t.amount", "t.quantity", "strlen(i.name)"))
    kept = rng.choice(("", " FILTER (WHERE t.quantity < 5)"))
    return Column(f"approx_count_distinct({value}){kept}", f"count(DISTINCT {value}){kept}")


def _sum(rng: Random) -> Column:
    value = rng.choice(("DISTINCT t.amount", "DISTINCT t.profit", "DISTINCT t.quantity", "t.amount", "t.profit"))
    return Column(f"sum({value})", f"sum({value})")


def _pair(rng: Random) -> Column:
    names = ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2")
    one, other = rng.sample(("t.amount", "t.profit", "t.quantity"), 2)
    call = f"{rng.choice(names)}({one}, {other})"
    return Column(call, call, 1e-3)


def _mean(rng: Random) -> Column:
    call = f"geomean({rng.choice(('greatest(t.amount, 1)', 'greatest(t.quantity, 1)'))})"
    return Column(call, call)


def _values(rng: Random) -> Column:
    call = f"histogram({rng.choice(('t.quantity', 't.store'))})"
    return Column(call, call)


_COLUMNS = (_quantiles, _list, _named, _extreme, _distinct, _sum, _pair, _mean)


def random_text(rng: Random, *, with_histograms: bool = True) -> SpelledText:
    """Return a random text of one to three of the spellings, by no key, one key or two.

    Args:
        rng: draws it.
        with_histograms: whether it may ask for counts of values, as a text of two parts.

    """
    keys = rng.sample(_KEYS, rng.choice((0, 1, 1, 2)))
    columns = [rng.choice(_COLUMNS)(rng) for _ in range(rng.randint(1, 3))]
    if with_histograms and len(keys) < 2 and "t.store" not in keys and rng.random() < 0.15:
        columns.append(_values(rng))
    kept = rng.choice(("", f" WHERE {rng.choice(_CONDITIONS)}"))
    source = f"FROM store_sales t JOIN item i ON t.item = i.id{kept}"
    names = [f"k{place}" for place in range(len(keys))]
    listed = [f"{key} AS {name}" for key, name in zip(keys, names, strict=True)]
    again = [f"any_value({key}) AS a{place}" for place, key in enumerate(keys) if rng.random() < 0.3]
    by = f" GROUP BY {', '.join(map(str, range(1, len(keys) + 1)))}" if keys else ""
    if len(keys) == 2 and not again and rng.random() < 0.3:
        by = f" GROUP BY {rng.choice(('ROLLUP', 'CUBE'))} ({', '.join(keys)})"
        # each set of keys has histograms of its own
        columns = [_sum(rng)]
    private, plain = (
        ", ".join([*listed, *again, *(f"{text} AS v{place}" for place, text in enumerate(texts))])
        for texts in ([one.sql for one in columns], [one.plain for one in columns])
    )
    tolerances = [0.0] * (len(keys) + len(again)) + [one.tolerance for one in columns]
    return SpelledText(f"SELECT {EXTREMES}{private} {source}{by}", f"SELECT {plain} {source}{by}", tuple(tolerances))
