"""What the curator watches, in Prometheus' text format: requests, questions, their true times, rows and prices."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dpsql.frontends.server.query import Query
from dpsql.session import Result

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Counters of one server; nothing in them holds a literal, a key or a token."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "dpsql_requests", "Requests of analysts.", ("method", "route", "status"), registry=registry
        )
        self._queries = Counter("dpsql_queries", "Questions that ended.", ("analyst", "outcome"), registry=registry)
        self._seconds = Histogram(
            "dpsql_query_seconds", "Time a worker took, unrounded.", ("analyst",), buckets=_SECONDS, registry=registry
        )
        self._rows = Counter("dpsql_answer_rows", "Rows of the answers shown.", ("analyst",), registry=registry)
        self._rho = Counter("dpsql_charged_rho", "What answers took from the budgets.", ("analyst",), registry=registry)
        self._waiting = Gauge("dpsql_waiting", "Questions without an outcome.", ("state",), registry=registry)
        self._left = Gauge("dpsql_rho_left", "What each unit has left.", ("unit",), registry=registry)
        self._tables = Gauge("dpsql_table_rows", "Rows of each table, as estimated.", ("table",), registry=registry)

    def requested(self, method: str, route: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(method, route, str(status)).inc()

    def worked(self, analyst: str, seconds: float) -> None:
        """A worker gave a question back, whatever is shown of it, and when."""
        self._seconds.labels(analyst).observe(seconds)

    def ended(self, query: Query) -> None:
        """A question has its outcome, and its turn is over."""
        self._queries.labels(query.analyst, query.state).inc()
        if isinstance(query.outcome, Result):
            self._rows.labels(query.analyst).inc(len(query.outcome))
            if query.outcome.receipt is not None:
                self._rho.labels(query.analyst).inc(query.outcome.receipt.charged_rho)

    def text(
        self, queries: Iterable[Query], rho_left: Iterable[tuple[str, float]], rows: Iterable[tuple[str, int]]
    ) -> bytes:
        """Everything, as of now."""
        counts = {"queued": 0, "working": 0}
        for query in queries:
            if query.outcome is None:
                counts["queued" if query.began_at is None else "working"] += 1
        for state, count in counts.items():
            self._waiting.labels(state).set(count)
        for unit, left in rho_left:
            self._left.labels(unit).set(left)
        for table, count in rows:
            self._tables.labels(table).set(count)
        return generate_latest(self._registry)
