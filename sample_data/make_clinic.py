"""Generate the synthetic clinic: python sample_data/make_clinic.py [FOLDER].

Every number is drawn from the raw 64-bit words of one PCG64 stream, which numpy promises never to change,
and mapped by inverse distribution functions written here: numpy's own samplers may change between versions.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SEED = 20_130_101
PATIENTS = 20_000
VISITS = 200_000
DIAGNOSES = 4_000
FIRST_DAY, DAYS = np.datetime64("2023-01-01"), 1_096
MAX_RELATIVE_VISITS = 250.0
REGIONS = ("Coast", "Hills", "Lakes", "Plains")
CITY_HEADS = (
    "Alder",
    "Birch",
    "Cedar",
    "Drift",
    "Elm",
    "Fern",
    "Gull",
    "Heron",
    "Iron",
    "Juniper",
    "Kestrel",
    "Linden",
)
CITY_TAILS = ("bridge", "field", "haven", "mouth")
CITIES_WITH_PATIENTS = 44


class Uniforms:
    """A fixed stream of doubles in (0, 1), the same on every machine and numpy version."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def draw(self, count: int) -> Floats:
        """``count`` doubles: odd multiples of 2**-53, so that 0 and 1 never occur."""
        words: npt.NDArray[np.uint64] = self._bits.random_raw(count)
        return ((words >> np.uint64(12)).astype(np.float64) * 2 + 1) * 2.0**-53

    def pick(self, weights: Floats, count: int) -> Ints:
        """``count`` indices, index i with probability proportional to ``weights[i]``."""
        edges = np.cumsum(weights)
        picked = np.searchsorted(edges, self.draw(count) * edges[-1], side="right")
        return np.asarray(np.minimum(picked, len(weights) - 1), dtype=np.int64)

    def flags(self, probability: float | Floats, count: int) -> Flags:
        """``count`` booleans, true with the given probability."""
        return np.asarray(self.draw(count) < probability, dtype=np.bool_)

    def order(self, count: int) -> Ints:
        """Shuffle range(count)."""
        return np.argsort(self.draw(count), kind="stable").astype(np.int64)


def zipf(count: int, exponent: float) -> Floats:
    """Unnormalised Zipf weights: 1, 2**-exponent, 3**-exponent, …."""
    return np.asarray(np.arange(1, count + 1, dtype=np.float64) ** -exponent)


def log_logistic(uniform: Floats, shape: float) -> Floats:
    """Skewed positive values with median 1 and a tail that falls as x**(-1 / shape)."""
    return np.asarray((uniform / (1.0 - uniform)) ** shape)


def city_table() -> pa.Table:
    """List the cities in order of name; a few of them have no patient at all."""
    names = sorted(head + tail for head in CITY_HEADS for tail in CITY_TAILS)
    regions = [REGIONS[index % len(REGIONS)] for index in range(len(names))]
    return pa.table({"name": names, "region": regions})


def patient_table(uniforms: Uniforms, city_names: npt.NDArray[np.str_]) -> tuple[pa.Table, Ints]:
    """Patients, and the index of each one's home city."""
    home = uniforms.pick(zipf(CITIES_WITH_PATIENTS, 0.9), PATIENTS)
    age = (96.0 * uniforms.draw(PATIENTS) ** 0.8).astype(np.int64)
    sex = np.array(["f", "m", "x"])[uniforms.pick(np.array([0.515, 0.480, 0.005]), PATIENTS)]
    patients = pa.table(
        {
            "patient_id": pa.array(np.arange(1, PATIENTS + 1), pa.int32()),
            "birth_year": pa.array(2022 - age, pa.int16(), mask=uniforms.flags(0.01, PATIENTS)),
            "sex": pa.array(sex, pa.string(), mask=uniforms.flags(0.02, PATIENTS)),
            "city": pa.array(city_names[home], pa.string()),
        }
    )
    return patients, home


def diagnosis_codes(uniforms: Uniforms) -> npt.NDArray[np.str_]:
    """Codes in the shape of ICD-10, most frequent first; which code is frequent is chance."""
    codes = [
        f"{letter}{block:02d}.{digit}" for letter in "ABCDEFGHIJKLMN" for block in range(30) for digit in range(10)
    ]
    return np.array(codes)[uniforms.order(len(codes))[:DIAGNOSES]]


def visit_diagnoses(uniforms: Uniforms, patient: Ints) -> Ints:
    """Rank of each visit's diagnosis: half of the visits are for one of the patient's own two conditions."""
    weights = zipf(DIAGNOSES, 1.1)
    own = uniforms.pick(weights, 2 * PATIENTS).reshape(PATIENTS, 2)
    which = uniforms.flags(0.5, VISITS).astype(np.int64)
    acute = uniforms.pick(weights, VISITS)
    return np.where(uniforms.flags(0.5, VISITS), own[patient, which], acute)


def visit_table(uniforms: Uniforms, city_names: npt.NDArray[np.str_], home: Ints) -> pa.Table:
    """Visits in order of date; a few patients account for hundreds each, some for none."""
    frequency = np.minimum(uniforms.draw(PATIENTS) ** (-1.0 / 1.3), MAX_RELATIVE_VISITS)
    patient = uniforms.pick(frequency, VISITS)
    day = np.sort((uniforms.draw(VISITS) * DAYS).astype(np.int64))
    elsewhere = uniforms.pick(zipf(CITIES_WITH_PATIENTS, 0.9), VISITS)
    city = np.where(uniforms.flags(0.12, VISITS), elsewhere, home[patient])
    rank = visit_diagnoses(uniforms, patient)
    typical_cost = 25.0 * log_logistic(uniforms.draw(DIAGNOSES), 0.5) + 35.0
    cost = typical_cost[rank] * log_logistic(uniforms.draw(VISITS), 0.4)
    urgency = 0.4 * uniforms.draw(DIAGNOSES) ** 2
    return pa.table(
        {
            "visit_id": pa.array(np.arange(1, VISITS + 1), pa.int32()),
            "patient_id": pa.array(patient + 1, pa.int32(), mask=uniforms.flags(0.01, VISITS)),
            "visit_date": pa.array(FIRST_DAY + day, pa.date32()),
            "city": pa.array(city_names[city], pa.string()),
            "diagnosis": pa.array(diagnosis_codes(uniforms)[rank], pa.string(), mask=uniforms.flags(0.005, VISITS)),
            "cost": pa.array(np.round(cost, 2), pa.float64(), mask=uniforms.flags(0.02, VISITS)),
            "urgent": pa.array(uniforms.flags(urgency[rank], VISITS)),
        }
    )


def bill_table(uniforms: Uniforms, visits: pa.Table) -> pa.Table:
    """Up to two bills a visit: none where the cost is unknown, two where it is shared with an insurer."""
    cents = pa.compute.fill_null(visits["cost"], 0.0).to_numpy() * 100.0
    shared = uniforms.flags(0.15, VISITS)
    own_cents = np.where(shared, np.round(cents * 0.2), np.round(cents)).astype(np.int64)
    insurer_cents = np.round(cents).astype(np.int64) - own_cents
    visit = np.concatenate([visits["visit_id"].to_numpy(), visits["visit_id"].to_numpy()[shared]])
    amount = np.concatenate([own_cents, insurer_cents[shared]])
    billed = np.flatnonzero((amount > 0) & uniforms.flags(0.95, len(amount)))
    billed = billed[np.argsort(visit[billed], kind="stable")]
    count = len(billed)
    decimal_cents = pa.array(amount[billed]).cast(pa.decimal128(19, 0))
    exact_amount = pa.compute.multiply(decimal_cents, pa.scalar("0.01").cast(pa.decimal128(3, 2)))
    return pa.table(
        {
            "bill_id": pa.array(np.arange(1, count + 1), pa.int32()),
            "visit_id": pa.array(visit[billed], pa.int32(), mask=uniforms.flags(0.003, count)),
            "amount": exact_amount.cast(pa.decimal128(9, 2)),
            "paid": pa.array(uniforms.flags(0.83, count), mask=uniforms.flags(0.01, count)),
        }
    )


def make_clinic() -> dict[str, pa.Table]:
    """Build the four tables, by name."""
    uniforms = Uniforms(SEED)
    cities = city_table()
    # Shuffled, so that neither the size of a city nor its emptiness can be read off its name.
    city_names = np.array(cities["name"].to_pylist())[uniforms.order(len(cities))]
    patients, home = patient_table(uniforms, city_names)
    visits = visit_table(uniforms, city_names, home)
    bills = bill_table(uniforms, visits)
    return {"cities": cities, "patients": patients, "visits": visits, "bills": bills}


def write_clinic(folder: Path) -> list[Path]:
    """Write one Parquet file a table into ``folder`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, table in make_clinic().items():
        path = folder / f"{name}.parquet"
        pa.parquet.write_table(
            table,
            path,
            compression="zstd",
            compression_level=19,
            use_dictionary=[field.name for field in table.schema if pa.types.is_string(field.type)],
            row_group_size=122_880,
            store_schema=False,
        )
        paths.append(path)
    return paths


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "clinic"
    for written in write_clinic(target):
        print(f"{written.name}: {written.stat().st_size:,} bytes")
