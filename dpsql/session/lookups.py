"""What can be looked up without asking the data: policy, budgets, releases, points."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import pyarrow as pa

from dpsql.cascade.reader import CURATOR
from dpsql.errors import PolicyError
from dpsql.mechanism.laplace import LAPLACE
from dpsql.mechanism.weighted_gaussian import WEIGHTED_CORRELATED_GAUSSIAN
from dpsql.receipts.result import Result
from dpsql.release.changed_tables import change_sentences
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    ClearedAnalyst,
    Domain,
    Link,
    ProtectedTable,
    PublicTable,
    Release,
    State,
    Unit,
    amount_of,
    texts_to_arrow,
)


def policy_table(state: State) -> Result:
    """FROM dp_policy(): everything declared, one setting a row."""
    policy = state.policy()
    settings: list[tuple[str, str, Mapping[str, object]]] = [
        *(("unit", unit.name, _unit_settings(unit)) for unit in policy.units),
        *(("protected table", one.table, _table_settings(one, policy.link(one.table))) for one in policy.tables),
        *(("public table", public.table, _public_settings(public)) for public in policy.public),
        *(("domain", f"{one.table}.{one.column}", _domain_settings(one)) for one in policy.domains),
        *(("analyst", one.name, _analyst_settings(one)) for one in policy.analysts),
    ]
    rows = [
        (kind, name, setting, str(value))
        for kind, name, values in settings
        for setting, value in values.items()
        if value is not None
    ]
    return text_table(("kind", "name", "setting", "value"), rows)


def _unit_settings(unit: Unit) -> dict[str, object]:
    return {
        f"{amount_of(unit.composition)}_budget": unit.rho_budget / NANO_PER_RHO,
        "delta_threshold": unit.delta_threshold / DELTA_UNITS_PER_ONE,
        "delta_conversion": unit.delta_conversion,
        "composition": unit.composition,
        "thresholds": unit.thresholds,
    }


def _table_settings(table: ProtectedTable, link: Link | None) -> dict[str, object]:
    pairs = zip(link.columns, link.parent_columns, strict=True) if link else ()
    return {
        "unit": table.unit,
        "privacy_unit_column": None if link else table.privacy_unit_column,
        "linked_by": ", ".join(f"{column} = {link.parent}.{key}" for column, key in pairs) if link else None,
        "max_groups_contributed": table.max_groups,
        "max_rows_per_group": table.max_rows_per_group,
        "max_rows_norm": table.max_rows_norm,
        "max_rows_per_unit": table.max_rows_per_unit,
        "default_rho": _rho(table.default_rho),
        "default_epsilon": table.default_epsilon,
        "default_delta": table.default_delta,
        "min_privacy_units_per_group": table.min_units,
        "rho_window": [level / NANO_PER_RHO for level in table.rho_window] if table.rho_window else None,
        "rho_ceiling": _rho(table.rho_ceiling),
        "separate_people": table.separate_people or None,
        "coverage": table.coverage,
        "time_zone": table.time_zone,
        "version": table.version,
        "archived": table.archived or None,
    }


def _public_settings(public: PublicTable) -> dict[str, object]:
    return {
        "public_by_decision": public.decision,
        "readable": public.readable or None,
        "version": public.version,
    }


def _domain_settings(domain: Domain) -> dict[str, object]:
    return {
        "bounds": f"[{domain.bounds[0]:.12g}, {domain.bounds[1]:.12g}]" if domain.bounds else None,
        "keys": ", ".join(domain.keys) if domain.keys else None,
        "keys_from": ".".join(domain.keys_from) if domain.keys_from else None,
        "ordered": ", ".join(domain.ordered) if domain.ordered else None,
    }


def _analyst_settings(analyst: ClearedAnalyst) -> dict[str, object]:
    return {"rho_limit": _rho(analyst.rho_limit) or "any level", "budget_part": analyst.budget_part}


def _rho(nano: int | None) -> float | None:
    return None if nano is None else nano / NANO_PER_RHO


def text_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Result:
    """Rows of texts under their names."""
    columns = [texts_to_arrow([row[i] for row in rows]) for i in range(len(names))]
    return Result(pa.table(columns, list(names)))


def releases_table(state: State, reader: str) -> Result:
    """FROM dp_releases(): what was released, to one reader or (for the curator) to all.

    The curator alone is told which releases read rows that changed within their version. Of a unit that counts epsilon
    there are no amounts of rho; once there is a release of one, a column says what was charged in epsilon.
    """
    releases = state.history.releases(None if reader == CURATOR else reader)
    rows: list[dict[str, object]] = [
        {
            "at": release.at,
            "analyst": release.analyst,
            "query_hash": release.query_hash,
            "mechanism": release.mechanism,
            "rho": release.rho_nano / NANO_PER_RHO,
            "epsilon": release.epsilon,
            "delta": release.delta,
            "charged_rho": release.charged_rho_nano / NANO_PER_RHO,
            "charged_delta": release.charged_delta_units / DELTA_UNITS_PER_ONE,
            "reused": release.reused,
            "versions": ", ".join(f"{table} @ {version}" for table, version in release.table_versions),
            "warning": "; ".join(change_sentences(release)) or None,
        }
        for release in releases
    ]
    schema = _RELEASES_SCHEMA.append(pa.field("warning", pa.string())) if reader == CURATOR else _RELEASES_SCHEMA
    if any(map(_counts_epsilon, releases)):
        schema = schema.append(pa.field("charged_epsilon", pa.float64()))
        for row, release in zip(rows, releases, strict=True):
            if _counts_epsilon(release):
                row |= {"rho": None, "charged_rho": None, "charged_epsilon": row["charged_rho"]}
    return Result(pa.Table.from_pylist(rows, schema=schema))


def _counts_epsilon(release: Release) -> bool:
    """Return whether the levels and charges of a release are epsilons."""
    return release.mechanism == LAPLACE.name


def cascade_table(state: State, wanted: tuple[str, ...]) -> Result:
    """FROM dp_cascade('query hash'): stored points of the statistics of a query, or of all; for the curator.

    Raises:
        PolicyError: no release has this hash, or the beginning of a hash.

    """
    releases = [one for one in state.history.releases() if not wanted or one.query_hash.startswith(wanted)]
    if wanted and not releases:
        raise PolicyError(f"no release has the query hash {wanted[0]!r}; dp_releases() lists them")
    statistics = {statistic: _counts_epsilon(release) for release in releases for statistic in release.statistics}
    # each chosen key has a deviation of its own
    chosen = {
        one
        for release in releases
        if release.mechanism == WEIGHTED_CORRELATED_GAUSSIAN.name
        for one in release.statistics
    }
    rows = [
        {
            "statistic": statistic,
            "rho": None if is_epsilon else level.rho_nano / NANO_PER_RHO,
            "sigma": None if statistic in chosen else level.sigma,
            "correlation": None if statistic in chosen else level.correlation,
            "tau": level.tau,
            "threshold_delta": level.threshold_delta_units / DELTA_UNITS_PER_ONE,
            "keys": None if statistic in chosen else level.value_count,
            "epsilon": level.rho_nano / NANO_PER_RHO if is_epsilon else None,
        }
        for statistic, is_epsilon in statistics.items()
        for level in state.side_table.levels(statistic)
    ]
    has_epsilon = any(statistics.values())
    schema = _CASCADE_SCHEMA.append(pa.field("epsilon", pa.float64())) if has_epsilon else _CASCADE_SCHEMA
    return Result(pa.Table.from_pylist(rows, schema=schema))


_CASCADE_SCHEMA = pa.schema(
    [("statistic", pa.string())]
    + [(name, pa.float64()) for name in ("rho", "sigma", "correlation", "tau", "threshold_delta")]
    + [("keys", pa.int64())]
)

_RELEASES_SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", tz=str(dt.UTC))),
        ("analyst", pa.string()),
        ("query_hash", pa.string()),
        ("mechanism", pa.string()),
        ("rho", pa.float64()),
        ("epsilon", pa.float64()),
        ("delta", pa.float64()),
        ("charged_rho", pa.float64()),
        ("charged_delta", pa.float64()),
        ("reused", pa.bool_()),
        ("versions", pa.string()),
    ]
)
