"""One question about a frame: its keys, unit and terms, and the private SELECT that asks it.

Its errors have no text to point into, so they come without a place and with hints in the words of pandas.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dpsql.errors import PolicyError, Refusal, SchemaError, UnsupportedQueryError
from dpsql.frontends.frames.privacy_unit import PrivacyUnit, declared_policy, source_of
from dpsql.frontends.frames.rows import Frame, column_names, create_source, open_database, source_column
from dpsql.frontends.frames.shape import AnswerForm, ListedKeys, Measure, measure_sql
from dpsql.session import (
    FrameSession,
    FrameTerms,
    RememberedColumn,
    Result,
    SourcePolicy,
    folded,
    quote,
    source_place,
)

_HINTS = {
    "bounds_missing": (
        "Give bounds of it, as in bounds=(0, 500): for sums and counts what one unit adds to one group, else what one "
        "row is. Counts, means and the like also take groupby(…, max_rows_per_group=5)."
    ),
    "bounds_invalid": "Write bounds=(0, 500).",
    "privacy_level_missing": "Write groupby(…, epsilon=0.5) or groupby(…, rho=0.01).",
    "max_groups_missing": (
        "Write groupby(…, max_groups=4): a unit then counts in at most 4 groups. With public_keys= it is not needed."
    ),
    "public_keys_missing": "List the values of every key in public_keys=.",
    "value_type": "Take another column, or convert it first with df.astype(…): columns of Python objects are texts.",
    "key_type": "Convert it first, as in df.astype({'key': 'str'}).",
}
"""Other things to write than in SQL, by the code of a refusal."""


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
        max_rows_norm: most l2 norm of its rows over all groups; None for what the policy says.
        observed: False to show every public key, and refuse where keys are private.
        form: how the answer is shown.

    """

    frame: Frame
    keys: tuple[str, ...]
    unit: PrivacyUnit
    options: Mapping[str, object] = field(default_factory=dict)
    listed: ListedKeys | None = None
    max_rows_per_group: int | None = None
    max_rows_norm: float | None = None
    observed: bool = True
    form: AnswerForm = field(default_factory=AnswerForm)

    def ask(self, measures: Sequence[Measure], *, explain: bool = False) -> tuple[Result, tuple[Measure, ...]]:
        """The private answer: keys, then each measure, with the ends of its interval where these are wanted.

        Beside it stand the measures, with the unit column where distinct units are counted. With ``explain`` mechanism,
        noise and price of the same, which spends nothing.
        """
        name = source_of(self.frame, self.unit)
        with self.unit.access() as access, contextlib.closing(open_database()) as connection:
            source = declared_policy(self.unit, name, self.frame, access)
            remembered = () if self.unit.source is None else source.columns
            options = self._options(source, remembered)
            owner = self._unit_column(source.unit_column)
            measures = tuple(one.of_units(owner) for one in measures)
            self._require_names(measures)
            names = dict.fromkeys((*self.keys, owner, *(one.column for one in measures if one.column is not None)))
            never_null = create_source(connection, self.frame, list(names), source_place(name), remembered, owner)
            text = self._text(measures, name, owner, remembered)
            literals = () if self.listed is None else self.listed.literals()
            listed = tuple((source_column(key, remembered), values) for key, values in literals)
            terms = FrameTerms(source.table, self.unit.version, listed, self.max_rows_per_group, self.max_rows_norm)
            session = FrameSession(connection, access, terms, never_null, len(self.frame))
            with contextlib.closing(session), _in_words_of_pandas():
                return (session.explain if explain else session.sql)(text, options), measures

    def columns(self, measures: Sequence[Measure]) -> list[tuple[str, Measure | None]]:
        """The columns beside the keys: each name with its measure, None for the end of an interval."""
        ends = ("_low", "_high") if self.form.intervals else ()
        return [pair for one in measures for pair in ((one.name, one), *((one.name + end, None) for end in ends))]

    def _require_names(self, measures: Sequence[Measure]) -> None:
        names = [*(name for name, _ in self.columns(measures)), *(() if self.form.as_index else self.keys)]
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

    def _options(self, source: SourcePolicy, remembered: Sequence[RememberedColumn]) -> Mapping[str, object]:
        """With PUBLIC_GROUPS where every key must be public, so that one without a list is refused.

        Raises:
            UnsupportedQueryError: ``observed`` is False, and keys are private.
            PolicyError: public keys are listed in a table that a frame is without.

        """
        own = {} if self.listed is None else self.listed.columns
        domains = {
            key: source.policy.domain(source.table, source_column(key, remembered))
            for key in self.keys
            if key not in own
        }
        private = [key for key, known in domains.items() if known is None or not (known.keys or known.keys_from)]
        if self.listed is None and not self.observed and private:
            refusal = Refusal(
                "public_keys_missing",
                f"observed=False shows every value of {', '.join(private)}, and categories come from the data.",
                "List what is known without the data, as in public_keys=['a', 'b'], or leave observed out.",
            )
            raise UnsupportedQueryError([refusal])
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

    def _text(
        self, measures: Sequence[Measure], source: str, owner: str, remembered: Sequence[RememberedColumn]
    ) -> str:
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
            if self.form.intervals:
                columns += [f"dp_interval_{end}({quote(alias)})" for end in ("low", "high")]
        relation = ".".join(map(quote, source_place(source)))
        return f"SELECT {', '.join([*keys, *columns])} FROM {relation} GROUP BY {', '.join(keys)}"


@contextlib.contextmanager
def _in_words_of_pandas() -> Iterator[None]:
    """Rewrite what is raised inside: without places in a text, and with hints for who wrote none.

    Raises:
        UnsupportedQueryError, SchemaError: as they came, rewritten.

    """
    try:
        yield
    except UnsupportedQueryError as error:
        refusals = [dataclasses.replace(one, hint=_HINTS.get(one.code, one.hint), span=None) for one in error.refusals]
        raise UnsupportedQueryError(refusals) from None
    except SchemaError as error:
        place = f"{error.span}: " if error.span else ""
        raise SchemaError(str(error).removeprefix(place).removesuffix(error.hint).rstrip(), hint=error.hint) from None
