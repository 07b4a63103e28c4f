"""A question of each kind of query on one small table, and its answer beside that to a question with an option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dpsql
from tests.end_to_end.receipts import receipt_of

TABLES = """
CREATE TABLE visits AS
SELECT i // 4 AS patient, 'w' || floor(sqrt((i // 4 + i % 2) % 9))::INTEGER AS ward, i // 4 % 2 AS sex, i % 10 AS cost,
    CASE WHEN i // 4 % 12 = 0 THEN 'rare ' || i // 4 ELSE 'd' || floor(sqrt((i // 4 + i % 2) % 16))::INTEGER END
    AS doctor
FROM range(6000) t(i);
CREATE TABLE stays AS FROM visits
"""
"""A patient has at most two groups, so that every session shows the same rows. Groups differ in size: there are a ward
of the list without rows, and doctors of one patient. Stays are the same rows. Nothing bounds the wards of
their patients, and each ward of their list has rows.
"""
PROTECTED = (
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 2, "
    "max_rows_per_group := 4, version := '1', coverage := "
)
UNIT = "CALL dp_unit('patient', rho_budget := 1000, delta_threshold := 0.2, delta_conversion := 1e-3"
IN_PURE = "CALL dp_unit('patient', epsilon_budget := 100, delta_budget := 0.2, composition := 'pure', replace := TRUE)"
IN_ZCDP = f"{UNIT}, composition := 'zcdp', replace := TRUE)"
DECLARED = (
    f"{UNIT})",
    f"{PROTECTED}FALSE)",
    "CALL dp_domain('visits', 'ward', keys := ['w0', 'w1', 'w2', 'w3'])",
    "CALL dp_protect('stays', unit := 'patient', privacy_unit_column := 'patient', max_rows_per_group := 4, "
    "version := '1', coverage := FALSE)",
    "CALL dp_domain('stays', 'ward', keys := ['w0', 'w1', 'w2'])",
    "CALL dp_domain('visits', 'sex', keys := [0, 1])",
)


@dataclass(frozen=True)
class Question:
    """A text by its parts, and its options."""

    keys: str
    options: Mapping[str, Any]
    sums: str = "sum(cost, contribution_bounds_per_group => (0, 40)) AS s"
    numbers: str = "count(*) AS n"
    group: str = "ALL"
    where: str = ""
    end: str = ""
    source: str = "visits"

    @property
    def text(self) -> str:
        """The text with its options."""
        options = ", ".join(f"{name} = {_literal(value)}" for name, value in self.options.items())
        columns = ", ".join(filter(None, (self.keys, self.numbers, self.sums)))
        return (
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {columns} FROM {self.source} {self.where} "
            f"GROUP BY {self.group} {self.end}"
        )

    def of(self, *without: str, **options: Any) -> Question:
        """Return the question with some options, and without others."""
        return replace(self, options={k: v for k, v in {**self.options, **options}.items() if k not in without})


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        # words are not in quotes, and names are
        return value if value.isupper() else f"'{value}'"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


_AUTO = "sum(cost, contribution_bounds_per_group => AUTO) AS s"
QUESTIONS: Mapping[str, Question] = {
    "OneSet, public keys": Question("ward", {"rho": 1.0}),
    "OneSet, private keys": Question("doctor", {"rho": 1.0}),
    "AutoHalfWidths": Question("ward", {"target_half_width": 40, "max_rho": 20.0}, _AUTO),
    "WithinTarget": Question("doctor", {"target_relative_error": 0.5, "at_least": 0.5, "max_rho": 2.0}),
    "LargestWithin": Question(
        "ward", {"target_relative_error": 0.2, "max_rho": 2.0, "method": "CORRELATED"}, sums="", source="stays"
    ),
    "KeysAlone": Question("doctor", {"rho": 1.0}, sums="", numbers=""),
    "KeysFirst": Question("doctor", {"rho": 1.0, "mechanism": "KEYS_FIRST"}),
    "GroupingSets, sums": Question("ward, sex", {"rho": 1.0}, group="GROUPING SETS ((ward, sex), (ward))"),
    "GroupingSets, apart": Question("sex, doctor", {"rho": 1.0}, group="GROUPING SETS ((doctor), (sex))"),
    "WithOtherGroup": Question("doctor", {"rho": 1.0, "other_group": "others"}),
}
"""By the kind, and by what decides between its ways to answer."""


@dataclass(frozen=True)
class Asked:
    """An answer to a question with an option, beside the answer to the same question without it."""

    plain: dpsql.Result
    answer: dpsql.Result

    @property
    def was(self) -> dpsql.Receipt:
        """The receipt without the option."""
        return receipt_of(self.plain)

    @property
    def receipt(self) -> dpsql.Receipt:
        """The receipt with the option."""
        return receipt_of(self.answer)

    @property
    def rows(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """The rows without the option, and with it."""
        return self.plain.fetchall(), self.answer.fetchall()

    @property
    def cells(self) -> set[Any]:
        """All values of the answer."""
        return {cell for row in self.answer.fetchall() for cell in row}

    def says(self, words: str) -> bool:
        """Check that the receipt says some words, and that it does not without the option."""
        return words in str(self.receipt) and words not in str(self.was)

    @property
    def is_part(self) -> bool:
        """Whether the answer has some of the rows without the option."""
        return set() < set(self.rows[1]) < set(self.rows[0])

    @property
    def largest_sum(self) -> float:
        """Most that a unit adds to a sum."""
        (bounds,) = (one.bounds for one in self.receipt.columns if one.name == "s")
        assert bounds
        return bounds[1]
