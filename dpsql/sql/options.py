"""The options of a query: their names, the values that each takes, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from dpsql.errors import ParseError
from dpsql.model.private_query import OPTION_NAMES, QueryOptions
from dpsql.model.refusals import Refusals, refuse_combinations, that_hold
from dpsql.model.similar_names import did_you_mean
from dpsql.operations.dialect import DifferentialPrivacy, unquoted
from dpsql.sql.statements import literal_value

GROUP_SELECTION = ("PUBLIC_GROUPS", "GAUSSIAN_THRESHOLD")
BOUNDINGS = ("L0", "L2", "NORM")
_WORDS: dict[str, Sequence[str]] = {
    "group_selection_strategy": GROUP_SELECTION,
    "bounding": BOUNDINGS,
    "extremes": ("QUANTILE",),
    "method": ("CORRELATED",),
}
MAX_GROUPS_LIMIT = 100_000
_LEVELS = ("epsilon", "rho")
_LARGEST_LEVEL = 1e6
_LARGEST_WIDTH = 1e300
CONFIDENCES = (0.9, 0.95, 0.99)
LARGEST_ERROR = 0.5
"""The largest relative error: quantiles of larger ones are not known (docs/proofs/target.md)."""
_SMALLEST_LEVEL = 1e-9
_SMALLEST_WINDOW = 1e-6


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_window(value: Any) -> bool:
    two = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))
    return two and _SMALLEST_WINDOW <= value[0] < value[1] <= _LARGEST_LEVEL


def _is_width(value: Any) -> bool:
    return _is_number(value) and 0 < value <= _LARGEST_WIDTH


def _is_target(value: Any) -> bool:
    """Check that a value is a half width, or half widths by the names of columns."""
    if not isinstance(value, Mapping):
        return _is_width(value)
    names = [name.lower() for name in value if isinstance(name, str)]
    return 0 < len(set(names)) == len(value) and all(map(_is_width, value.values()))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_Values = tuple[Callable[[Any], bool], str]
"""Which values an option takes, as a test and as words."""


def _one_of(words: Sequence[str]) -> _Values:
    return lambda value: isinstance(value, str) and value.upper() in words, " or ".join(words)


_LEVEL: _Values = (
    lambda value: _is_number(value) and 0 < value <= _LARGEST_LEVEL,
    "a positive number, at most a million",
)
_SIZE: _Values = (lambda value: _is_whole(value, MAX_GROUPS_LIMIT), f"a whole number from 1 to {MAX_GROUPS_LIMIT}")
_FLAG: _Values = (lambda value: isinstance(value, bool), "TRUE or FALSE")
_VALUES: dict[str, _Values] = {
    "epsilon": _LEVEL,
    "rho": _LEVEL,
    "rho_ceiling": (
        lambda value: _is_number(value) and _SMALLEST_LEVEL <= value <= _LARGEST_LEVEL,
        "a number from 1e-9 to a million",
    ),
    "delta": (lambda value: _is_number(value) and 0 < value < 1, "a number between 0 and 1"),
    "max_groups_contributed": (
        lambda value: _is_whole(value, MAX_GROUPS_LIMIT) or (isinstance(value, str) and value.upper() == "AUTO"),
        f"a whole number from 1 to {MAX_GROUPS_LIMIT}, or AUTO",
    ),
    "top_k": _SIZE,
    "sketch_size": _SIZE,
    "min_privacy_units_per_group": (lambda value: _is_whole(value, 10**12), "a whole number of at least 1"),
    "rho_window": (_is_window, "two levels from 1e-6 to a million, the lower first, as in [0.01, 1]"),
    "own_threshold": _FLAG,
    "refresh": _FLAG,
    "target_half_width": (
        _is_target,
        "a positive number, or one for each column, as in {'visits': 50, 'cost': 5000}",
    ),
    "confidence": (lambda value: _is_number(value) and value in CONFIDENCES, "0.9, 0.95 or 0.99"),
    "max_rho": _LEVEL,
    "max_epsilon": _LEVEL,
    "target_relative_error": (
        lambda value: _is_number(value) and 0 < value <= LARGEST_ERROR,
        f"a number above 0 and at most {LARGEST_ERROR}, as in 0.1 for 10 %",
    ),
    "at_least": (
        lambda value: _is_number(value) and 0 < value <= 1,
        "a number above 0 and at most 1, as in 0.9 for 90 %",
    ),
    "coverage": _FLAG,
    "as_of": (_is_text, "a version's name, a date or time, or what dp_releases shows under versions, in quotes"),
    "buckets": (_is_text, "the name of a column with a public list of keys"),
    "other_group": (_is_text, "what the row of all other groups is called, in quotes"),
    "privacy_unit_column": (_is_text, "the column that the policy names"),
    **{name: _one_of(words) for name, words in _WORDS.items()},
}
"""Values of every option but the mechanism, whose words are those of the environment."""
OTHER_SPELLINGS = {
    **dict.fromkeys(
        ("max_groups", "max_groups_per_unit", "max_partitions_contributed", "max_groups_per_user"),
        "max_groups_contributed",
    ),
    **dict.fromkeys(("eps", "privacy_budget"), "epsilon"),
    **dict.fromkeys(
        ("min_units", "minimum_units", "min_units_per_group", "min_users_per_group"), "min_privacy_units_per_group"
    ),
    **dict.fromkeys(("k", "topk"), "top_k"),
    **dict.fromkeys(("half_width", "margin"), "target_half_width"),
    **dict.fromkeys(("relative_error", "target_error"), "target_relative_error"),
    **dict.fromkeys(("confidence_level",), "confidence"),
    **dict.fromkeys(("unit_column", "privacy_unit"), "privacy_unit_column"),
}
"""Options by names that other systems give them."""
OF_THE_POLICY = ("max_rows", "max_rows_per_group", "max_rows_per_unit", "max_contributions_per_partition")
"""Names that are arguments of dp_protect, and no options."""
_WORDED = {*_WORDS, "mechanism", "max_groups_contributed"}
"""Options of which a word may be written in small letters."""


def read_options(
    hint: exp.Expr | None, keywords: Mapping[str, object], mechanisms: Sequence[str], refusals: Refusals
) -> QueryOptions:
    """Read the options of a query, and note a refusal for every value that an option cannot take.

    Args:
        hint: the options as they stand in the text.
        keywords: options given outside it (``sql(…, rho=0.1)``).
        mechanisms: the words that the option ``mechanism`` takes.
        refusals: collects.

    """
    given: dict[str, Any] = {}
    wrong: set[str] = set()
    for option in hint.expressions if isinstance(hint, DifferentialPrivacy) else ():
        if not (isinstance(option, exp.EQ) and isinstance(option.this, exp.Column)):
            refusals.add("option", option, "an option reads name = value.", "Write OPTIONS (rho = 0.1).")
            continue
        name = option.this.name.lower()
        if name in given:
            refusals.add("option", option, f"option {name} is given twice.", "Give it once.")
        given[name] = _value_of(option, name, mechanisms, refusals)
        if given[name] is None:
            wrong.add(name)
    for name, value in keywords.items():
        if value is None:
            continue
        if name in given and given[name] != value:
            refusals.add("option", None, f"option {name} is given twice with two values.", "Give it once.")
        given[name] = value
        if not _check_option(name, value, mechanisms, None, refusals):
            wrong.add(name)
    _refuse_levels({name for name, value in given.items() if value is not None} | wrong, given, hint, refusals)
    known = {name: value for name, value in given.items() if name not in wrong}
    # a wrong level is no missing one; the text is refused, so nothing is answered at the level that stands for it
    known |= dict.fromkeys(wrong & {"epsilon", "rho"}, 1.0)
    if given and not given.keys() & set(_LEVELS) and _means_a_level(given):
        known["rho"] = 1.0
    known |= dict.fromkeys(wrong & {"target_half_width"}, ())
    known |= dict.fromkeys(wrong & {"target_relative_error"}, LARGEST_ERROR)
    known.update({name: value.upper() for name, value in known.items() if name in _WORDED and isinstance(value, str)})
    if "rho_window" in known:
        known["rho_window"] = tuple(known["rho_window"])
    if isinstance(known.get("target_half_width"), Mapping):
        known["target_half_width"] = tuple(known["target_half_width"].items())
    return QueryOptions(**known)


def _means_a_level(given: Mapping[str, object]) -> bool:
    """Check that an option was refused whose cure is a level: a misspelt level, or the cap of a missing target."""
    spelt = any(did_you_mean(name, _LEVELS) for name in given if name not in OPTION_NAMES)
    has_target = given.keys() & {"target_half_width", "target_relative_error"}
    return spelt or (not has_target and bool(given.keys() & {"max_rho", "max_epsilon"}))


def _value_of(option: exp.EQ, name: str, mechanisms: Sequence[str], refusals: Refusals) -> object:
    """Return the value of an option in the text; None, with a refusal noted, if it is none that the option takes."""
    try:
        value: object = literal_value(option.expression, refusals.text)
    except ParseError:
        if not isinstance(option.expression, exp.Struct):
            hint = "Give a number, a word or a text; bind parameters."
            refusals.add("option", option, f"option {name} takes a literal.", hint)
            return None
        # a field is no literal, or stands twice
        value = None
    return value if _check_option(name, value, mechanisms, option, refusals) else None


def _refuse_levels(given: set[str], values: Mapping[str, object], hint: exp.Expr | None, refusals: Refusals) -> None:
    """Note refusals of levels and targets that do not go together.

    Args:
        given: names of the options.
        values: of the options by their names.
        hint: the options as they stand in the text.
        refusals: collects.

    """
    targets = given & {"target_half_width", "target_relative_error"}
    things = {"rho", "confidence", "max_rho", "max_epsilon", "at_least", "method", *targets}
    known = given & {*things, "epsilon"} | that_hold(
        {
            "no target": not targets,
            "no target_relative_error": "target_relative_error" not in given,
            "no max_rho": not given & {"max_rho", "max_epsilon"},
        }
    )
    max_rho, max_epsilon = values.get("max_rho"), values.get("max_epsilon")
    refuse_combinations(things, known, hint, refusals, max_rho=max_rho, max_epsilon=max_epsilon)


def _hint_of_unknown(name: str, value: object, node: exp.Expr | None) -> str:
    """Return what to write in place of an option that does not exist."""
    if name in OF_THE_POLICY:
        return f"Leave {name} out: max_rows_per_group is an argument of dp_protect, which the curator calls."
    if meant := OTHER_SPELLINGS.get(name):
        given = unquoted(node.expression) if isinstance(node, exp.EQ) else unquoted(exp.convert(value))
        return f"Write OPTIONS ({meant} = {given}) in place of {name}."
    return did_you_mean(name, OPTION_NAMES) or f"Options are {', '.join(OPTION_NAMES)}."


def _check_option(
    name: str, value: object, mechanisms: Sequence[str], node: exp.Expr | None, refusals: Refusals
) -> bool:
    """Check that an option can take a value, and note a refusal if it cannot."""
    if name not in OPTION_NAMES:
        refusals.add("option", node, f"there is no option {name}.", _hint_of_unknown(name, value, node))
        return False
    accepts, wanted = _one_of(mechanisms) if name == "mechanism" else _VALUES[name]
    valid = accepts(value)
    if not valid:
        refusals.add("option", node, f"option {name} has a value that it cannot take.", f"Give {wanted}.")
    return valid
