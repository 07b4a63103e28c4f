"""Numbers that private rows of a text wait for: what identifies them before they are known, and their values.

The identity of a number is its text, the points that it is computed from with their levels, the least units of a group
that is shown, and public rows. All are known before anything is charged, because only queries of one stage and without
thresholds may be waited for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpsql.engine import digest
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
        public: digests of the rows of these public tables, by their names.

    """

    scalar: Scalar
    sql: str
    type: str
    sources: tuple[str, ...]
    public: Mapping[str, str]

    def filling(self, parts: Mapping[str, OfferedPart]) -> Filling:
        """Return the number as it is identified before it is known.

        Args:
            parts: the parts that it may read, by their names, as they are served.

        """
        return Filling(self.type, self._identity(parts, self.public))

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
        public = {name: digest(tables[name]) for name in self.public}
        return Filling(self.type, self._identity(parts, public), value)

    def _identity(self, parts: Mapping[str, OfferedPart], public: Mapping[str, str]) -> str:
        read = [public[name] if name in public else _shown(parts[name]) for name in self.sources]
        content = json.dumps([self.scalar.sql, read], separators=(",", ":"))
        return f"number {hashlib.sha256(content.encode()).hexdigest()}"


def _shown(part: OfferedPart) -> list[object]:
    """Return what the shown numbers of a part follow from: its points, and the least units of a group."""
    points = [
        [serving.pin.statistic_hash, serving.disclosed.rho_nano] for offer in part.offers for serving in offer.servings
    ]
    return [points, [one.request.min_units for one in part.query.parts]]


def planned_scalar(
    scalar: Scalar,
    parts: Mapping[str, OfferedPart],
    sources: Sequence[Source],
    public: Callable[[str], str],
    environment: Environment,
    refusals: Refusals,
) -> PlannedScalar:
    """Return a number that a part waits for, with its type.

    Args:
        scalar: the query of it.
        parts: the parts before, by their names.
        sources: answers and public tables that it may read.
        public: returns the digest of the rows of a public table, by its name among them.
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
        if part and part.query.whole_request.refresh:
            refusals.refuse(
                "option",
                scalar.place,
                "private rows wait for a number that is released anew each time.",
                "Ask for it first with refresh, and leave refresh out here.",
            )
        if part and not (part.is_single and part.has_fixed_groups):
            refusals.refuse(
                "after",
                scalar.place,
                "private rows wait for an answer whose level or groups follow from released numbers (AUTO, a relative "
                "error, other_group, private keys).",
                "Ask for it first, and write its number; or name bounds, and group by public keys.",
            )
    sql = f"SELECT CAST(({outer.sql}) AS VARCHAR) AS value"
    names = tuple(source.name for source in read)
    digests = {name: public(name) for name in names if name not in parts}
    return PlannedScalar(scalar, sql, outer.columns[0].type, names, digests)
