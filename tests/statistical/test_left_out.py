"""Released numbers of rows left out are normal around what is left out, with the noise that the receipt states.

People have few enough rows that what bounds leave out of each is known without reading the statement that adds it up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import dpsql
from dpsql.bound.left_out import PART_BITS
from dpsql.noise.entropy import Entropy, NoiseSource
from dpsql.noise.rounded_gaussian import RoundedGaussian
from tests.deterministic_entropy import SeededEntropy
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import FaultyNoise, seeded_noise

pytestmark = pytest.mark.statistical

# With the right law a check falls below the first with that probability per seed; planted faults fall below the other.
ACCEPTED, CAUGHT = 1e-4, 1e-6
PEOPLE, BOUND = 300, 2
LEVELS = (0.5, 1.25, 4.0)
STATES, MANY_STATES = 20, 150
Integers = npt.NDArray[np.int64]
COLUMNS: dict[str, Callable[[Integers], Integers]] = {
    "count(*)": lambda rows: rows,
    "count(*) FILTER (WHERE i % 2 = 0)": lambda rows: (rows + 1) // 2,
    "count(*) FILTER (WHERE i % 2 = 1)": lambda rows: rows // 2,
    "count(*) FILTER (WHERE i % 3 = 0)": lambda rows: (rows + 2) // 3,
    "count(*) FILTER (WHERE i < 9)": lambda rows: np.minimum(rows, 9),
    "count(*) FILTER (WHERE i >= 1)": lambda rows: rows - 1,
}
"""A number of rows, and how many of a person's rows in a group it counts before bounds."""
Floats = npt.NDArray[np.float64]


def _rows_of_people() -> Integers:
    """Return the rows of each person in each of two groups: 1 to 24, and 200 of a few."""
    rows = 1 + np.arange(2 * PEOPLE).reshape(2, PEOPLE) % 24
    rows[:, :5] = 200
    return rows


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        rows = _rows_of_people()
        session.connection.execute("CREATE TABLE visits (person INTEGER, key INTEGER, i INTEGER)")
        for key, of_people in enumerate(rows.tolist()):
            session.connection.execute(
                "INSERT INTO visits SELECT p.person, ?, i FROM (SELECT unnest(range(?)) AS person, unnest(?) AS n) p, "
                "range(p.n) r(i)",
                [key, PEOPLE, of_people],
            )
        session.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'person', "
            f"max_groups_contributed := 2, max_rows_per_group := {BOUND})"
        )
        session.sql("CALL dp_domain('visits', 'key', keys := [0, 1])")
        yield session


def _errors(prepared: dpsql.Session, noise: list[NoiseSource]) -> Floats:
    """Return the errors of all numbers of rows left out, over their standard deviations; by state, level and column."""
    selected = ", ".join(f"{of} AS c{place}" for place, of in enumerate(COLUMNS))
    question = f"SELECT key, {selected} FROM visits GROUP BY key"
    has = _rows_of_people()
    errors = []
    for source in noise:
        with with_own_state(prepared) as session:
            session._runner.noise_source = source
            for rho in LEVELS:
                receipts = receipt_of(session.sql(question, rho=rho)).left_out
                of_columns = {one.column: one.found for one in receipts}
                for place, counted in enumerate(COLUMNS.values()):
                    found, whole = of_columns[f"c{place}"], counted(has)
                    left = (whole - np.minimum(whole, BOUND)).sum(axis=0)
                    assert (found.value / found.cut * 2**PART_BITS).is_integer()
                    errors.append((found.value - np.minimum(left, found.cut).sum()) / found.sigma)
    return np.array(errors).reshape(len(noise), len(LEVELS), len(COLUMNS))


def _p_values(errors: Floats) -> dict[str, float]:
    """Return p-values: of the law, of the sum of squares, and of what draws have in common."""
    flat = errors.ravel()
    squares, size = float(np.sum(flat**2)), flat.size
    # draws of one state and column at two levels; and those of two columns at one level
    pairs = [(errors[:, 0], errors[:, 1]), (errors[:, 1], errors[:, 2]), (errors[..., 0], errors[..., 1])]
    common = max(abs(float(np.sum(one * other))) / np.sqrt(one.size) for one, other in pairs)
    return {
        "law": float(stats.kstest(flat, "norm").pvalue),
        "squares": 2.0 * float(min(stats.chi2.cdf(squares, size), stats.chi2.sf(squares, size))),
        "common": 6.0 * float(stats.norm.sf(common)),
    }


def _sources(states: int) -> list[NoiseSource]:
    return [seeded_noise(100 + number) for number in range(states)]


def test_numbers_of_rows_left_out_have_the_law_that_is_stated(prepared: dpsql.Session) -> None:
    found = _p_values(_errors(prepared, _sources(STATES)))
    assert min(found.values()) * len(found) > ACCEPTED, found


@pytest.mark.long
def test_many_numbers_of_rows_left_out_have_the_law_that_is_stated(prepared: dpsql.Session) -> None:
    found = _p_values(_errors(prepared, _sources(MANY_STATES)))
    assert min(found.values()) * len(found) > ACCEPTED, found


@pytest.mark.parametrize("factor", [0.8, pytest.param(1.2, marks=pytest.mark.long)])
def test_noise_that_is_a_fifth_off_is_caught(prepared: dpsql.Session, factor: float) -> None:
    def off(law: RoundedGaussian, count: int, entropy: Entropy) -> Integers:
        # numbers have one draw for each of two keys
        sigma = law.sigma_steps * (factor if count == 1 else 1.0)
        return dataclasses.replace(law, sigma_steps=sigma).draw(count, entropy)

    sources = [FaultyNoise(SeededEntropy(200 + number), {RoundedGaussian: off}) for number in range(STATES)]
    assert _p_values(_errors(prepared, list(sources)))["squares"] < CAUGHT
