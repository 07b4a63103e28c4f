"""The steps of a query: what each does, in which function, and what it hands on.

``tests/structure/test_query_steps.py`` follows a query through these functions, in this order;
``tests/documents/query_picture.py`` draws the steps and writes their table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a query.

    Attributes:
        verb: its name.
        purpose: what it does, in a few words.
        functions: ``path below dpsql/:qualified name`` of the functions that do it, in the order of their first calls.
        hands_on: what the next step gets.

    """

    verb: str
    purpose: str
    functions: tuple[str, ...]
    hands_on: str

    @property
    def rooms(self) -> tuple[str, ...]:
        """The folders that its functions stand in, each once."""
        return tuple(dict.fromkeys(name.partition(":")[0].rpartition("/")[0] for name in self.functions))


STEPS = (
    Step("parse", "read the text as one statement", ("sql/statements.py:read_statement",), "SelectStatement"),
    Step(
        "plan",
        "find keys, statistics and bounds, or every refusal at once",
        ("plan/planner.py:plan_query",),
        "PrivateQuery",
    ),
    Step(
        "bind",
        "choose the mechanism, and what AUTO found for the reader",
        ("mechanism/registry.py:choose",),
        "PrivateQuery of one reader",
    ),
    Step(
        "calibrate",
        "find noise and threshold; write the SQL",
        (
            "mechanism/calibrate.py:calibrate",
            "cascade/servings.py:servings_of",
            "bound/aggregation.py:bounded_sql",
        ),
        "noise scales, threshold, price, SQL",
    ),
    Step(
        "charge", "write the price to disk, or refuse", ("state/ledger.py:Ledger.charge",), "a charge that stays"
    ),
    Step(
        "aggregate",
        "run the bounded SQL on the rows",
        ("answer/exact.py:read_exact", "engine/database.py:DuckDBEngine.aggregate"),
        "exact whole numbers, in a wrapper that shows nothing",
    ),
    Step(
        "release",
        "draw noise, store points, keep keys above the threshold",
        (
            "mechanism/histogram.py:Histogram.draw",
            "state/side_table.py:SideTable.store",
            "answer/points.py:noisy_table",
        ),
        "noisy table",
    ),
    Step(
        "finish",
        "HAVING, ORDER BY, LIMIT and expressions on noisy numbers",
        ("plan/finish.py:finish_sql", "answer/result.py:Result.__init__"),
        "Result with its receipt",
    ),
)  # fmt: skip
CHARGE = next(number for number, step in enumerate(STEPS) if step.verb == "charge")
"""Place of the step before which no row is read."""
