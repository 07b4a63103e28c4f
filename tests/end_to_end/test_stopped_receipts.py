"""Receipts of questions whose level released numbers decided, and of those that stored points of such levels serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import dpsql
from dpsql.accounting import gaussian
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise
from tests.serving import ask, door, in_background, token_of

DECLARED = (
    "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, max_groups_contributed := 2, "
    "max_rows_per_group := 2, rho_budget := 40, delta_threshold := 1e-3, delta_conversion := 1e-6)",
    "CALL dp_domain('visits', 'ward', keys := [0, 1, 2])",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
    "CALL dp_domain('visits', 'stay', bounds := [0, 10])",
    "CALL dp_analyst('ana')",
)
COUNT = "SELECT ward, count(DISTINCT patient) AS n FROM visits GROUP BY ward"
BOTH = "SELECT ward, count(DISTINCT patient) AS n, sum(cost) AS total FROM visits GROUP BY ward"
BY_DOCTOR = "SELECT doctor, count(DISTINCT patient) AS n FROM visits GROUP BY doctor"
TARGET: Mapping[str, Any] = {"target_relative_error": 0.05, "max_rho": 0.5, "delta": 1e-6}
CHOSEN = "released numbers decided the level of stored numbers"


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(
        "CREATE TABLE visits AS SELECT i // 2 AS patient, i % 3 AS ward, i % 5 AS doctor, i % 90 AS cost, "
        "i % 9 AS stay FROM range(6_000) t(i)",
        DECLARED,
    ) as session:
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        session._runner.noise_source = seeded_noise(3)
        yield session


def epsilon_of(rho: float) -> float:
    """Return the epsilon of one Gaussian release at delta = 1e-6."""
    return gaussian.epsilon(1e-6, (2.0 * rho) ** 0.5, 1.0)


def explained(handle: Any, text: str, options: Mapping[str, object]) -> dict[tuple[str, str], str]:
    named = "".join(f", {name} := {value!r}" for name, value in options.items())
    return {(row[0], row[1]): row[2] for row in handle.sql(f"FROM dp_explain($$ {text} $$ {named})").fetchall()}


def test_each_door_states_the_price_and_the_epsilon_of_the_cap(clinic: dpsql.Session) -> None:
    named = explained(clinic, COUNT, {"rho": 0.5, "delta": 1e-6})
    plan = explained(clinic, COUNT, TARGET)
    answer = clinic.sql(COUNT, **TARGET)
    receipt, again = receipt_of(answer), receipt_of(clinic.sql(COUNT, **TARGET))
    assert receipt.charged_rho == pytest.approx(receipt.rho)
    assert receipt.rho < 0.1
    for one in (receipt, again):
        assert one.epsilon == pytest.approx(epsilon_of(0.5), rel=1e-9)
        assert one.most_rho == 0.5
        (guarantee,) = (note for note in one.notes if note.startswith("epsilon is that of max_rho = 0.5, because "))
        assert guarantee in one.sections["privacy"]
        assert f"this answer alone has at most epsilon {one.epsilon:.4g} at delta 1e-06" in one.sections["privacy"]
    assert f"price   rho {receipt.rho:.6g}, for an answer with at most rho 0.5" in str(answer)
    assert "guarantee" in {name for section, name in plan if section == "target"}
    for shown in (plan, explained(clinic, COUNT, TARGET)):
        assert shown["mechanism", "this query alone"] == f"epsilon = {receipt.epsilon:.6g}, delta = 1e-06"
        assert shown["mechanism", "this query alone"] == named["mechanism", "this query alone"]
    releases = clinic.sql("FROM dp_releases()").df()
    assert set(releases.epsilon) == {receipt.epsilon}
    assert releases.charged_rho.sum() == pytest.approx(receipt.rho)
    assert f"at most epsilon {receipt.epsilon:.4g}" in answer._repr_html_()
    with in_background(clinic, door("ana")) as urls:
        remote = receipt_of(dpsql.remote.connect(urls.analysts, token=token_of("ana")).sql(COUNT, **TARGET))
        posted = ask(urls.analysts, "ana", COUNT, **TARGET)
    assert (remote.epsilon, remote.most_rho) == (receipt.epsilon, 0.5)
    assert guarantee in remote.notes
    assert posted.status == 200


def test_a_cap_by_epsilon_is_stated_as_epsilon(clinic: dpsql.Session) -> None:
    options: Mapping[str, Any] = {"target_relative_error": 0.05, "max_epsilon": 4}
    answer = clinic.sql(COUNT, **options)
    receipt = receipt_of(answer)
    assert receipt.asked_by == "epsilon"
    assert 4.0 - 1e-6 < receipt.epsilon <= 4.0
    assert f"price   rho {receipt.rho:.6g}, for an answer with at most epsilon 4 at delta" in str(answer)


def test_a_window_states_the_highest_level_that_the_cap_allows(clinic: dpsql.Session) -> None:
    receipt = receipt_of(clinic.sql(BY_DOCTOR, **TARGET))
    assert receipt.most_rho is not None
    assert 0.5 / 2**0.25 < receipt.most_rho <= 0.5
    assert receipt.epsilon == pytest.approx(epsilon_of(receipt.most_rho), rel=1e-9)
    # thresholds of all levels, and noise
    assert receipt.delta == pytest.approx(2e-6, rel=0.02)


def test_a_stored_point_whose_level_numbers_decided_counts_up_to_the_question(clinic: dpsql.Session) -> None:
    stopped = receipt_of(clinic.sql(COUNT, **TARGET)).rho
    asked = 1.3 * stopped
    receipt = receipt_of(clinic.sql(BOTH, rho=asked, delta=1e-6))
    # the count asks for less than the stored point, which serves it because the question asks for more
    assert stopped < receipt.charged_rho + stopped == pytest.approx(receipt.rho)
    covered = receipt.charged_rho + asked
    assert receipt.epsilon == pytest.approx(epsilon_of(covered), rel=1e-6)
    assert any(note.startswith(CHOSEN) for note in receipt.sections["privacy"])
    # a level that the text names has its plain law, above and below the stored one
    for rho in (0.9 * stopped, 3.0 * stopped):
        plain = receipt_of(clinic.sql(COUNT, rho=rho, delta=1e-6))
        assert plain.epsilon == pytest.approx(epsilon_of(plain.rho), rel=1e-6)
        assert plain.most_rho is None
        assert not any(CHOSEN in note for note in plain.notes)


def test_statistics_that_decided_together_count_together(clinic: dpsql.Session) -> None:
    """The total decided the level of the count, too, and another question shows nothing else of it."""
    clinic.sql(BOTH, **TARGET)
    highest = clinic.sql("FROM dp_cascade()").df().groupby("statistic").rho.max()
    found = []
    for asked in sorted(1.05 * level for level in highest):
        receipt = receipt_of(clinic.sql(BOTH.replace("cost", "stay"), rho=asked, delta=1e-6))
        if any(note.startswith(CHOSEN) for note in receipt.notes):
            found.append((receipt, asked))
    ((receipt, asked),) = found
    # count and total rose in proportion; the count is the stored one, and the other total has the rest of rho
    covered = [receipt.rho - count + asked * highest.sum() / count for count in highest]
    assert any(receipt.epsilon == pytest.approx(epsilon_of(one), rel=1e-3) for one in covered)


def test_a_stored_point_of_a_text_counts_at_its_level(clinic: dpsql.Session) -> None:
    clinic.sql(COUNT, rho=0.02, delta=1e-6)
    receipt = receipt_of(clinic.sql(BOTH, rho=0.03, delta=1e-6))
    assert receipt.rho == pytest.approx(0.02 + receipt.charged_rho)
    assert receipt.epsilon == pytest.approx(epsilon_of(receipt.rho), rel=1e-6)
    assert not any(CHOSEN in note for note in receipt.notes)


def test_keys_of_a_level_that_numbers_decided_count_at_its_cap(clinic: dpsql.Session) -> None:
    high = receipt_of(clinic.sql(BY_DOCTOR, **{**TARGET, "target_relative_error": 0.006}))
    low = receipt_of(clinic.sql(BY_DOCTOR, **{**TARGET, "max_rho": 0.07}))
    plain = receipt_of(clinic.sql(BY_DOCTOR, rho=0.07, rho_window=[15259e-9, 1.0], delta=1e-6))
    assert 0.07 < high.rho < 0.4
    for receipt in (low, plain):
        assert receipt.rho <= 0.07
        assert receipt.charged_rho == 0.0
        assert receipt.epsilon == pytest.approx(high.epsilon, rel=1e-9)
    assert low.most_rho == high.most_rho
    assert any(note.startswith(CHOSEN) for note in plain.sections["privacy"])
    assert any(note.startswith("epsilon covers max_rho = 0.07 and stored numbers") for note in low.notes)
