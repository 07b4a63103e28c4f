"""The steps of a query: the purpose, the functions and the result of each.

``tests/structure/test_query_steps.py`` follows a query through these functions, in this order.
``tests/documents/query_picture.py`` draws the steps and writes their table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a query.

    Attributes:
        verb: its name.
        purpose: its work, in a few words.
        functions: ``path below dpsql/:qualified name`` of the functions that do it, in the order of their first calls.
        hands_on: the input of the next step.

    """

    verb: str
    purpose: str
    functions: tuple[str, ...]
    hands_on: str

    @property
    def rooms(self) -> tuple[str, ...]:
        """Return the folders of its functions, each once."""
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
        "choose the mechanism; use the choices of AUTO for the reader",
        ("mechanism/registry.py:choose",),
        "PrivateQuery of one reader",
    ),
    Step(
        "calibrate",
        "find noise and threshold; write the SQL",
        (
            "mechanism/calibrate.py:calibrate",
            "cascade/servings.py:servings_of",
            "bound/statement.py:Bounded.sql",
        ),
        "noise scales, threshold, price, SQL",
    ),
    Step(
        "charge", "write the price to disk, or refuse", ("state/ledger.py:Ledger.charge",), "a stored charge"
    ),
    Step(
        "aggregate",
        "run the bounded SQL on the rows",
        (
            "release/exact.py:read_exact",
            "release/held_pairs.py:HeldPairs.read",
            "engine/transaction.py:DuckDBTransaction.exact",
        ),
        "exact whole numbers, in a wrapper that shows nothing",
    ),
    Step(
        "release",
        "draw noise, store points, keep keys above the threshold",
        (
            "mechanism/histogram.py:Histogram.draw",
            "state/side_table.py:SideTable.store",
            "release/left_out_stage.py:release_left_out",
            "release/noisy_table.py:noisy_table",
        ),
        "noisy table",
    ),
    Step(
        "finish",
        "HAVING, ORDER BY, LIMIT and expressions on noisy numbers",
        ("plan/finish.py:finish_sql", "receipts/result.py:Result.__init__"),
        "Result with its receipt",
    ),
)  # fmt: skip
CHARGE = next(number for number, step in enumerate(STEPS) if step.verb == "charge")
"""Place of the step before which no row is read."""
