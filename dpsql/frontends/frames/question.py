"""One question about a frame: its keys, unit and terms, and the private SELECT that asks it.

Its errors have no text to point into, so they come without a place. What they and receipts advise is in the words of
pandas.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpsql.errors import PolicyError, Refusal, SchemaError, UnsupportedQueryError
from dpsql.frontends.frames.advice import in_words_of_pandas, refused_in_words_of_pandas
from dpsql.frontends.frames.key_terms import KeyTerm
from dpsql.frontends.frames.privacy_unit import PrivacyUnit, declared_policy, source_of
from dpsql.frontends.frames.rows import Frame, column_names, create_source, frame_database, source_column
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
        terms: of keys that are computed, how, by the names of their columns in the source.

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
    terms: Mapping[str, KeyTerm] = field(default_factory=dict)

    @property
    def key_columns(self) -> list[str]:
        """Return the columns of the frame that the keys are, or are computed of. Keys have these names in an answer."""
        return [self.terms[key].column if key in self.terms else key for key in self.keys]

    def ask(self, measures: Sequence[Measure], *, explain: bool = False) -> tuple[Result, tuple[Measure, ...]]:
        """Return the private answer and its measures. With ``explain``, return the plan, which spends nothing.

        The answer has the keys, then each measure with the columns beside it. The measures have the unit column where
        distinct units are counted.
        """
        name = source_of(self.frame, self.unit)
        with self.unit.access() as access, frame_database(self.unit.state) as connection:
            source = declared_policy(self.unit, name, self.frame, access)
            remembered = () if self.unit.source is None else source.columns
            options = self._options(source, remembered)
            owner = self._unit_column(source.unit_column)
            measures = tuple(one.of_units(owner) for one in measures)
            self._require_names(measures)
            names = dict.fromkeys(
                (*self.key_columns, owner, *(one.column for one in measures if one.column is not None))
            )
            computed = [
                (key, term.sql.replace("{}", quote(source_column(term.column, remembered))))
                for key, term in self.terms.items()
            ]
            never_null = create_source(
                connection, self.frame, list(names), source_place(name), remembered, owner, computed
            )
            written = functools.partial(_call, owner=owner, remembered=remembered)
            aliases = self._aliases(measures)
            text = self._text(list(zip(map(written, measures), aliases, strict=True)), name, remembered)
            options = _with_aliases(options, {one.name: alias for one, alias in zip(measures, aliases, strict=True)})
            literals = () if self.listed is None else self.listed.literals()
            listed = tuple((source_column(key, remembered), values) for key, values in literals)
            terms = FrameTerms(source.table, self.unit.version, listed, self.max_rows_per_group, self.max_rows_norm)
            session = FrameSession(connection, access, terms, never_null, len(self.frame))
            with contextlib.closing(session), refused_in_words_of_pandas():
                result = (session.explain if explain else session.sql)(text, options)
            if result.receipt is not None:
                result.receipt = in_words_of_pandas(result.receipt, measures, written)
            return result, measures

    def columns(self, measures: Sequence[Measure]) -> list[tuple[str, Measure | None]]:
        """Return the columns after the keys: each name with its measure, or None for a column beside a number."""
        ends = self.form.beside
        return [pair for one in measures for pair in ((one.name, one), *((one.name + end, None) for end in ends))]

    def _require_names(self, measures: Sequence[Measure]) -> None:
        names = [*(name for name, _ in self.columns(measures)), *(() if self.form.as_index else self.key_columns)]
        doubled = [name for name in names if names.count(name) > 1]
        if doubled:
            raise PolicyError(f"the answer would have two columns {doubled[0]!r}; name one otherwise")

    def _unit_column(self, declared: str) -> str:
        found = [name for name in column_names(self.frame) if folded(name) == folded(declared)]
        if not found:
            raise SchemaError(
                f"the frame has no column {declared!r}, which distinguishes the members of {self.unit.name!r}.",
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
                "List what is known without the data, as in public_keys=[<every key of the column>], or leave observed "
                "out.",
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

    def _aliases(self, measures: Sequence[Measure]) -> list[str]:
        """Return the name of each measure in the SELECT, which differs from its own where SQL cannot have that."""
        taken = {folded(key) for key in self.keys}
        aliases = []
        for measure in measures:
            alias = measure.name
            # answers are read by place, so an alias need only be one
            while not alias or folded(alias) in taken:
                alias += "_"
            taken.add(folded(alias))
            aliases.append(alias)
        return aliases

    def _text(self, calls: Sequence[tuple[str, str]], source: str, remembered: Sequence[RememberedColumn]) -> str:
        """Return the SELECT of calls, each with its alias."""
        keys = [quote(source_column(key, remembered)) for key in self.keys]
        columns = []
        for call, alias in calls:
            columns.append(f"{call} AS {quote(alias)}")
            columns += [f"{function}({quote(alias)})" for function in self.form.beside.values()]
        relation = ".".join(map(quote, source_place(source)))
        return f"SELECT {', '.join([*keys, *columns])} FROM {relation} GROUP BY {', '.join(keys)}"


def _with_aliases(options: Mapping[str, object], aliases: Mapping[str, str]) -> Mapping[str, object]:
    """Return the options with half widths by the names of columns in the SELECT."""
    target = options.get("target_half_width")
    if not isinstance(target, Mapping):
        return options
    return {**options, "target_half_width": {aliases.get(name, name): width for name, width in target.items()}}


def _call(measure: Measure, *, owner: str, remembered: Sequence[RememberedColumn]) -> str:
    """Return the call that asks for a measure."""
    column = None if measure.column is None else source_column(measure.column, remembered)
    return measure_sql(measure, column, is_unit=measure.column == owner)
