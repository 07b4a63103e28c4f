"""The tour behind ``dpsql demo``: two data sets, two questions, their prices, and what is refused.

Its pictures are one page of HTML that needs no other file and asks nothing of the network.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dpsql.assets import asset
from dpsql.errors import BudgetError, QueryError
from dpsql.pictures.charts import matplotlib_module, own_figure, svg_of
from dpsql.session import Receipt, Result, Session, connect, plot_budget, plot_cascade

WIDTH = 98
EPSILON, DELTA = 2.0, 1e-8
ROWS_SHOWN = 8
Rows = Mapping[Any, Sequence[Any]]
TABLES = {
    "flights": ("sample_data", "flights.parquet"),
    "visits": ("sample_data", "clinic", "visits.parquet"),
}
DECLARATIONS = (
    "CALL dp_unit('aircraft', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('flights', unit := 'aircraft', privacy_unit_column := 'tailnum')",
    "CALL dp_domain('flights', 'air_time', bounds := [0, 400])",
    "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient_id',\n"
    "                max_groups_contributed := 64, max_rows_norm := 24)",
    "CALL dp_domain('visits', 'cost', bounds := [0, 1500])",
)

FLIGHTS = """\
SELECT carrier, count(DISTINCT tailnum) AS aircraft, avg(air_time) AS minutes,
       dp_interval_low(aircraft) AS aircraft_low, dp_interval_high(aircraft) AS aircraft_high,
       dp_interval_low(minutes) AS minutes_low, dp_interval_high(minutes) AS minutes_high
FROM flights GROUP BY carrier ORDER BY aircraft DESC"""
VISITS = """\
SELECT diagnosis, count(DISTINCT patient_id) AS patients, avg(cost) AS mean,
       dp_interval_low(patients) AS patients_low, dp_interval_high(patients) AS patients_high,
       dp_interval_low(mean) AS mean_low, dp_interval_high(mean) AS mean_high
FROM visits GROUP BY diagnosis ORDER BY patients DESC"""
TRUE_FLIGHTS = "SELECT carrier, count(DISTINCT tailnum), avg(air_time) FROM flights GROUP BY carrier"
TRUE_VISITS = """\
SELECT diagnosis, count(DISTINCT patient_id), avg(cost) FROM visits WHERE patient_id IS NOT NULL GROUP BY diagnosis"""
NEVER_PRIVATE = "SELECT carrier, max(dep_delay) FROM flights GROUP BY carrier"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 52rem; margin: 2rem auto;
       padding: 0 1rem }
pre { background: #f4f6f8; padding: .7rem 1rem; overflow-x: auto; font-size: .85rem }
figure { margin: 0 } svg { width: 100%; height: auto }
table { border-collapse: collapse; font-size: .9rem } th, td { padding: .1rem .7rem; text-align: left }
summary { cursor: pointer; color: #0072b2 }
"""
_GROUPS_SHOWN = 25
_INTERVAL = "95 % interval"


def run_demo(page: Path | None = None) -> None:
    """Take the tour, in a temporary folder that is removed at its end.

    Args:
        page: a file that gets its pictures as one page of HTML.

    Raises:
        MissingPackageError: pictures are wanted and matplotlib is not installed; nothing was told.

    """
    if page is not None:
        matplotlib_module("matplotlib")
        # found out now, and not at the end of the tour
        page.touch()
    with tempfile.TemporaryDirectory(prefix="dpsql-demo-") as folder, connect(Path(folder, "demo.duckdb")) as curator:
        tour = _Tour(curator)
        tour.run()
        if page is not None:
            page.write_text(tour.page(), encoding="utf-8")


class _Tour:
    """The steps of the tour."""

    def __init__(self, curator: Session) -> None:
        self._curator = curator
        self._ana = curator.as_analyst("ana")
        self._ben = curator.as_analyst("ben")

    def run(self) -> None:
        """All steps in order."""
        self._protect()
        self._flights = self._ask_for_flights()
        self._visits = self._ask_for_visits()
        self._ask_again(self._flights)
        self._be_refused()
        _title("Where to go from here")
        _say(
            'With your own data: dpsql query DB "CALL dp_unit(…)" and dp_protect as above; dpsql explain DB '
            '"SELECT …" shows noise and price and spends nothing; dpsql budget DB shows what is left; dpsql --help '
            "lists the rest. In Python: dpsql.connect('my.duckdb').sql('SELECT …')."
        )

    def page(self) -> str:
        """What can be seen of the tour, once it was taken: what was released to Ana, or is a fact of the books.

        Raises:
            MissingPackageError: matplotlib is not installed.

        """
        # lower levels of the first question, for nothing, so that there are several to be seen
        for epsilon in (1.0, 0.5):
            self._ben.sql(FLIGHTS, epsilon=epsilon, delta=DELTA)
        budget = own_figure(8, 3)
        plot_budget(self._curator, ax=budget.subplots())
        cascade = plot_cascade(self._curator, receipt_of(self._flights).query_hash, figure=own_figure(8, 5.6))
        sections = (
            section(
                "Aircraft per airline",
                "Every aircraft counts once in an airline, so little noise is enough. Ana does not know the list of "
                "airlines beforehand: one is shown only where its noisy count of aircraft exceeds the threshold, so "
                "that none is named because of a single aircraft.",
                _bars(self._flights, "aircraft"),
                sql=FLIGHTS,
                table=self._flights._repr_html_(),
            ),
            section(
                "Minutes in the air per airline",
                "The same release. An average is a noisy sum over a noisy count: the fewer flights an airline has, the "
                "wider its interval.",
                _bars(self._flights, "minutes"),
            ),
            section(
                "Average cost per diagnosis",
                "All visits of a patient together are scaled down to a norm; the answer says what that keeps.",
                _bars(self._visits, "mean"),
                sql=VISITS,
                table=self._visits._repr_html_(),
            ),
            section(
                "One question at many levels",
                "Asked again at a higher level the question costs the difference; at the same level or a lower one, "
                "by anybody, nothing. Noise and threshold fall as the level rises.",
                svg_of(cascade),
            ),
            section("What is left", "All answers together, of all that may ever be learned.", svg_of(budget)),
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>dpsql: a tour</title>'
            f"<style>{_STYLE}</style></head><body><h1>dpsql: a tour in pictures</h1>"
            "<p>Private answers on the sample data. All that is drawn was released to an analyst, or stands in the "
            "books; the true numbers are nowhere in this page.</p>"
            f"{''.join(sections)}</body></html>\n"
        )

    def _protect(self) -> None:
        _title("1. The curator protects two tables")
        for table, parts in TABLES.items():
            self._curator.connection.execute(f"CREATE TABLE {table} AS FROM read_parquet(?)", [str(asset(*parts))])
        _say(
            "flights is real: every departure from New York in 2013, where an aircraft that comes back again and "
            "again stands in for a person. visits is an invented clinic. The curator declares who is protected, and "
            "how much may ever be learned about one of them: the privacy budget. How much one of them may count can be "
            "declared, as of patients; where it is not, as of aircraft, what is best for the rows is found privately."
        )
        for declaration in DECLARATIONS:
            self._curator.sql(declaration)
            _code(declaration)
        _say(
            "From now on every answer is such that it would hardly change if all rows of any one aircraft (or any one "
            "patient) were taken away. Ana and Ben are analysts: they get such answers and nothing else."
        )

    def _ask_for_flights(self) -> Result:
        _title("2. Ana asks: how many aircraft has each airline, and how long do they fly?")
        _code(FLIGHTS)
        answer, true = self._ana.sql(FLIGHTS, epsilon=EPSILON, delta=DELTA), self._exact(TRUE_FLIGHTS)
        _say(
            f"With epsilon = {EPSILON:g} and delta = {DELTA:g}, here are the {ROWS_SHOWN} largest. TRUE stands there "
            "for comparison: only the curator may see it."
        )
        _compare(answer, true, "carrier", "aircraft", "minutes in the air")
        self._explain_bounding(answer, "air_time", "an aircraft has up to 575 flights")
        _say(
            f"{len(answer)} of {len(true)} airlines are shown. Ana does not know the list beforehand, so a name "
            f"appears only where the noisy number of aircraft exceeds {receipt_of(answer).threshold:.1f}: an airline "
            "with a single aircraft would appear with a chance below delta."
        )
        self._price(answer, "aircraft")
        _say("(Budgets are kept in rho, because rho simply adds up from query to query, and epsilon does not.)")
        return answer

    def _ask_for_visits(self) -> Result:
        _title("3. Ana asks: how many patients has each diagnosis, and what does a visit cost?")
        _code(VISITS)
        answer, true = self._ana.sql(VISITS, epsilon=EPSILON, delta=DELTA, bounding="NORM"), self._exact(TRUE_VISITS)
        _say("With OPTIONS (bounding = NORM), which bounds all that a patient adds, and not each diagnosis by itself:")
        _compare(answer, true, "diagnosis", "patients", "average cost")
        self._explain_bounding(answer, "cost", "one patient in a hundred makes a quarter of all visits")
        _say(
            "An average is a noisy sum over a noisy count. Bounding lowers both, so averages stay close to the truth. "
            f"{len(answer)} of {len(true):,} diagnoses are shown; the rare ones, which would point at somebody, are "
            "not."
        )
        self._price(answer, "patient")
        return answer

    def _explain_bounding(self, answer: Result, value: str, why: str) -> None:
        (told,) = (one for one in receipt_of(answer).coverage if f"avg({value})" in one.of)
        _say(
            f"Before noise comes bounding: {why}, and noise that hides all of one alike would be in every number. So "
            "whoever adds more than a bound is scaled down to it. An interval is about the noise alone: 95 in 100 "
            f"cover the bounded number. Ana, who sees no true one, is told what bounding left: {told}."
        )

    def _price(self, answer: Result, unit: str) -> None:
        receipt = receipt_of(answer)
        (budget,) = self._ana.sql(f"FROM dp_budget('{unit}')").arrow().to_pylist()
        _say(
            f"Price: {receipt.price}. Left for {unit} queries: "
            f"rho = {budget['rho_left']:.4f} of {budget['rho_budget']:.4f}. This answer alone: epsilon = "
            f"{receipt.epsilon:.3g} at delta = {receipt.delta:.2g}; all answers so far: epsilon = "
            f"{budget['epsilon_spent']:.3g} of {budget['epsilon_budget']:g} at delta = {budget['delta_budget']:.2g}."
        )

    def _ask_again(self, answer: Result) -> None:
        _title("4. Ben asks Ana's first question")
        again = self._ben.sql(FLIGHTS, epsilon=EPSILON, delta=DELTA)
        identical = "yes" if again.fetchall() == answer.fetchall() else "NO"
        receipt = receipt_of(again)
        _say(
            f"Identical numbers: {identical}. Price: rho = {receipt.charged_rho:g}, delta = "
            f"{receipt.charged_delta:g}. What was released once is stored and served again for free, so nobody can "
            "average the noise away, and Ana and Ben together know no more than Ana."
        )

    def _be_refused(self) -> None:
        _title("5. What is refused")
        _say("A question without a private answer is refused before anything is read, with what to write instead:")
        _code(NEVER_PRIVATE)
        self._quote_refusal(NEVER_PRIVATE, EPSILON)
        print()
        _say("So is a sharper answer than the budget pays for, here to the first question at epsilon = 5:")
        self._quote_refusal(FLIGHTS, 5)

    def _quote_refusal(self, sql: str, epsilon: float) -> None:
        try:
            self._ana.sql(sql, epsilon=epsilon, delta=DELTA)
        except (QueryError, BudgetError) as error:
            for line in str(error).splitlines():
                print(textwrap.fill(line, WIDTH, initial_indent="  │ ", subsequent_indent="  │   "))

    def _exact(self, sql: str) -> Rows:
        """Exact values by group key, which only the curator can ask for."""
        return {row[0]: row[1:] for row in self._curator.connection.execute(sql).fetchall()}


def _title(text: str) -> None:
    print(f"\n── {text} {'─' * (WIDTH - len(text) - 4)}")


def _say(text: str) -> None:
    print(textwrap.fill(text, WIDTH))


def _code(text: str) -> None:
    print(textwrap.indent(text, "    "))


def _compare(answer: Result, true: Rows, key: str, count: str, average: str) -> None:
    """The largest groups: a private count and average, each with its interval, beside what is true."""
    print(
        f"{'':12}{count:<33} │ {average}",
        f"  {key:<9} {'private':>9} {_INTERVAL:>15} {'TRUE':>7} │ {'private':>8} {_INTERVAL:>15} {'TRUE':>7}",
        sep="\n",
    )
    for name, number, mean, low, high, mean_low, mean_high in answer.fetchall()[:ROWS_SHOWN]:
        true_number, true_mean = true[name]
        print(
            f"  {name or 'NULL':<9} {number:>9,} {_range(low, high):>15} {true_number:>7,} │ "
            f"{mean:>8.0f} {_range(mean_low, mean_high):>15} {true_mean:>7.0f}"
        )
    print()


def _range(low: float, high: float) -> str:
    return f"{low:,.0f} … {high:,.0f}"


def section(title: str, text: str, picture: str, *, sql: str = "", table: str = "") -> str:
    """A part of the page: a heading, a paragraph, SQL, a picture as SVG, and a table that is HTML already."""
    code = f"<pre>{escape(sql)}</pre>" if sql else ""
    numbers = f"<details><summary>the numbers</summary>{table}</details>" if table else ""
    figure = f'<figure role="img" aria-label="{escape(title)}">{picture}</figure>'
    return f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{code}{figure}{numbers}</section>"


def _bars(answer: Result, column: str) -> str:
    figure = own_figure(8, 7.2)
    answer.plot(column, ax=figure.subplots(), rows=_GROUPS_SHOWN)
    return svg_of(figure)


def receipt_of(answer: Result) -> Receipt:
    """The receipt of a private answer, which has one."""
    assert answer.receipt is not None  # noqa: S101 — it is one
    return answer.receipt
