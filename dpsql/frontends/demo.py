"""The story behind ``dpsql demo``: one table, one question at two levels, its prices, and what is refused.

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
from dpsql.session import Analyst, Receipt, Result, Session, connect, plot_budget, plot_cascade

WIDTH = 98
EPSILON, SHARPER_EPSILON, DELTA = 1.0, 2.0, 1e-8
ROWS_SHOWN = 5
Rows = Mapping[Any, Sequence[Any]]
TABLES = {"flights": ("sample_data", "flights.parquet")}
DECLARATIONS = (
    "CALL dp_unit('aircraft', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('flights', unit := 'aircraft', privacy_unit_column := 'tailnum',\n"
    "                max_rows_norm := 320)",
    "CALL dp_domain('flights', 'air_time', bounds := [0, 400])",
)

FLIGHTS = """\
SELECT carrier, count(DISTINCT tailnum) AS aircraft, avg(air_time) AS minutes
FROM flights GROUP BY carrier ORDER BY aircraft DESC"""
TRUE_FLIGHTS = "SELECT carrier, count(DISTINCT tailnum), avg(air_time) FROM flights GROUP BY carrier"
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
    """Tell the story, in a temporary folder that is removed at its end.

    Args:
        page: a file that gets its pictures as one page of HTML.

    Raises:
        MissingPackageError: pictures are wanted and matplotlib is not installed; nothing was told.

    """
    if page is not None:
        matplotlib_module("matplotlib")
        # found out now, and not at the end of the story
        page.touch()
    with tempfile.TemporaryDirectory(prefix="dpsql-demo-") as folder, connect(Path(folder, "demo.duckdb")) as curator:
        story = _Story(curator)
        story.tell()
        if page is not None:
            page.write_text(story.page(), encoding="utf-8")


class _Story:
    """A curator, two analysts, and the answers that they get."""

    def __init__(self, curator: Session) -> None:
        self._curator = curator
        self._ana = curator.as_analyst("ana")
        self._ben = curator.as_analyst("ben")

    def tell(self) -> None:
        """Tell all parts in order."""
        self._protect()
        first = self._ask()
        self._ask_again(first)
        self._sharper = self._ask_sharper(first)
        self._be_refused()
        _title("Now with your own data")
        _say("In Python: dpsql.connect('my.duckdb').sql('CALL dp_unit(…)'). On the command line: dpsql --help.")

    def page(self) -> str:
        """Return the pictures as HTML, once the story was told: released numbers and facts of the ledger.

        Raises:
            MissingPackageError: matplotlib is not installed.

        """
        # a lower level costs nothing, and the picture has one more
        self._ben.sql(FLIGHTS, epsilon=EPSILON / 2, delta=DELTA)
        budget = own_figure(8, 3)
        plot_budget(self._curator, ax=budget.subplots())
        cascade = plot_cascade(self._curator, receipt_of(self._sharper).query_hash, figure=own_figure(8, 5.6))
        sections = (
            section(
                "Aircraft per airline",
                "Every aircraft counts once in an airline, so little noise is enough. Ana does not know the list of "
                "airlines beforehand. An airline is shown only where its noisy count of aircraft exceeds the "
                "threshold, so that none is named because of a single aircraft.",
                _bars(self._sharper, "aircraft"),
                sql=FLIGHTS,
                table=self._sharper._repr_html_(),
            ),
            section(
                "Minutes in the air per airline",
                "These averages are of the same release. An average is a noisy sum over a noisy count: the fewer "
                "flights an airline has, the wider is the interval.",
                _bars(self._sharper, "minutes"),
            ),
            section(
                "One question at many levels",
                "A question that is asked again at a higher level costs the difference. At the same level or a lower "
                "one it costs nothing, for every analyst. Noise and threshold fall as the level rises.",
                svg_of(cascade),
            ),
            section("What is left", "The price of all answers together, and the budget that is left.", svg_of(budget)),
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>dpsql: a story in pictures</title>'
            f"<style>{_STYLE}</style></head><body><h1>dpsql: a story in pictures</h1>"
            "<p>Private answers on the sample data. All numbers here were released to an analyst, or are in the "
            "ledger. No true number is in this page.</p>"
            f"{''.join(sections)}</body></html>\n"
        )

    def _protect(self) -> None:
        _title("1. A curator protects a table")
        for table, parts in TABLES.items():
            self._curator.connection.execute(f"CREATE TABLE {table} AS FROM read_parquet(?)", [str(asset(*parts))])
        _say(
            "The table flights is real: 336,776 departures from New York in 2013. Here each aircraft plays the part "
            "of a person, and its flights are the rows of this person."
        )
        for declaration in DECLARATIONS:
            self._curator.sql(declaration)
            _code(declaration)
        _say(
            "Now every answer has noise. It would hardly change if all flights of any one aircraft were removed. All "
            "answers together may cost epsilon = 3. This budget limits what they reveal about any one aircraft."
        )

    def _ask(self) -> Result:
        _title(f"2. Ana, an analyst, asks with epsilon = {EPSILON:g} and delta = {DELTA:g}")
        _code(FLIGHTS)
        answer, true = self._asked_by(self._ana, EPSILON), self._exact(TRUE_FLIGHTS)
        _compare(answer, true)
        receipt = receipt_of(answer)
        _say(
            "Only the curator may see the TRUE numbers. An interval covers the noise with 95 % probability. It is "
            "wide for an average of few flights. If an aircraft has very many flights, only a part of them is "
            "counted. No interval covers the rest. The receipt says what bounds may leave out."
        )
        _say(
            f"Ana sees {len(answer)} of {len(true)} airlines. An airline is shown if its noisy count exceeds "
            f"{receipt.threshold:.1f} aircraft. One with a single aircraft is shown with a probability below delta."
        )
        self._price("The budget counts in rho.", receipt)
        return answer

    def _ask_again(self, answer: Result) -> None:
        _title("3. Ben asks the same question")
        again = self._asked_by(self._ben, EPSILON)
        identical = "yes" if again.fetchall() == answer.fetchall() else "NO"
        _say(
            f"Identical numbers: {identical}. Price: rho = {receipt_of(again).charged_rho:g}. Nobody can average the "
            "noise away, and Ana and Ben together know no more than Ana."
        )

    def _ask_sharper(self, before: Result) -> Result:
        _title(f"4. Ana asks for a sharper answer, with epsilon = {SHARPER_EPSILON:g}")
        answer = self._asked_by(self._ana, SHARPER_EPSILON)
        name, number, _ = answer[0]
        low, high = interval_of(answer, "aircraft")[0]
        former_low, former_high = interval_of(before, "aircraft")[[row[0] for row in before].index(name)]
        _say(
            f"{name} has now {number:,} aircraft, with the interval {_range(low, high)} in place of "
            f"{_range(former_low, former_high)}."
        )
        level, paid = receipt_of(answer).rho, receipt_of(before).rho
        self._price(
            f"The full price is rho = {level:.4f}, and rho = {paid:.4f} was paid before.",
            receipt_of(answer),
        )
        return answer

    def _asked_by(self, analyst: Analyst, epsilon: float) -> Result:
        return analyst.sql(FLIGHTS, epsilon=epsilon, delta=DELTA)

    def _price(self, asked: str, receipt: Receipt) -> None:
        (budget,) = self._ana.sql("FROM dp_budget('aircraft')").arrow().to_pylist()
        _say(
            f"{asked} Price: rho = {receipt.charged_rho:.4f}; left: rho = {budget['rho_left']:.4f} of "
            f"{budget['rho_budget']:.4f}. All answers so far: epsilon = {budget['epsilon_spent']:.3g} of "
            f"{budget['epsilon_budget']:g} at delta = {budget['delta_budget']:.2g}."
        )

    def _be_refused(self) -> None:
        _title("5. Two questions are refused, and cost nothing")
        _code(NEVER_PRIVATE)
        self._quote_refusal(NEVER_PRIVATE, EPSILON)
        _say("The first question at epsilon = 5:")
        self._quote_refusal(FLIGHTS, 5)

    def _quote_refusal(self, sql: str, epsilon: float) -> None:
        try:
            self._ana.sql(sql, epsilon=epsilon, delta=DELTA)
        except (QueryError, BudgetError) as error:
            for line in str(error).splitlines():
                print(textwrap.fill(line, WIDTH, initial_indent="  │ ", subsequent_indent="  │   "))

    def _exact(self, sql: str) -> Rows:
        """Return exact values by group key, which only the curator can ask for."""
        return {row[0]: row[1:] for row in self._curator.connection.execute(sql).fetchall()}


def _title(text: str) -> None:
    print(f"\n── {text} {'─' * (WIDTH - len(text) - 4)}")


def _say(text: str) -> None:
    print(textwrap.fill(text, WIDTH))


def _code(text: str) -> None:
    print(textwrap.indent(text, "    "))


def _compare(answer: Result, true: Rows) -> None:
    """Print the largest groups: a private count and average, each with its interval, beside the true numbers."""
    print(
        f"{'':12}{'aircraft':<33} │ minutes in the air",
        f"  {'carrier':<9} {'private':>9} {_INTERVAL:>15} {'TRUE':>7} │ {'private':>8} {_INTERVAL:>15} {'TRUE':>7}",
        sep="\n",
    )
    counts, means = interval_of(answer, "aircraft"), interval_of(answer, "minutes")
    for (name, number, mean), count_ends, mean_ends in list(zip(answer, counts, means, strict=True))[:ROWS_SHOWN]:
        true_number, true_mean = true[name]
        # an average of few flights may be lost in noise
        average = "NULL" if mean is None else f"{mean:.0f}"
        print(
            f"  {name or 'NULL':<9} {number:>9,} {_range(*count_ends):>15} {true_number:>7,} │ "
            f"{average:>8} {_range(*mean_ends):>15} {true_mean:>7.0f}"
        )


def interval_of(answer: Result, column: str) -> list[tuple[float, float]]:
    """Return the ends of the 95 % interval of a column in each row."""
    ends = answer.layout.interval(column) if answer.layout else None
    assert ends is not None  # noqa: S101 — the column is one aggregate
    low, high = ends
    return list(zip(low.to_pylist(), high.to_pylist(), strict=True))


def _range(low: float, high: float) -> str:
    return f"{low:,.0f} … {high:,.0f}"


def section(title: str, text: str, picture: str, *, sql: str = "", table: str = "") -> str:
    """Return a part of the page: a heading, a paragraph, SQL, a picture as SVG, and a table that is HTML already."""
    code = f"<pre>{escape(sql)}</pre>" if sql else ""
    numbers = f"<details><summary>the numbers</summary>{table}</details>" if table else ""
    figure = f'<figure role="img" aria-label="{escape(title)}">{picture}</figure>'
    return f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{code}{figure}{numbers}</section>"


def _bars(answer: Result, column: str) -> str:
    figure = own_figure(8, 7.2)
    answer.plot(column, ax=figure.subplots(), rows=_GROUPS_SHOWN)
    return svg_of(figure)


def receipt_of(answer: Result) -> Receipt:
    """Return the receipt of a private answer, which has one."""
    assert answer.receipt is not None  # noqa: S101 — it is one
    return answer.receipt
