"""What can be looked up without asking the data: policy, budgets, releases, and the plan of a query."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa

from dpsql.accounting import zcdp
from dpsql.errors import PolicyError
from dpsql.query.frame import PRESENCE, Frame, Statistic
from dpsql.query.identity import query_hash
from dpsql.query.private_query import PrivateQuery
from dpsql.release.calibrate import calibrate
from dpsql.release.estimates import noise_sigma
from dpsql.release.histogram import Histogram
from dpsql.session.auto import asked_nano, is_open, may_come, open_price
from dpsql.session.auto_level import origin_sentence
from dpsql.session.considered import mechanism_sentence, not_chosen, threshold_sentence
from dpsql.session.marks import change_note
from dpsql.session.other import joint_terms, other_notes, prepare_other
from dpsql.session.prepared import Prepared, current, held_histogram, prepare
from dpsql.session.reader import Reader
from dpsql.session.receipt import column_receipts, notes
from dpsql.session.result import ColumnReceipt, Result
from dpsql.session.serving import Serving
from dpsql.session.sets import joint_columns, joint_guarantee_of, joint_notes
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    Policy,
    State,
    delta_units_up,
)


def policy_table(state: State) -> Result:
    """FROM dp_policy(): everything declared, one setting a row."""
    policy = state.policy()
    rows: list[tuple[str, str, str, str]] = []
    for unit in policy.units:
        rows += _settings(
            "unit",
            unit.name,
            rho_budget=unit.rho_budget / NANO_PER_RHO,
            delta_threshold=unit.delta_threshold / DELTA_UNITS_PER_ONE,
            delta_conversion=unit.delta_conversion,
        )
    for table in policy.tables:
        rows += _settings(
            "protected table",
            table.table,
            unit=table.unit,
            privacy_unit_column=table.privacy_unit_column if policy.link(table.table) is None else None,
            linked_by=_link_sentence(policy, table.table),
            max_groups_contributed=table.max_groups,
            max_rows_per_group=table.max_rows_per_group,
            default_rho=None if table.default_rho is None else table.default_rho / NANO_PER_RHO,
            default_epsilon=table.default_epsilon,
            default_delta=table.default_delta,
            min_privacy_units_per_group=table.min_units,
            rho_window=None if table.rho_window is None else [level / NANO_PER_RHO for level in table.rho_window],
            rho_ceiling=None if table.rho_ceiling is None else table.rho_ceiling / NANO_PER_RHO,
            separate_people=table.separate_people or None,
            version=table.version,
        )
    for public in policy.public:
        rows += _settings("public table", public.table, public_by_decision=public.decision, version=public.version)
    for domain in policy.domains:
        name = f"{domain.table}.{domain.column}"
        keys = ", ".join(domain.keys) if domain.keys else None
        source = ".".join(domain.keys_from) if domain.keys_from else None
        bounds = f"[{domain.bounds[0]:.12g}, {domain.bounds[1]:.12g}]" if domain.bounds else None
        rows += _settings("domain", name, bounds=bounds, keys=keys, keys_from=source)
    for analyst in policy.analysts:
        limit = "any level" if analyst.rho_limit is None else analyst.rho_limit / NANO_PER_RHO
        rows += _settings("analyst", analyst.name, rho_limit=limit)
    return _table(("kind", "name", "setting", "value"), rows)


def _link_sentence(policy: Policy, table: str) -> str | None:
    link = policy.link(table)
    if link is None:
        return None
    pairs = zip(link.columns, link.parent_columns, strict=True)
    return ", ".join(f"{column} = {link.parent}.{key}" for column, key in pairs)


def _settings(kind: str, name: str, **settings: object) -> list[tuple[str, str, str, str]]:
    return [(kind, name, key, str(value)) for key, value in settings.items() if value is not None]


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Result:
    columns = {name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate(names)}
    return Result(pa.table(columns))


def budget_table(state: State, wanted: str | None, analysts: tuple[str, ...] | None) -> Result:
    """FROM dp_budget('patient', analysts := ['ana', 'bob']): what is spent and left, and what these analysts hold.

    Of one statistic a coalition holds the highest level that any member was shown, of several statistics the sum.

    Args:
        state: the books.
        wanted: a unit, None for all.
        analysts: the coalition, None for everybody.

    Raises:
        PolicyError: there is no such unit.

    """
    units = [unit for unit in state.policy().units if wanted in (None, unit.name)]
    if wanted is not None and not units:
        raise PolicyError(f"there is no privacy unit {wanted!r}")
    rows = []
    for unit in units:
        spent = state.ledger.spent(unit.name)
        held = state.side_table.held(unit.name, analysts)
        rows.append(
            {
                "unit": unit.name,
                "rho_budget": unit.rho_budget / NANO_PER_RHO,
                "rho_spent": spent.rho_nano / NANO_PER_RHO,
                "rho_left": (unit.rho_budget - spent.rho_nano) / NANO_PER_RHO,
                "threshold_delta_budget": unit.delta_threshold / DELTA_UNITS_PER_ONE,
                "threshold_delta_spent": spent.delta_units / DELTA_UNITS_PER_ONE,
                "threshold_delta_left": (unit.delta_threshold - spent.delta_units) / DELTA_UNITS_PER_ONE,
                "epsilon_budget": _epsilon(unit.delta_conversion, unit.rho_budget),
                "epsilon_spent": _epsilon(unit.delta_conversion, spent.rho_nano),
                "delta_budget": unit.delta_threshold / DELTA_UNITS_PER_ONE + unit.delta_conversion,
                "delta_spent": spent.delta_units / DELTA_UNITS_PER_ONE
                + (unit.delta_conversion if spent.rho_nano else 0.0),
                "held_by": "everybody" if analysts is None else ", ".join(analysts),
                "rho_held": held / NANO_PER_RHO,
                "epsilon_held": _epsilon(unit.delta_conversion, held),
                "note": "all releases together; one query alone has less, because it need not compose",
            }
        )
    return Result(pa.Table.from_pylist(rows, schema=_BUDGET_SCHEMA))


_BUDGET_SCHEMA = pa.schema(
    [("unit", pa.string())]
    + [
        (name, pa.float64())
        for name in (
            "rho_budget", "rho_spent", "rho_left", "threshold_delta_budget", "threshold_delta_spent",
            "threshold_delta_left", "epsilon_budget", "epsilon_spent", "delta_budget", "delta_spent",
        )
    ]
    + [("held_by", pa.string()), ("rho_held", pa.float64()), ("epsilon_held", pa.float64())]
    + [("note", pa.string())]
)  # fmt: skip


def _epsilon(delta: float, rho_nano: int) -> float:
    return zcdp.epsilon(delta, rho_nano / NANO_PER_RHO) if rho_nano else 0.0


def releases_table(state: State, reader: str | None) -> Result:
    """FROM dp_releases(): what was released, to one reader or (for the curator) to all.

    The curator alone is told which releases read rows that changed within their version.
    """
    rows = [
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
            "warning": change_note(release),
        }
        for release in state.side_table.releases(reader)
    ]
    schema = _RELEASES_SCHEMA if reader is not None else _RELEASES_SCHEMA.append(pa.field("warning", pa.string()))
    return Result(pa.Table.from_pylist(rows, schema=schema))


def cascade_table(state: State, query_hash: str | None) -> Result:
    """FROM dp_cascade('query hash'): stored points of the statistics of a query, or of all; for the curator.

    Raises:
        PolicyError: no release has this hash, or the beginning of a hash.

    """
    wanted = query_hash or ""
    releases = [release for release in state.side_table.releases() if release.query_hash.startswith(wanted)]
    if query_hash is not None and not releases:
        raise PolicyError(f"no release has the query hash {query_hash!r}; dp_releases() lists them")
    statistics = dict.fromkeys(statistic for release in releases for statistic in release.statistics)
    rows = [
        {
            "statistic": statistic,
            "rho": level.rho_nano / NANO_PER_RHO,
            "sigma": level.sigma,
            "correlation": level.correlation,
            "tau": level.tau,
            "threshold_delta": level.threshold_delta_units / DELTA_UNITS_PER_ONE,
            "keys": level.value_count,
        }
        for statistic in statistics
        for level in state.side_table.levels(statistic)
    ]
    return Result(pa.Table.from_pylist(rows, schema=_CASCADE_SCHEMA))


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


def describe_table(query: PrivateQuery) -> Result:
    """FROM dp_describe($$…$$): names and types of the answer's columns; reads and spends nothing."""
    columns = {"column_name": [one.name for one in query.shown], "column_type": [one.type for one in query.shown]}
    return Result(pa.table(columns, schema=pa.schema({name: pa.string() for name in columns})))


def explain_table(query: PrivateQuery, state: State, reader: Reader) -> Result:
    """FROM dp_explain($$…$$): mechanism, noise, threshold, expected error and price; reads and spends nothing.

    What is stored at the level asked for or above it would be served as stored, so its noise is what is shown.
    """
    if is_open(query):
        return _open_table(query, state, reader)
    query = current(query, state, reader)
    prepared = prepare(query, state, reader)
    items = [item for part in prepared for item in part.items]
    price_rho = sum(item.rho_nano for item in items) / NANO_PER_RHO
    price_delta = sum(item.delta_units for item in items) / DELTA_UNITS_PER_ONE
    rows: list[tuple[str, str, str]] = []
    if query.grouping is None:
        only = prepared[0]
        rows += _explained(only, column_receipts(only.query, only.histogram, _sigmas(only)))
        rows += [("error", "rule", note) for note in notes(only.query, only.terms)]
        if query.other is not None:
            rows += _other_rows(query, only, state, reader)
    else:
        for part, columns in zip(prepared, joint_columns(query.grouping, prepared), strict=True):
            rows.append(("grouping set", "keys", ", ".join(key.sql for key in part.query.frame.keys) or "()"))
            rows += _explained(part, columns)
            rows += [("error", "rule", note) for note in notes(part.query, part.terms)]
        epsilon, delta = joint_guarantee_of(query, prepared)
        rho = sum(level.rho_nano for part in prepared for level in part.terms.levels) / NANO_PER_RHO
        rows.append(("all sets", "rho", f"{rho:.9g}"))
        rows.append(("all sets", "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"))
        rows += [("all sets", "rule", note) for note in joint_notes(query.grouping)]
    rows += [
        ("price", "rho", f"{price_rho:.9g}"),
        ("price", "threshold delta", f"{price_delta:.6g}"),
        ("price", "query hash", query_hash(query)),
    ]
    return _table(("section", "name", "value"), rows)


def _other_rows(query: PrivateQuery, groups: Prepared, state: State, reader: Reader) -> list[tuple[str, str, str]]:
    """The row of the groups that are not shown; which these are is known when they are drawn."""
    row = prepare_other(query, groups, state, reader)
    rho, epsilon, delta = joint_terms(query, groups, row)
    price = sum(item.rho_nano for item in row.items) / NANO_PER_RHO
    rows = [("other group", *_statistic_row(serving, row.histogram)[1:]) for serving in row.servings]
    rows += [
        ("other group", column.name, _expected(column.sigma, column.half_width_95))
        for column in column_receipts(row.query, row.histogram, _sigmas(row))
    ]
    rows += [("other group", "rule", note) for note in other_notes(query)]
    rows += [
        ("with other group", "rho", f"{rho:.9g}"),
        ("with other group", "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"),
        ("with other group", "price", f"rho = {price:.9g} more, nothing where the shown groups have one already"),
    ]
    return rows


def _sigmas(part: Prepared) -> dict[Statistic, float]:
    return {level.statistic: level.sigma for level in part.terms.levels}


def _explained(part: Prepared, columns: Sequence[ColumnReceipt]) -> list[tuple[str, str, str]]:
    """What is grouped, how it is noised, and with which error."""
    query, frame, terms = part.query, part.query.frame, part.terms
    rows: list[tuple[str, str, str]] = [
        *_frame_rows(frame),
        ("frame", "max_groups", _groups_sentence(frame)),
        ("mechanism", "name", mechanism_sentence(frame)),
        ("mechanism", "rho", f"{sum(level.rho_nano for level in terms.levels) / NANO_PER_RHO:.9g}"),
        ("mechanism", "this query alone", f"epsilon = {terms.epsilon:.6g}, delta = {terms.delta:.6g}"),
    ]
    if terms.tau is not None or query.min_units > 1:
        rows.append(("mechanism", "threshold", threshold_sentence(query, terms.tau)))
    rows += [("not chosen", *row) for row in not_chosen(query)]
    rows += [_statistic_row(serving, part.histogram) for serving in part.servings]
    for column in columns:
        rows.append(("expected error", column.name, _expected(column.sigma, column.half_width_95)))
    return rows


def _frame_rows(frame: Frame) -> list[tuple[str, str, str]]:
    return [
        ("frame", "table", f"{frame.table} (version {frame.version})"),
        ("frame", "privacy unit", f"{frame.unit}, by {frame.unit_column.sql}"),
        ("frame", "keys", ", ".join(key.sql for key in frame.keys) or "(one group of all rows)"),
        ("frame", "filter", " AND ".join(frame.filters) or "(none)"),
    ]


def _open_table(query: PrivateQuery, state: State, reader: Reader) -> Result:
    """The plan of a query whose max_groups is yet to be chosen: what AUTO costs, and noise for some of its choices."""
    options = [current(option, state, reader) for option in may_come(query)]
    calibrations = [calibrate(option, held_histogram(option, state)) for option in options]
    first = calibrations[0]
    items = open_price(query)
    reader.require(asked_nano(query, first))
    rows = _frame_rows(query.frame)
    if query.auto is not None:
        numbers = query.auto.candidates
        rows.append((
            "frame", "max_groups",
            f"AUTO: one of {len(numbers)} numbers from {numbers[0]} to {numbers[-1]}, chosen from a noisy histogram of "
            f"units by their number of groups, {origin_sentence(query.auto.level)}",
        ))  # fmt: skip
    else:
        rows.append(("frame", "max_groups", _groups_sentence(query.frame)))
    rows += [
        (
            "bounds", asked.name,
            "AUTO: found in noisy histograms of units by their largest and smallest values, "
            + origin_sentence(asked.level),
        )
        for asked in query.auto_bounds
    ]  # fmt: skip
    rows += [
        ("mechanism", "rho", f"{(first.rho_nano + first.auto_nano) / NANO_PER_RHO:.9g}"),
        ("mechanism", "this query alone", f"epsilon = {first.epsilon:.6g}, delta = {first.delta:.6g}"),
    ]
    for option, calibration in zip(options, calibrations, strict=True):
        sigma = noise_sigma(PRESENCE, calibration.levels[0].sigma, calibration.histogram)
        threshold = "" if calibration.tau is None else f"; {threshold_sentence(option, calibration.tau)}"
        groups = f"max_groups = {option.frame.max_groups}"
        rows.append((f"with {groups}", "distinct units", f"sigma of a count = {sigma:.9g}{threshold}"))
    noise = sum(delta_units_up(level.noise_delta) for level in first.levels)
    delta_units = sum(item.delta_units for item in items)
    rho_nano = first.rho_nano + sum(item.rho_nano for item in items)
    price_delta = (delta_units + noise + delta_units_up(first.threshold_delta)) / DELTA_UNITS_PER_ONE
    rows += [
        ("price", "rho", f"{rho_nano / NANO_PER_RHO:.9g}, or less where an answer is stored"),
        ("price", "threshold delta", f"{price_delta:.6g}"),
    ]
    return _table(("section", "name", "value"), rows)


def _groups_sentence(frame: Frame) -> str:
    if frame.max_groups is None:
        return "any number"
    weighted = frame.counted_groups and f"{frame.max_groups}, with weights {frame.counted_groups}"
    return weighted or str(frame.max_groups)


def _statistic_row(serving: Serving, histogram: Histogram) -> tuple[str, str, str]:
    level, statistic = serving.level, serving.statistic
    source = "to be drawn" if serving.draws else "stored" if serving.is_stored else "from what is stored"
    low, high = statistic.interval
    name = "distinct units" if statistic == PRESENCE else f"{statistic.kind} of {statistic.value_sql or '*'}"
    if statistic.filter_sql:
        name += f" where {statistic.filter_sql}"
    rows = ""
    if statistic.row_bounds_steps is not None:
        least, most = (steps * statistic.lattice for steps in statistic.row_bounds_steps)
        rows = f"a row is clamped to [{least:.9g}, {most:.9g}]; "
    if statistic.cell_bounds is not None:
        least, most = statistic.cell_bounds
        rows = f"a row is in one of {statistic.cells} cells of [{least:.9g}, {most:.9g}]; "
    return (
        "statistic",
        name,
        f"{rows}one unit adds [{low:.9g}, {high:.9g}] to a group, recentred to ±{statistic.radius:.9g}; "
        f"rho = {level.rho_nano / NANO_PER_RHO:.9g}, sigma = {noise_sigma(statistic, level.sigma, histogram):.9g}, "
        f"lattice = {2.0**statistic.noise_exponent:.9g} ({source})",
    )


def _expected(sigma: float | None, half_width: float | None) -> str:
    if sigma is None or half_width is None:
        return "differs by row; see dp_interval_low and dp_interval_high"
    return f"sigma = {sigma:.9g}, 95 % half width = {half_width:.9g}"
