"""Numbers that private rows of a text wait for: what identifies them before they are known, and their values.

The identity of a number is its text and the levels of the points that it is computed from. Both are known before
anything is charged, because only queries of one stage and without thresholds may be waited for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpsql.features.private_parts import OfferedPart
from dpsql.model.environment import SOURCE_ROWS, Environment
from dpsql.model.refusals import Refusals
from dpsql.plan.composition.outer import Source, check_literals, read_outer
from dpsql.plan.composition.scalars import Filling, Scalar
from dpsql.session.around_answers import computed


@dataclass(frozen=True, slots=True)
class PlannedScalar:
    """A number that a part waits for.

    Attributes:
        scalar: the query of it.
        sql: computes it as text, from the rows of each source under `SOURCE_ROWS` and its place.
        type: its type.
        sources: names under which it reads answers and public tables, in the order of their places.

    """

    scalar: Scalar
    sql: str
    type: str
    sources: tuple[str, ...]

    def filling(self, parts: Mapping[str, OfferedPart]) -> Filling:
        """Return the number as it is identified before it is known.

        Args:
            parts: the parts that it may read, by their names, as they are served.

        """
        return Filling(self.type, self._identity(parts))

    def known(self, parts: Mapping[str, OfferedPart], tables: Mapping[str, pa.Table]) -> Filling:
        """Return the number with its value.

        Args:
            parts: the parts that it may read, by their names; all that it reads are stored.
            tables: rows of answers and public tables, by their names.

        Raises:
            ReleaseError: that fails.

        """
        rows = {f"{SOURCE_ROWS}{place}": tables[name] for place, name in enumerate(self.sources)}
        answers = sum(name in parts for name in self.sources)
        (value,) = computed(self.sql, rows, answers).column(0).to_pylist()
        return Filling(self.type, self._identity(parts), value)

    def _identity(self, parts: Mapping[str, OfferedPart]) -> str:
        points = [
            [
                [serving.pin.statistic_hash, serving.disclosed.rho_nano]
                for offer in parts[name].offers
                for serving in offer.servings
            ]
            for name in self.sources
            if name in parts
        ]
        content = json.dumps([self.scalar.sql, points], separators=(",", ":"))
        return f"number {hashlib.sha256(content.encode()).hexdigest()}"


def planned_scalar(
    scalar: Scalar,
    parts: Mapping[str, OfferedPart],
    sources: Sequence[Source],
    environment: Environment,
    refusals: Refusals,
) -> PlannedScalar:
    """Return a number that a part waits for, with its type.

    Args:
        scalar: the query of it.
        parts: the parts before, by their names.
        sources: answers and public tables that it may read.
        environment: binds it.
        refusals: collects.

    Raises:
        UnsupportedQueryError: it is no query of one column, or its level or groups follow from released numbers.

    """
    read = [source for source in sources if source.name in scalar.reads]
    plain = [Source(one.name, one.columns) for one in read]
    outer = read_outer(scalar.outer, plain, environment, refusals)
    check_literals(scalar.outer, plain, environment, refusals)
    if len(outer.columns) != 1:
        refusals.refuse("after", scalar.place, "a query in place of a value has one column.", "Select one number.")
    for source in read:
        part = parts.get(source.name)
        if part and not (part.is_single and part.has_fixed_groups):
            refusals.refuse(
                "after",
                scalar.place,
                "private rows wait for an answer whose level or groups follow from released numbers (AUTO, a relative "
                "error, other_group, private keys).",
                "Ask for it first, and write its number; or name bounds, and group by public keys.",
            )
    sql = f"SELECT CAST(({outer.sql}) AS VARCHAR) AS value"
    return PlannedScalar(scalar, sql, outer.columns[0].type, tuple(source.name for source in read))
