"""One question about a frame: its keys, unit and terms, and the private SELECT that asks it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpsql.errors import PolicyError, Refusal, SchemaError, UnsupportedQueryError
from dpsql.frontends.frames.declared import declared_policy
from dpsql.frontends.frames.hints import in_words_of_pandas
from dpsql.frontends.frames.listed import ListedKeys
from dpsql.frontends.frames.measures import Measure, measure_sql
from dpsql.frontends.frames.privacy_unit import PrivacyUnit, canonical, place_of
from dpsql.frontends.frames.rows import Frame, column_names, create_source, open_database, source_column
from dpsql.frontends.frames.sources import source_of
from dpsql.query.dialect import quote
from dpsql.query.environment import folded
from dpsql.session import Result
from dpsql.session.frame_session import FrameSession, FrameTerms
from dpsql.session.links import unit_column
from dpsql.state import Policy, RememberedTable


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, and what its columns after the keys are."""

    result: Result
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Question:
    """How a frame is grouped, for whom, and how private the answer shall be.

    Attributes:
        frame: the rows.
        keys: its columns to group by.
        unit: privacy unit, ledger and source.
        options: as those of ``Session.sql``.
        listed: public keys that the question brings along.
        max_rows_per_group: most rows one unit adds to a group; None for what the policy says.
        observed: False to show every public key, and refuse where keys are private.
        sort: whether the answer is in the order of its keys.
        dropna: whether a key that is missing is shown.
        as_index: whether keys become the index, where there is one.
        intervals: whether both ends of the 95 % interval stand beside each number.

    """

    frame: Frame
    keys: tuple[str, ...]
    unit: PrivacyUnit
    options: Mapping[str, object] = field(default_factory=dict)
    listed: ListedKeys | None = None
    max_rows_per_group: int | None = None
    observed: bool = True
    sort: bool = True
    dropna: bool = True
    as_index: bool = True
    intervals: bool = False

    def ask(self, measures: Sequence[Measure]) -> Answer:
        """The private answer: keys, then each measure, with the ends of its interval where these are wanted."""
        return self._run(measures, explain=False)

    def explain(self, measures: Sequence[Measure]) -> Result:
        """Mechanism, noise and price of the same; spends nothing."""
        return self._run(measures, explain=True).result

    def _run(self, measures: Sequence[Measure], *, explain: bool) -> Answer:
        source = source_of(self.frame, self.unit)
        with self.unit.books() as books, contextlib.closing(open_database()) as connection:
            policy = declared_policy(self.unit, source, self.frame, books)
            remembered = None
            if self.unit.source is not None:
                remembered = next((one for one in policy.remembered if one.table == canonical(source)), None)
            options = self._options(policy, source, remembered)
            owner = self._unit_column(unit_column(policy, canonical(source)))
            measures = tuple(one.of_units(owner) for one in measures)
            self._require_names(measures)
            names = dict.fromkeys((*self.keys, owner, *(one.column for one in measures if one.column is not None)))
            never_null = create_source(connection, self.frame, list(names), place_of(source), remembered, owner)
            text = self._text(measures, source, owner, remembered)
            session = FrameSession(connection, books, self._terms(source, remembered), never_null, len(self.frame))
            with contextlib.closing(session), in_words_of_pandas():
                return Answer(session.explain(text, options) if explain else session.sql(text, options), measures)

    def names(self, measure: Measure) -> tuple[str, ...]:
        """What the columns of a measure are called."""
        ends = ("_low", "_high") if self.intervals else ()
        return (measure.name, *(measure.name + end for end in ends))

    def _require_names(self, measures: Sequence[Measure]) -> None:
        names = [name for measure in measures for name in self.names(measure)]
        names += [] if self.as_index else self.keys
        doubled = [name for name in names if names.count(name) > 1]
        if doubled:
            raise PolicyError(f"the answer would have two columns {doubled[0]!r}; name one otherwise")

    def _unit_column(self, declared: str) -> str:
        found = [name for name in column_names(self.frame) if folded(name) == folded(declared)]
        if not found:
            raise SchemaError(
                f"the frame has no column {declared!r}, which tells the members of {self.unit.name!r} apart.",
                hint="Merge it in first; rows without an owner have no private answer.",
            )
        return found[0]

    def _terms(self, source: str, remembered: RememberedTable | None) -> FrameTerms:
        literals = () if self.listed is None else self.listed.literals()
        listed = tuple((source_column(name, remembered), values) for name, values in literals)
        return FrameTerms(canonical(source), self.unit.version, listed, self.max_rows_per_group)

    def _options(self, policy: Policy, source: str, remembered: RememberedTable | None) -> Mapping[str, object]:
        """With PUBLIC_GROUPS where every key must be public, so that one without a list is refused.

        Raises:
            UnsupportedQueryError: ``observed`` is False, and keys are private.
            PolicyError: public keys are listed in a table that a frame is without.

        """
        own = {} if self.listed is None else self.listed.columns
        domains = {
            key: policy.domain(canonical(source), source_column(key, remembered)) for key in self.keys if key not in own
        }
        private = [key for key, known in domains.items() if known is None or not (known.keys or known.keys_from)]
        if self.listed is None and not self.observed and private:
            message = f"observed=False shows every value of {', '.join(private)}, and categories come from the data."
            hint = "List what is known without the data, as in public_keys=['a', 'b'], or leave observed out."
            raise UnsupportedQueryError([Refusal("public_keys_missing", message, hint)])
        for key, known in domains.items():
            if known is not None and known.keys_from is not None and not private:
                raise PolicyError(
                    f"the keys of {key!r} are listed in table {known.keys_from[0]!r}, which a frame is without; give "
                    f"the same list in public_keys= for the same answer"
                )
        if self.listed is None and self.observed:
            return self.options
        if "group_selection_strategy" in self.options:
            raise PolicyError("group_selection_strategy follows from public_keys= and observed=; leave it out")
        return {**self.options, "group_selection_strategy": "PUBLIC_GROUPS"}

    def _text(self, measures: Sequence[Measure], source: str, owner: str, remembered: RememberedTable | None) -> str:
        keys = [quote(source_column(key, remembered)) for key in self.keys]
        taken = {folded(key) for key in self.keys}
        columns = []
        for measure in measures:
            alias = measure.name
            # answers are read by place, so an alias need only be one
            while not alias or folded(alias) in taken:
                alias += "_"
            taken.add(folded(alias))
            column = None if measure.column is None else source_column(measure.column, remembered)
            columns.append(f"{measure_sql(measure, column, is_unit=measure.column == owner)} AS {quote(alias)}")
            if self.intervals:
                columns += [f"dp_interval_{end}({quote(alias)})" for end in ("low", "high")]
        relation = ".".join(map(quote, place_of(source)))
        return f"SELECT {', '.join([*keys, *columns])} FROM {relation} GROUP BY {', '.join(keys)}"
