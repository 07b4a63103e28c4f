"""Every error that dpsql raises, as one tree.

    DpsqlError
    ├── QueryError                 the text cannot become a private query; nothing was read or charged
    │   ├── ParseError             it is not SQL that DuckDB would accept
    │   ├── SchemaError            it names a table, column or type that is not there for this reader
    │   └── UnsupportedQueryError  it is SQL, but no private answer is defined; lists every refusal at once
    ├── PolicyError                a declaration by the curator is wrong or contradicts an earlier one
    ├── BudgetError                the privacy unit's budget does not cover the price
    ├── CalibrationError           no noise scale or threshold meets the request
    ├── EngineError                no answer in time, or DuckDB failed while it read raw data (opaque on purpose)
    ├── ReleaseError               a point could not be drawn, stored or shown
    ├── StateError                 the state file is missing, newer, damaged or busy
    ├── EntropyError               the operating system gave no randomness
    ├── MissingPackageError        what was asked for needs an optional package that is not installed
    ├── AccessError                an analyst asked for something only the curator may do
    └── RemoteError                a server cannot be reached, is stopping, or sent an unreadable answer

No message holds a value or key from a protected table: the texts are built from the query, the policy and
numbers that depend on those alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

_Kind = TypeVar("_Kind", bound="DpsqlError")


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the query text: 1-based line and column, and the half-open character range."""

    line: int
    column: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a query has no private answer.

    Attributes:
        code: stable name of the reason.
        message: the reason.
        hint: what to write instead.
        span: place in the text.
        analyst_hint: hint for an analyst, who cannot declare anything. None if ``hint`` is for everybody.

    """

    code: str
    message: str
    hint: str
    span: Span | None = None
    analyst_hint: str | None = None

    def for_analyst(self) -> Refusal:
        """Return the refusal with the words for an analyst."""
        if self.analyst_hint is None:
            return self
        return Refusal(self.code, self.message, self.analyst_hint, self.span)

    def __str__(self) -> str:
        place = f"{self.span}: " if self.span else ""
        return f"{place}{self.message} {self.hint}".rstrip()


class DpsqlError(Exception):
    """Base of all errors of dpsql, which can be pickled for process pools.

    Attributes:
        asks_too_much: whether the question, asked at a lower level, may be granted.
        requested_epsilon, remaining_epsilon: of a question by epsilon that asks for too much, and the most that it may
            still ask for at its delta; None for others.

    """

    asks_too_much = False
    requested_epsilon: float | None = None
    remaining_epsilon: float | None = None
    _for_analyst: DpsqlError | None = None

    def for_analyst(self) -> DpsqlError:
        """Return the error with the words for an analyst, who has no connection and declares nothing."""
        return self._for_analyst or self

    def at_level(self, message: str) -> Self:
        """Return the error with another message, and its own attributes."""
        return rebuilt(type(self), (message,), self.__dict__)

    def __reduce__(self) -> tuple[object, ...]:
        return rebuilt, (type(self), self.args, self.__dict__)


def rebuilt(kind: type[_Kind], arguments: tuple[object, ...], attributes: dict[str, object]) -> _Kind:
    """Return an error of a type with arguments and attributes, without its constructor."""
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class QueryError(DpsqlError):
    """The text cannot become a private query; nothing was read and nothing was charged."""


class ParseError(QueryError):
    """The text is not SQL that DuckDB would accept."""

    def __init__(
        self, message: str, span: Span | None = None, *, hint: str = "", analyst_hint: str | None = None
    ) -> None:
        place = f"{span}: " if span else ""
        super().__init__(f"{place}{message} {hint}".rstrip())
        self.span = span
        self.hint = hint
        if analyst_hint is not None:
            self._for_analyst = ParseError(message, span, hint=analyst_hint)


class SchemaError(QueryError):
    """The query names a table, column, function or type that is not there for this reader."""

    def __init__(
        self, message: str, *, hint: str = "", span: Span | None = None, analyst_hint: str | None = None
    ) -> None:
        place = f"{span}: " if span else ""
        super().__init__(f"{place}{message} {hint}".rstrip())
        self.span = span
        self.hint = hint
        if analyst_hint is not None:
            self._for_analyst = SchemaError(message, hint=analyst_hint, span=span)


class UnsupportedQueryError(QueryError):
    """The query is SQL, but no private answer is defined for it.

    ``refusals`` holds every reason that was found, in the order of the text.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        lines = "\n".join(f"  - [{refusal.code}] {refusal}" for refusal in self.refusals)
        super().__init__(f"no private answer is defined for this query:\n{lines}")

    def for_analyst(self) -> UnsupportedQueryError:
        """Return the error with the hints for an analyst."""
        return UnsupportedQueryError([refusal.for_analyst() for refusal in self.refusals])


class PolicyError(DpsqlError):
    """A declaration by the curator is wrong or contradicts an earlier one."""


class BudgetError(DpsqlError):
    """The privacy unit's budget does not cover the price; nothing was charged.

    Attributes:
        unit: name of the privacy unit.
        analyst: whose part of the budget is used up; None if it is the budget itself.
        requested_rho, remaining_rho: zCDP, or epsilon if `amount` says so; what remains is None if not for the reader.
        requested_delta, remaining_delta: threshold delta, a probability; likewise.

    """

    asks_too_much = True
    amount = "rho"
    analyst: str | None = None
    remaining_rho: Any
    remaining_delta: Any
    _granted_delta: float | None = None

    def __init__(
        self,
        unit: str,
        *,
        requested_rho: float,
        remaining_rho: float,
        requested_delta: float,
        remaining_delta: float,
        analyst: str | None = None,
        amount: str = "rho",
    ) -> None:
        self.unit, self.requested_rho, self.remaining_rho = unit, requested_rho, remaining_rho
        self.requested_delta, self.remaining_delta = requested_delta, remaining_delta
        if analyst is not None:
            self.analyst = analyst
        if amount != self.amount:
            self.amount = amount
        asked, left = self.told(requested_rho, requested_delta, "threshold "), self.told(remaining_rho, remaining_delta)
        super().__init__(
            f"{self.limit} does not cover this query: it asks for {asked}; left {'are' if ' and ' in left else 'is'} "
            f"{left}. Ask for less, or reuse a release (FROM dp_releases())."
        )

    @classmethod
    def without_amounts(
        cls, unit: str, *, requested_rho: float, requested_delta: float, granted_delta: float
    ) -> BudgetError:
        """Return the error for a reader with a limit, who sees no amount of the unit.

        Args:
            unit: name of the privacy unit.
            requested_rho: the price as the reader is shown it.
            requested_delta: likewise, of thresholds.
            granted_delta: what is left by texts and policy, for a cure that names a lower delta.

        """
        error = cls(
            unit, requested_rho=requested_rho, remaining_rho=0.0, requested_delta=requested_delta, remaining_delta=0.0
        )
        error._granted_delta = granted_delta
        error.remaining_rho = error.remaining_delta = None
        error.asks_too_much = False
        return error.at_level(
            f"{error.limit} does not cover this query: it asks for rho = {requested_rho:.6g} and threshold delta = "
            f"{requested_delta:.6g}, and what is left is not shown to a reader with a rho_limit. Ask for less, ask the "
            "curator, or reuse a release (FROM dp_releases())."
        )

    def told(self, level: float, delta: float, kind: str = "") -> str:
        """Return an amount of the budget in words; beside an epsilon without thresholds there is no delta."""
        thresholds = f" and {kind}delta = {delta:.6g}" * (self.amount == "rho" or self.requested_delta > 0)
        return f"{self.amount} = {level:.6g}{thresholds}"

    @property
    def granted_delta(self) -> float:
        """Return the delta that a cure may go down to: what remains, or for a reader with a limit what texts leave."""
        return float(self.remaining_delta) if self._granted_delta is None else self._granted_delta

    @property
    def limit(self) -> str:
        """Return what does not cover the price, as the subject of a sentence."""
        if self.analyst is None:
            return f"the budget of privacy unit {self.unit!r}"
        return f"the part of the budget of unit {self.unit!r} that {self.analyst!r} may spend"


class CalibrationError(DpsqlError):
    """No noise scale or threshold meets the request.

    Attributes:
        requested_rho, limit_rho: level of one statistic, and the ceiling of its numbers; None for other reasons.

    """

    requested_rho: float | None = None
    limit_rho: float | None = None

    def __init__(self, message: str, *, requested_rho: float | None = None, limit_rho: float | None = None) -> None:
        super().__init__(message)
        if limit_rho is not None:
            self.requested_rho, self.limit_rho, self.asks_too_much = requested_rho, limit_rho, True


class EngineError(DpsqlError):
    """DuckDB failed while it read raw data, or did not end in time.

    The message is constant: DuckDB's own texts quote row values. A charge that was made stays, and asking the
    same query again uses it up.

    Args:
        reason: what could not be done.
        withheld: DuckDB said something about it that is not passed on.
        charged: there may have been a charge before.

    """

    def __init__(
        self,
        reason: str = "the engine could not run the bounded query",
        *,
        withheld: bool = True,
        charged: bool = True,
    ) -> None:
        hidden = "; its message is withheld because it may quote personal data" if withheld else ""
        paid = " Any charge stays and pays for asking the same query again." if charged else ""
        super().__init__(f"{reason}{hidden}.{paid}")

    @classmethod
    def out_of_time(cls) -> EngineError:
        """The curator's error where a limit of time ran out; DuckDB had nothing to say."""
        return cls("the query ran out of time", withheld=False)

    @classmethod
    def unanswered(cls) -> EngineError:
        """The analysts' error for a time-out, a failure of the engine and a bug alike: rows may decide between them."""
        return cls(
            "the query has no answer: it ran out of time or could not be run, and the error does not say which",
            withheld=False,
        )


class ReleaseError(DpsqlError):
    """A point could not be drawn, stored or shown."""


class StateError(DpsqlError):
    """The state file is missing, newer than this program, damaged or busy, or contradicts its database."""

    @classmethod
    def of_file(cls, path: object, message: str) -> StateError:
        """Return the error about a file, whose path an analyst is not told.

        Args:
            path: of the state file, or of the folder of its locks.
            message: text that follows the path.

        """
        error = cls(f"{path}{message}")
        error._for_analyst = cls(f"the state file{message}")
        return error

    @classmethod
    def of_age(cls, message: str) -> StateError:
        """Return the refusal of a state file that the curator has to look at, whose reason an analyst is not told."""
        error = cls(message)
        error._for_analyst = cls("the curator has to look at the state file first; nothing was charged")
        return error


class EntropyError(DpsqlError):
    """The operating system gave no randomness; nothing was drawn."""


class MissingPackageError(DpsqlError):
    """The request needs an optional package that is not installed.

    Attributes:
        package: what is missing.
        extra: the extra of dpsql that brings it.

    """

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"this needs {package}, which is not installed; run: pip install 'dpsql[{extra}]'")


class AccessError(DpsqlError):
    """An analyst asked for something only the curator may do, or for a level above their clearance.

    Attributes:
        requested_rho, limit_rho: what was asked for, and the most that the reader may be shown; None for other reasons.
        reader: who asked for more than that.

    """

    requested_rho: float | None = None
    limit_rho: float | None = None
    reader: str = ""

    def __init__(self, message: str, *, analyst_message: str | None = None) -> None:
        super().__init__(message)
        if analyst_message is not None:
            self._for_analyst = AccessError(analyst_message)

    @classmethod
    def above_limit(cls, reader: str, *, requested_rho: float, limit_rho: float) -> AccessError:
        """Return the error of a reader who asks for a level above their clearance."""
        error = cls(
            f"{reader!r} may be shown answers up to rho = {limit_rho:.9g}, and this query asks for "
            f"rho = {requested_rho:.9g}; ask for less"
        )
        error.reader, error.requested_rho, error.limit_rho = reader, requested_rho, limit_rho
        error.asks_too_much = True
        return error


class RemoteError(DpsqlError):
    """A server of ``dpsql serve`` cannot be reached, is busy or stopping, or sent an answer that cannot be read.

    Asking the same again is safe: what was charged pays for it.
    """


def require(*rules: tuple[bool, str]) -> None:
    """Refuse what breaks a rule, with the message of the first one that it breaks.

    Args:
        rules: whether each holds, and what to say where it does not.

    Raises:
        PolicyError: one does not hold.

    """
    for holds, message in rules:
        if not holds:
            raise PolicyError(message)
