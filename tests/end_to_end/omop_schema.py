"""Small tables of patients in the columns of the OMOP common data model: people, what was observed of them, and drugs.

A person has at most three observation periods, twelve conditions and nine exposures to drugs. No value lies outside the
bounds of the page `docs/omop.md`, and each key has many people: without noise, answers of its texts are exact.
"""

from __future__ import annotations

PEOPLE = 600
CONCEPTS = {
    101: "Asthma",
    102: "Diabetes",
    103: "Hypertension",
    104: "Migraine",
    201: "Insulin",
    202: "Metformin",
    203: "Salbutamol",
}


def _drawn(seed: int, count: int) -> str:
    """Return SQL for a whole number from 0 to ``count - 1`` that follows from the row number ``i`` by a hash."""
    return f"(hash(i + {seed}000) % {count})::INT"


SETUP = (
    "CREATE TABLE concept AS SELECT * FROM (VALUES "
    + ", ".join(f"({number}, '{name}')" for number, name in CONCEPTS.items())
    + ") AS t(concept_id, concept_name)",
    f"CREATE TABLE person AS SELECT i::INT AS person_id, 8507 + 25 * {_drawn(1, 2)} AS gender_concept_id, "
    f"1930 + {_drawn(2, 75)} AS year_of_birth FROM range({PEOPLE}) r(i)",
    f"CREATE TABLE observation_period AS SELECT (i % {PEOPLE})::INT AS person_id, "
    f"DATE '2006-01-01' + 1500 * (i // {PEOPLE})::INT + {_drawn(10, 400)} AS observation_period_start_date, "
    f"observation_period_start_date + 20 + {_drawn(11, 1000)} AS observation_period_end_date "
    f"FROM range({3 * PEOPLE}) r(i) WHERE i < {PEOPLE} OR {_drawn(12, 3)} = 0",
    f"CREATE TABLE condition_occurrence AS SELECT (i % {PEOPLE})::INT AS person_id, "
    f"101 + {_drawn(20, 4)} AS condition_concept_id, DATE '2010-01-01' + {_drawn(21, 3000)} AS condition_start_date "
    f"FROM range({12 * PEOPLE}) r(i) WHERE i < {PEOPLE} OR {_drawn(22, 3)} = 0",
    f"CREATE TABLE drug_exposure AS SELECT (i % {PEOPLE})::INT AS person_id, 201 + {_drawn(30, 3)} AS drug_concept_id, "
    f"DATE '2010-01-01' + {_drawn(31, 3000)} AS drug_exposure_start_date, "
    f"drug_exposure_start_date + {_drawn(32, 180)} AS drug_exposure_end_date, "
    f"([7, 14, 28, 30, 30, 60, 90])[1 + {_drawn(33, 7)}]::INT AS days_supply, "
    f"1 + ({_drawn(34, 1000)} / 1000.0) ** 2 * 199 AS quantity "
    f"FROM range({9 * PEOPLE}) r(i) WHERE i < {PEOPLE} OR {_drawn(35, 2)} = 0",
    "ALTER TABLE concept ADD PRIMARY KEY (concept_id)",
    "ALTER TABLE person ADD PRIMARY KEY (person_id)",
)
"""Statements of DuckDB that create the tables."""
