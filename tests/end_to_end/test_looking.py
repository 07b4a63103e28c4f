"""Pictures and notebook tables: every bar, end, line and fold is what was released, and nothing else is drawn."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

import dpsql
from dpsql.pictures.charts import name_of, own_figure, svg_of

ATTACK = '</td><script>alert("x")</script>$\\frac{1}{'
ANSWER = """
    SELECT ward, count(DISTINCT patient) AS patients,
           dp_interval_low(patients) AS low, dp_interval_high(patients) AS high,
           count(*) AS visits, avg(cost) AS mean, dp_interval_low(mean) AS mean_low, dp_interval_high(mean) AS mean_high
    FROM visits GROUP BY ward ORDER BY patients DESC"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Session]:
    with dpsql.connect(state=tmp_path_factory.mktemp("books") / "state") as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i % 4000 AS patient, [?, 'b', 'c', NULL][1 + i % 4 * (i % 4) % 5] AS ward, "
            "DATE '2026-01-01' + (i % 3)::INTEGER AS day, i % 40 AS cost FROM range(12000) t(i)",
            [ATTACK],
        )
        session.sql("CALL dp_unit('patient', epsilon_budget := 9, delta_budget := 1e-5)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
            "max_groups_contributed := 3, max_rows_per_group := 3)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 50])")
        session.sql("CALL dp_domain('visits', 'day', keys := ['2026-01-01', '2026-01-02', '2026-01-03', '2027-01-01'])")
        yield session


@pytest.fixture(scope="module")
def answer(session: dpsql.Session) -> dpsql.Result:
    return session.sql(ANSWER, rho=0.1, delta=1e-7)


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


def ends_in(axes: Axes, along: int) -> npt.NDArray[np.float64]:
    """Ends of the intervals drawn: of each line the two coordinates along the axis of values."""
    (lines,) = (artist for artist in axes.collections if isinstance(artist, LineCollection))
    return np.array([segment[:, along] for segment in lines.get_segments()])


def along_x(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata())]


def along_y(line: Line2D) -> list[float]:
    return [float(y) for y in np.asarray(line.get_ydata())]


def test_bars_and_ends_are_the_released_numbers_and_the_line_is_at_tau(answer: dpsql.Result) -> None:
    axes = answer.plot()
    frame = answer.df()
    assert len(axes.containers) == 1
    assert [bar.get_width() for bar in axes.containers[0]] == frame["patients"].tolist()
    assert ends_in(axes, 0).tolist() == frame[["low", "high"]].to_numpy().tolist()
    assert answer.receipt is not None
    threshold = answer.receipt.threshold
    assert threshold is not None
    zero, line = axes.lines
    assert along_x(zero) == [0, 0]
    assert along_x(line) == [threshold, threshold]
    (shade,) = (patch for patch in axes.patches if patch not in axes.containers[0])
    assert shade.get_extents().xmax == pytest.approx(axes.transData.transform((threshold, 0))[0])
    assert axes.get_xlim()[1] > threshold
    assert [label.get_text() for label in axes.get_yticklabels()] == [name_of(row[0]) for row in answer.fetchall()]
    # drawing it does not take a key for a formula
    svg_of(plt.gcf())


def test_what_stands_above_the_bars_are_the_lines_of_show_and_fits(answer: dpsql.Result) -> None:
    axes = answer.plot()
    first, *lines = axes.texts[0].get_text().splitlines()
    assert first.startswith("drawn   patients, with 95 % intervals as lines; shaded: at most ")
    assert answer.receipt is not None
    assert answer.receipt.threshold is not None
    assert f"at most {answer.receipt.threshold:.3g}, where no group is shown" in " ".join([first, *lines]).replace(
        "  ", ""
    )
    printed = [line for line in str(answer).split("└")[1].splitlines()[2:] if not line.startswith("groups")]
    assert [line for line in lines if line in printed] == printed
    figure = plt.gcf()
    figure.canvas.draw()
    assert figure.bbox.contains(*axes.texts[0].get_window_extent().max)


def test_other_columns_have_their_own_ends_and_no_line(answer: dpsql.Result) -> None:
    axes = answer.plot("mean")
    assert ends_in(axes, 0).tolist() == answer.df()[["mean_low", "mean_high"]].to_numpy().tolist()
    assert len(axes.lines) == 1
    assert "not drawn: patients, low, high and visits" in " ".join(axes.texts[0].get_text().split())
    # an end that was asked for is a number like any other, and has none itself
    assert np.isnan(ends_in(answer.plot("low"), 0)).all()


def test_public_keys_lie_along_and_have_no_line(session: dpsql.Session) -> None:
    result = session.sql("SELECT day, count(DISTINCT patient) AS n FROM visits GROUP BY day", rho=0.1)
    figure, axes = plt.subplots()
    assert result.plot("n", ax=axes) is axes
    assert [bar.get_height() for bar in axes.containers[0]] == [row[1] for row in result.fetchall()]
    assert len(axes.containers[0]) == 4
    assert (ends_in(axes, 1)[:, 0] <= ends_in(axes, 1)[:, 1]).all()
    assert len(axes.lines) == 1
    assert len(axes.patches) == 4
    assert axes.get_xticklabels()[3].get_text() == "2027-01-01"
    assert figure.axes == [axes]


def test_a_top_k_answer_has_no_line_for_its_threshold_is_no_number_of_units(session: dpsql.Session) -> None:
    result = session.sql("SELECT ward, count(DISTINCT patient) AS n FROM visits GROUP BY ward", rho=0.5, top_k=2)
    assert len(result.plot().lines) == 1


def test_only_some_rows_and_an_average_of_nobody(session: dpsql.Session, answer: dpsql.Result) -> None:
    axes = answer.plot(rows=2)
    assert len(axes.containers[0]) == 2
    assert f"patients of the first 2 of {len(answer)} groups" in axes.texts[0].get_text()
    # the noisy count of nobody is not positive in one of two questions
    means = (
        session.sql(f"SELECT day, avg(cost) AS mean FROM visits WHERE cost < {50 + i} GROUP BY day", rho=0.001)
        for i in range(40)
    )
    nobody = next(result for result in means if result.fetchall()[3][1] is None)
    assert len(nobody.plot().containers[0]) < 4


def test_what_is_computed_around_an_answer_has_no_ends(session: dpsql.Session) -> None:
    result = session.sql(
        "WITH n AS (SELECT day, count(*) AS visits FROM visits GROUP BY day) SELECT day, visits / 2 AS visits FROM n",
        rho=0.1,
    )
    axes = result.plot()
    assert [bar.get_height() for bar in axes.containers[0]] == [row[1] for row in result.fetchall()]
    assert np.isnan(ends_in(axes, 1)).all()


def test_the_books_can_be_drawn_as_any_table(session: dpsql.Session, answer: dpsql.Result) -> None:
    axes = session.sql("FROM dp_budget()").plot("rho_spent")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["patient"]


def test_an_answer_without_groups_is_a_picture_too(session: dpsql.Session) -> None:
    axes = session.sql(
        "SELECT ward, count(DISTINCT patient) AS n FROM visits WHERE cost > 99 GROUP BY ward", rho=0.1, delta=1e-7
    ).plot()
    assert "nothing, because there is no group" in axes.texts[0].get_text()
    assert len(axes.containers[0]) == 0
    svg_of(plt.gcf())
    with pytest.raises(dpsql.SchemaError, match="one row or more"):
        session.sql("FROM dp_budget()").plot(rows=0)


@pytest.mark.parametrize(
    ("column", "said"), [("nothing", "no column 'nothing'. It has ward, patients"), ("ward", "holds no numbers")]
)
def test_a_column_that_cannot_be_drawn(answer: dpsql.Result, column: str, said: str) -> None:
    with pytest.raises(dpsql.SchemaError, match=re.escape(said)):
        answer.plot(column)


def test_without_matplotlib_there_is_one_sentence(
    answer: dpsql.Result, session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert answer.receipt is not None
    for draw in (answer.plot, lambda: dpsql.plot_budget(session), lambda: own_figure(1, 1)):
        with pytest.raises(dpsql.MissingPackageError, match=r"pip install 'dpsql\[plot\]'") as caught:
            draw()
        assert caught.value.__context__ is None
    with pytest.raises(dpsql.MissingPackageError):
        dpsql.plot_cascade(session, answer.receipt.query_hash)


def test_matplotlib_is_imported_when_a_picture_is_asked_for() -> None:
    for path in (Path(__file__).parents[2] / "dpsql").rglob("*.py"):
        assert not re.search(r"^(import|from) matplotlib", path.read_text(encoding="utf-8"), re.MULTILINE), path


class Seen(HTMLParser):
    """Elements and text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert all(name in ("style", "colspan") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_notebook_shows_intervals_and_folds_the_receipt(answer: dpsql.Result) -> None:
    seen = Seen(answer._repr_html_())
    assert set(seen.tags) == {"div", "table", "thead", "tbody", "tr", "th", "td", "span", "details", "summary", "pre"}
    assert seen.tags.count("tr") == 1 + len(answer)
    # one interval for each of three aggregates in a row; the ends that the text asked for stand as they are
    assert seen.tags.count("span") == 3 * len(answer)
    first = answer.fetchall()[0]
    assert f"{first[2]:,.0f} … {first[3]:,.0f}" in seen.text
    assert ATTACK in seen.text
    assert "NULL" in seen.text
    assert str(answer.receipt) in seen.text


def test_a_name_of_a_column_is_escaped_and_long_tables_are_cut(session: dpsql.Session) -> None:
    named = session.sql('SELECT day, count(*) AS "<b>n</b>" FROM visits GROUP BY day', rho=0.1)
    assert "<b>n</b>" in Seen(named._repr_html_()).text
    many = session.sql("SELECT cost + 0 AS cost, count(*) AS n FROM visits GROUP BY ALL", rho=0.5, delta=1e-6)
    long = dpsql.Result(many.arrow().take(list(range(len(many))) * 3))
    seen = Seen(long._repr_html_())
    assert seen.tags.count("tr") == 42
    assert f"… {len(long) - 40} rows more" in seen.text


def test_a_picture_on_a_page_is_one_element_without_scripts(answer: dpsql.Result) -> None:
    figures = [own_figure(7, 4) for _ in range(2)]
    for figure in figures:
        answer.plot(ax=figure.subplots())
    svg, again = map(svg_of, figures)
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    assert "<script" not in svg
    assert svg == again


def test_the_budget_is_a_share_of_the_whole(session: dpsql.Session, answer: dpsql.Result) -> None:
    cleo = session.as_analyst("cleo")
    cleo.sql(ANSWER, rho=0.1, delta=1e-7)
    (books,) = session.sql("FROM dp_budget('patient')").arrow().to_pylist()
    axes = dpsql.plot_budget(session)
    shares = [bar.get_width() for bars in axes.containers for bar in bars]
    spent = books["rho_spent"] / books["rho_budget"]
    cut = books["threshold_delta_spent"] / books["threshold_delta_budget"]
    assert shares == [1, pytest.approx(spent), 1, pytest.approx(cut)]
    assert not axes.lines
    (mark,) = dpsql.plot_budget(cleo, "patient").lines
    assert along_x(mark)[0] == pytest.approx(0.1 / books["rho_budget"])
    with pytest.raises(dpsql.PolicyError, match="no privacy unit"):
        dpsql.plot_budget(cleo, "x') FROM dp_policy(")


def test_the_cascade_shows_prices_to_all_and_points_to_the_curator(session: dpsql.Session, tmp_path: Path) -> None:
    ana = session.as_analyst("ana")
    sql = "SELECT ward, count(DISTINCT patient) AS n FROM visits WHERE cost < 39 GROUP BY ward"
    asked = [
        (reader, reader.sql(sql, rho=rho, delta=1e-7))
        for reader, rho in ((session, 0.01), (ana, 0.05), (ana, 0.02), (session, 0.05))
    ]
    receipts = [result.receipt for _, result in asked if result.receipt is not None]
    query_hash = receipts[0].query_hash
    above, below = dpsql.plot_cascade(session, query_hash).axes
    bars = [bar.get_width() for bars in below.containers for bar in bars]
    assert bars == pytest.approx([0.01, 0.04])
    assert len(below.lines) == 4
    noise, cut = above.lines
    points = session.sql("FROM dp_cascade($hash)", {"hash": query_hash}).arrow().sort_by("rho")
    assert along_x(noise) == points["rho"].to_pylist()
    assert along_y(noise) == points["sigma"].to_pylist()
    assert along_y(cut) == [tau for tau in points["tau"].to_pylist() if tau is not None]
    (only,) = dpsql.plot_cascade(ana, query_hash).axes
    assert [bar.get_width() for bars in only.containers for bar in bars] == pytest.approx([0.04])
    assert len(only.lines) == 2
    ben = session.as_analyst("ben")
    for reader, wanted, said in ((ben, query_hash, "no release"), (session, "f", "first 6 letters")):
        with pytest.raises(dpsql.PolicyError, match=said):
            dpsql.plot_cascade(reader, wanted)
    with pytest.raises(dpsql.StateError, match="no state file"):
        dpsql.plot_cascade(tmp_path / "nowhere.dpsql", query_hash)
    assert not list(tmp_path.iterdir())


def test_pictures_of_a_state_file_alone(tmp_path: Path) -> None:
    with dpsql.connect(tmp_path / "a.duckdb") as session:
        session.sql("CALL dp_unit('guest', epsilon_budget := 1, delta_budget := 1e-6)")
    axes = dpsql.plot_budget(tmp_path / "a.duckdb.dpsql")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["guest: rho", "guest: delta of thresholds"]


def test_progress_is_the_curators_and_ends_with_the_reading(session: dpsql.Session) -> None:
    session.connection.execute(
        "CREATE TABLE stays AS SELECT i % 500000 AS patient, i % 900 AS ward FROM range(3000000) t(i)"
    )
    session.sql(
        "CALL dp_protect('stays', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 3)"
    )
    seen: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.001):
            share = session.progress()
            if share is not None:
                seen.append(share)

    looking = threading.Thread(target=look)
    looking.start()
    # a machine may be too fast, or too busy with something else, for a look at the right time
    for ward in range(20):
        text = f"SELECT ward, count(DISTINCT patient) FROM stays WHERE ward <> {ward} GROUP BY ward"
        session.sql(text, rho=0.001, delta=1e-9)
        if seen:
            break
    done.set()
    looking.join()
    assert seen, "nothing was seen in 20 questions"
    assert all(0 <= share <= 1 for share in seen)
    assert session.progress() is None
    assert not hasattr(session.as_analyst("ana"), "progress")
