"""Golden records: what one SQL text must plan, answer, cost or be refused for, as files that people can read.

A record is a directive, lines of settings, the SQL, and, after ``----``, what must come out; records are separated by
empty lines and ``#`` begins a comment line. Directives:

    plan      the frame, the statistics with interval, centre and radius, and the finish
    exact     the rows that the query gives on the tiny tables below with no noise, no threshold, and no floor added to
              counts; with other_group the groups of one unit are those that are not shown
    types     names and DuckDB types of the result's columns
    cost      price of each statement in nano-rho, and of asking it again
    run       rows that each statement gives (declarations and what can be looked up)
    refuse    error type and, per refusal, ``code@line:column`` (or just ``@line:column`` for other errors)

Settings are ``params`` (a Python literal), ``options`` (keyword arguments) and, for ``refuse``, lines of ``declare``
(a statement that changes the policy for this record alone). ``cost`` and ``run`` start from a fresh session each and
take several statements, one after each line that ends in a semicolon.

``python -m tests.sql.golden_records`` writes what comes out now into the files; review them before you keep them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import dpsql
from dpsql.bound.formulations import Formulation, chooses_groups
from dpsql.bound.statement import Bounded
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import Sandbox
from dpsql.errors import ParseError, SchemaError
from dpsql.mechanism.registry import choose
from dpsql.model.estimates import RunningSum
from dpsql.model.frame import Frame, Norm
from dpsql.model.private_query import AutoGroups, Buckets, FrameQuery, PrivateQuery
from dpsql.model.query_kinds import GroupingSets, KeysAlone, KeysFirst, OneSet, WithOtherGroup
from dpsql.plan.environment.policy_view import environment
from dpsql.release import exact as exact_module
from dpsql.release import points as shown_module
from dpsql.release import round_keys
from dpsql.release.runtime import Runtime
from dpsql.session.chosen import Chosen
from dpsql.session.plan_cache import PlanCache
from dpsql.session.runner import answer
from dpsql.sql.statements import Scalar, SelectStatement, read_statement
from dpsql.state import Spent, State
from tests.end_to_end.printed_answers import require_short_lines
from tests.noise_sources import NoNoise, silence

FOLDER = Path(__file__).parent
NOW = dt.datetime(2026, 11, 21, 12, 30, tzinfo=dt.UTC)
DIRECTIVES = ("plan", "exact", "types", "cost", "run", "refuse")

TABLES = """
CREATE TABLE visits (patient_id INTEGER, city VARCHAR, diagnosis VARCHAR, cost DOUBLE, fee DECIMAL(10,2) NOT NULL,
                     urgent BOOLEAN, day DATE);
INSERT INTO visits VALUES
    (1, 'Lund', 'flu', 100, 10.50, true, '2026-01-05'), (1, 'Lund', 'flu', 700, 20.25, false, '2026-01-06'),
    (1, 'Malmö', 'cold', 50, 5.00, true, '2026-02-01'),
    (2, 'Lund', 'flu', NULL, 1.00, NULL, '2026-01-05'), (2, 'Lund', 'cold', 20, 2.00, true, '2026-03-01'),
    (3, 'Malmö', 'cold', 10, 1.00, false, '2026-02-01'), (3, 'Malmö', 'cold', 10, 1.00, false, '2026-02-01'),
    (3, 'Malmö', 'cold', 10, 1.00, false, '2026-02-01'), (3, 'Malmö', 'cold', 10, 1.00, false, '2026-02-01'),
    (3, 'Malmö', 'cold', 10, 1.00, false, '2026-02-01'),
    (4, NULL, 'flu', 30, 3.00, true, '2026-02-02'), (5, 'Oslo', 'flu', 'nan', 4.00, false, '2026-02-03'),
    (NULL, 'Lund', 'flu', 400, 9.99, true, '2026-01-05');
CREATE TABLE bills (patient_id INTEGER, kind VARCHAR, amount DOUBLE, "Zip Code" VARCHAR);
CREATE TABLE cities (name VARCHAR);
INSERT INTO cities VALUES ('Lund'), ('Malmö'), ('Ystad');
CREATE TABLE kinds (diagnosis VARCHAR, kind VARCHAR);
INSERT INTO kinds VALUES ('flu', 'common'), ('cold', 'common'), ('cold', 'seasonal'), ('gout', 'rare');
CREATE TABLE drafts (patient_id INTEGER);
CREATE TABLE stays (stay_id INTEGER PRIMARY KEY, patient_id INTEGER);
INSERT INTO stays VALUES (10, 1), (11, 1), (12, 2), (13, NULL);
CREATE TABLE meals (stay_id INTEGER, dish VARCHAR);
INSERT INTO meals VALUES (10, 'soup'), (10, 'soup'), (11, 'fish'), (12, 'soup'), (13, 'soup'), (14, 'fish');
CREATE VIEW visits_view AS SELECT * FROM visits;
"""

POLICY = (
    "CALL dp_unit('patient', rho_budget := 1000, delta_threshold := 1e-3, delta_conversion := 1e-6, "
    "composition := 'zcdp')",
    "CALL dp_protect('visits', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'patient_id', max_groups_contributed := 2, "
    "max_rows_per_group := 3, default_rho := 0.1, default_delta := 1e-9)",
    "CALL dp_protect('bills', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'patient_id', max_rows_norm := 10)",
    "CALL dp_protect('stays', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'patient_id', max_groups_contributed := 1, "
    "max_rows_per_unit := 40)",
    "CALL dp_link('meals', 'stay_id', coverage := FALSE, parent := 'stays.stay_id', max_groups_contributed := 3, "
    "max_rows_per_group := 2, default_rho := 0.1)",
    "CALL dp_public('cities')",
    "CALL dp_public('kinds')",
    "CALL dp_domain('visits', 'city', keys_from := 'cities.name')",
    "CALL dp_domain('visits', 'urgent', keys := [true, false])",
    "CALL dp_domain('visits', 'cost', bounds := [0, 500])",
)


OF_CURATORS = re.compile(r"dp_(?:unit|protect|link|domain|public|analyst|new_version)|Session\.connection")
"""Words for what a curator alone can do."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One record; ``expected`` is the header's rest for ``refuse`` and the lines after ``----`` for the others."""

    file: str
    line: int
    directive: str
    sql: str
    params: list[Scalar] | dict[str, Scalar] | None
    options: Mapping[str, Any]
    expected: tuple[str, ...]
    declared: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def records() -> list[Record]:
    """All records of all files."""
    return [record for path in sorted(FOLDER.glob("*.test")) for record in _read(path)]


def _read(path: Path) -> Iterator[Record]:
    for line, block in _blocks(path.read_text(encoding="utf-8")):
        directive, _, rest = block[0].partition(" ")
        if directive not in DIRECTIVES:
            raise ValueError(f"{path.name}:{line}: unknown directive {directive!r}")
        body = block[1:]
        settings: dict[str, str] = {}
        declared: list[str] = []
        while body and body[0].partition(" ")[0] in ("params", "options", "declare"):
            name, _, text = body.pop(0).partition(" ")
            settings[name] = text
            declared += [text] if name == "declare" else []
        cut = body.index("----") if "----" in body else len(body)
        expected = (rest,) if directive == "refuse" else tuple(body[cut + 1 :])
        call = ast.parse(f"f({settings.get('options', '')})", mode="eval").body
        assert isinstance(call, ast.Call)
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        params = ast.literal_eval(settings["params"]) if "params" in settings else None
        yield Record(path.name, line, directive, "\n".join(body[:cut]), params, options, expected, tuple(declared))


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if line and not line.startswith("#"):
            block.append(line)
        elif not line and block:
            yield number - len(block), block
            block = []


def new_session(rows: str = "") -> dpsql.Session:
    """Return a new session on the tiny tables, and more rows if SQL for them is given, with the policy declared."""
    session = dpsql.connect(threads=1)
    session.connection.execute(TABLES + rows)
    for statement in POLICY:
        session.sql(statement)
    return session


See = Callable[[PrivateQuery, dpsql.Result, State], None]
"""Is shown a plan, its answer, and the state that the answer was written to."""


def _see_nothing(*_: object) -> None:
    pass


class Clinic:
    """The tiny tables behind the planner, with a fixed clock; nothing is charged here."""

    def __init__(self, *declarations: str, rows: str = "", session: dpsql.Session | None = None) -> None:
        self.session = session or new_session(rows)
        for declaration in declarations:
            self.session.sql(declaration)
        self.engine = self.session._runner.engine
        self.sandbox = Sandbox()
        policy = self.session._access.read().policy()
        self.environment = dataclasses.replace(
            environment(policy, self.engine, self.sandbox, Reader(CURATOR)), clock=lambda: NOW
        )
        self._plans = PlanCache()

    def close(self) -> None:
        self.sandbox.close()
        self.session.close()

    def plan(self, record: Record) -> PrivateQuery:
        statement = read_statement(record.sql, record.params)
        assert isinstance(statement, SelectStatement)
        query = self._plans.plan(statement, record.options, self.environment, CURATOR)
        return choose(query) if query.first.auto else query

    def outcome(self, record: Record, see: See = _see_nothing) -> tuple[str, ...]:
        """Return what comes out of a record now, in the form of its expectation.

        Args:
            record: one of any directive.
            see: is shown each answer that was computed from a plan without AUTO.

        """
        match record.directive:
            case "refuse":
                return (self._refusal(record),)
            case "plan" | "exact" | "types":
                query = self.plan(record)
                if record.directive == "exact":
                    return self.exact(query, see)
                if see is not _see_nothing and not query.first.auto:
                    self.answer(query, see)
                if record.directive == "plan":
                    return tuple(_plan_lines(query))
                return tuple(f"{column.name} {column.type}" for column in query.shown)
            case "cost":
                with self.afresh() as session:
                    # steps towards a relative error depend on the noise
                    silence(session)
                    return tuple(_price(session, record, sql) for sql in _statements(record.sql))
            case _:
                with self.afresh() as session:
                    results = [session.sql(sql, record.params, **record.options) for sql in _statements(record.sql)]
                    return tuple(line for result in results for line in _rows(result.arrow()))

    @contextlib.contextmanager
    def afresh(self) -> Iterator[dpsql.Session]:
        """The session on a copy of its state, in which nothing is asked yet; the copy ends with the block."""
        with contextlib.closing(self.session._access.copied()) as copied:
            runner = self.session._runner
            with mock.patch.object(runner, "access", copied), mock.patch.object(self.session, "_access", copied):
                yield self.session

    @contextlib.contextmanager
    def declaring(self, record: Record) -> Iterator[dpsql.Session]:
        """The session with what a record declares, on a copy of its state if it declares something."""
        if not record.declared:
            yield self.session
            return
        with self.afresh() as session:
            for declaration in record.declared:
                session.sql(declaration)
            yield session

    def _refusal(self, record: Record) -> str:
        with self.declaring(record) as session:
            try:
                session.sql(record.sql, record.params, **record.options)
            except dpsql.DpsqlError as error:
                state = session._access.read()
                assert state.ledger.spent("patient") == Spent(0, 0), "a refusal costs nothing"
                assert not state.history.releases(), "a refusal releases nothing"
                told = set(OF_CURATORS.findall(str(error.for_analyst())))
                known = record.sql.startswith("CALL") or told <= set(OF_CURATORS.findall(record.sql))
                assert known, "an analyst is told what an analyst can write"
                return self._reasons(error)
        return "answered"

    @staticmethod
    def _reasons(error: dpsql.DpsqlError) -> str:
        if isinstance(error, dpsql.UnsupportedQueryError):
            for refusal in error.refusals:
                assert refusal.message, "a refusal says what is wrong"
                assert refusal.hint, "a refusal says what to write instead"
            return " ".join([type(error).__name__, *(f"{r.code}{_place(r.span)}" for r in error.refusals)])
        span = error.span if isinstance(error, ParseError | SchemaError) else None
        return f"{type(error).__name__} {_place(span)}".strip()

    def answer(self, query: PrivateQuery, see: See = _see_nothing) -> dpsql.Result:
        """Answer a plan without noise, on a copy of the state."""
        with contextlib.closing(self.session._access.copied()) as access:
            runtime = Runtime(access.read(), self.engine, self.sandbox, NoNoise())
            result = answer(Chosen(query, Reader(CURATOR)), runtime, timeout_seconds=None)
            require_short_lines(result)
            see(query, result, runtime.state)
            return result

    def exact(self, query: PrivateQuery, see: See = _see_nothing) -> tuple[str, ...]:
        """The answer without noise and without a threshold, which is the same in both formulations."""
        # which keys are shown decides on later rounds, and on the row of the other groups
        shows_all = isinstance(query, OneSet | GroupingSets)
        if see is not _see_nothing and not query.first.auto and not shows_all:
            self.answer(query, see)
        seen_here = see if shows_all and not query.first.auto else _see_nothing
        in_groups = self._exact_rows(query, "groups_first", seen_here)
        if any(chooses_groups(part.frame.bounding.finer or part.frame) for part in query.parts):
            assert sorted(self._exact_rows(query, "rows_first")) == sorted(in_groups)
        return in_groups

    def _exact_rows(self, query: PrivateQuery, formulation: Formulation, see: See = _see_nothing) -> tuple[str, ...]:
        least = 2 if isinstance(query, WithOtherGroup) else 1

        def formulation_of(bounded: Bounded, *_: object) -> Formulation:
            return formulation if chooses_groups(bounded.frame.bounding.finer or bounded.frame) else "groups_first"

        def keys_of_units(counts: np.ndarray, tau: float | None, _: int) -> np.ndarray:
            return np.flatnonzero((counts >= least) | (tau is None))

        with (
            mock.patch.object(exact_module, "choose_formulation", formulation_of),
            mock.patch.object(shown_module, "shown_keys", keys_of_units),
            mock.patch.object(round_keys, "shown_keys", keys_of_units),
            mock.patch.object(shown_module, "_floors", return_value=(0.0, 0.0)),
            # units are bounded by one salt, whatever is kept of them
            mock.patch("dpsql.state.side_table.os.urandom", bytes),
        ):
            return tuple(_rows(self.answer(query, see).arrow()))


def _statements(text: str) -> list[str]:
    return [part for part in re.split(r";\n", text) if part.strip()]


def _place(span: dpsql.Span | None) -> str:
    return f"@{span.line}:{span.column}" if span is not None else ""


def _price(session: dpsql.Session, record: Record, sql: str) -> str:
    first, second = (session.sql(sql, record.params, **record.options).receipt for _ in range(2))
    assert first is not None
    assert second is not None
    return f"{round(first.charged_rho * 10**9)}, again {round(second.charged_rho * 10**9)}"


def _plan_lines(query: PrivateQuery) -> Iterator[str]:
    match query:
        case GroupingSets(parts=parts, sets=sets):
            shown = [[key.sql for key in parts[place].frame.keys] for place in sets]
            yield f"sets {', '.join('(' + ', '.join(keys) + ')' for keys in shown)}"
            for part in parts:
                yield from _frame_lines(part)
        case WithOtherGroup((groups,), name, row):
            yield from _frame_lines(groups)
            yield f"other {name!r}"
            yield from _frame_lines(row)
        case KeysAlone((part,)):
            yield "keys alone"
            yield from _frame_lines(part)
        case KeysFirst((numbers, selection)):
            yield from _frame_lines(numbers)
            yield "keys first"
            yield from _frame_lines(selection)
        case OneSet((part,)):
            yield from _frame_lines(part)
    finish = query.first.finish
    yield from (f"shows {column.name}: {column.sql}" for column in finish.columns)
    if finish.having:
        yield f"having {finish.having}"
    if finish.order_by:
        yield f"order {', '.join(finish.order_by)}"
    if finish.limit is not None or finish.offset is not None:
        yield f"limit {finish.limit} offset {finish.offset}"


def _frame_lines(query: FrameQuery) -> Iterator[str]:
    frame = query.frame
    keys = ", ".join(f"{key.sql} {key.type}" for key in frame.keys) or "none"
    if frame.public_keys is not None:
        keys += f" ({frame.public_keys.count} public)"
    ceiling = "" if frame.ceiling is None else f"; ceiling {frame.ceiling / 1e9:g}"
    bounding = frame.bounding
    weighted = "" if bounding.counted_groups is None else f", with weights {bounding.counted_groups}"
    bounded = f"at most {'any number of' if bounding.max_groups is None else bounding.max_groups} groups{weighted}"
    if bounding.finer is not None:
        bounded = f"sums of finer groups, at most {frame.finer_per_group} of a unit in one, {frame.unit_groups} squared"
    read = f", {bounding.max_rows} rows of a unit" if bounding.max_rows else ""
    yield f"keys {keys}; {bounded}{', by norm' if bounding.by_norm else ''}{read}{ceiling}"
    others = [_mechanism(other) for other in query.alternatives]
    if others or frame.mechanism not in ("gaussian", "gshm"):
        yield f"by {_mechanism(frame)}" + (f", not by {' or '.join(others)}" if others else "")
    if frame.window is not None:
        yield f"window from {frame.window.low} to {frame.window.high} nano-rho, delta={frame.window.delta:g}"
    yield from (f"where {condition}" for condition in frame.rows.filters)
    for statistic, weight in zip(query.statistics, query.weights, strict=True):
        low, high = statistic.interval
        parts = [statistic.kind, statistic.value_sql, f"where {statistic.filter_sql}" if statistic.filter_sql else ""]
        if statistic.histogram is not None:
            cells = statistic.histogram
            parts.append(f"{cells.count} cells of {[cells.low, cells.high]}")
        if statistic.row_cap is not None:
            parts.append(f"of {statistic.row_cap} rows")
        if isinstance(norm := statistic.limit, Norm):
            parts.append(f"as {norm.row_steps / 2:g} rows" if norm.row_steps else "by norm")
        parts.append(
            f"in [{low:.9g}, {high:.9g}] = {statistic.centre:.9g} ± {statistic.radius:.9g}, "
            f"lattice 2^{statistic.lattice_exponent}, share {weight:.4f}"
        )
        yield " ".join(part for part in parts if part)
    if isinstance(query.groups, Buckets):
        made_of = zip(query.keys, query.groups.sources, strict=True)
        sources = [key.sql if source is None else f"key_{source}" for key, source in made_of]
        axis, groups = query.groups.ordering.axis, query.groups.places
        yield f"buckets of key_{axis} by {', '.join(sources) or 'nothing'}: {groups}"
    for i, estimate in enumerate(query.estimates):
        if isinstance(estimate.value, RunningSum):
            ordering, span = estimate.value.total.ordering, estimate.value.total.span
            direction = "downwards" if ordering.descending else "upwards"
            reach = "from the first" if span is None else f"over {span}"
            yield f"total agg_{i} along key_{ordering.axis} of {ordering.lengths} {direction} {reach}"
    request = query.request
    asked = {"rho": request.rho, "epsilon": request.epsilon, "delta": request.delta}
    asked["min_units"] = request.min_units if request.min_units > 1 else None
    wishes = [name for name in ("refresh", "own_threshold") if getattr(request, name)]
    levels = [f"{name}={value:g}" for name, value in asked.items() if value is not None]
    yield " ".join(["asks", *levels, *wishes])
    if query.auto:
        names = (
            "max_groups" if isinstance(one, AutoGroups) else f"{one.statistic.kind} {one.name}" for one in query.auto
        )
        yield f"first asks AUTO: {', '.join(names)}"


def _mechanism(frame: Frame) -> str:
    sparsity = frame.bounding.sparsity
    return frame.mechanism if sparsity is None else f"{frame.mechanism} on {sparsity.kind} of {sparsity.k}"


def _rows(table: pa.Table) -> Iterator[str]:
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield " | ".join(_shown(value) for value in row)


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    # least squares leave a rounding where a sum is 0
    return f"{0.0 if abs(value) < 1e-12 else value:.9g}" if isinstance(value, float) else str(value)


def rewrite() -> None:
    """Write what comes out now into the files."""
    clinic = Clinic()
    for path in sorted(FOLDER.glob("*.test")):
        lines = path.read_text(encoding="utf-8").split("\n")
        for record in reversed(list(_read(path))):
            try:
                outcome = clinic.outcome(record)
            except dpsql.DpsqlError as error:
                outcome = (f"{type(error).__name__}: {error}".replace("\n", " "),)
            start = record.line - 1
            end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
            if record.directive == "refuse":
                lines[start] = f"refuse {outcome[0]}"
                continue
            cut = lines.index("----", start, end) if "----" in lines[start:end] else end
            lines[cut:end] = ["----", *outcome]
        path.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")
    clinic.close()


if __name__ == "__main__":
    rewrite()
