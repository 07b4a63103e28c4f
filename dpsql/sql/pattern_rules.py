"""The regular expressions that a query may search texts with: constant ones, whose time no text decides.

They are read and checked before a charge. *Privacy reason*: the time of an answer is an answer. How a search is
computed, and why these rules bound its time, is said in ``operations.pattern_automata``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from dpsql.model.refusals import Refusals
from dpsql.operations.cut_patterns import FLAGS, flags_of
from dpsql.operations.dialect import span_of, written
from dpsql.operations.pattern_automata import MAX_STATES, MAX_STEPS, Size, is_one_pass, size_of
from dpsql.operations.pattern_syntax import Pattern, PatternError, parsed

MAX_PATTERN = 500
"""Characters of a pattern, and of what replaces a match."""
MAX_SEARCHES, MAX_ALL_STATES = 16, 2_000
"""Searches that a query writes, and the states of all their automata."""
MAX_COPIES = 64
"""Searches of a query, each use of an alias counted."""
MAX_GROUP = 4
"""Groups up to this one are read in one pass."""
_SUBSET = (
    "Known are literals, ., classes such as [a-z0-9_] and [^/], \\d \\w \\s, groups (…) and (?:…), |, * + ? {2,5}, "
    "^ and $, as in regexp_matches(s, '^[a-z]+/')."
)


_UNREAD = Size(0, is_small=False, steps=0)


@dataclass(slots=True)
class Search:
    """A call with a pattern, the place where it is written, and the size of its automata."""

    node: exp.Expr
    place: object
    size: Size = _UNREAD


def check_pattern(node: exp.Expr, refusals: Refusals) -> None:
    """Note a refusal for a call with a pattern that is not safe on private texts.

    Args:
        node: a call of ``FLAGS``.
        refusals: collects.

    """
    pattern = node.expression
    if not _is_text(pattern):
        refusals.add(
            "row_syntax",
            node,
            f"the pattern of {written(node)} must be a text literal.",
            "Give a text, as in regexp_matches(s, '^a').",
        )
        return
    flags, given = flags_of(node), node.args.get(FLAGS[type(node)])
    if (given and not _is_text(given)) or not set(flags) <= set("cis") or {"c", "i"} <= set(flags):
        refusals.add(
            "row_syntax",
            node,
            f"{written(node)} has options that are not known here.",
            "Each match of option 'g' would take its time: nest replace(s, 'a', 'b'). Known are 'i' and 's', as in "
            "regexp_matches(s, '^a', 'i').",
        )
        return
    if not _has_room(node, refusals):
        return
    try:
        known, size = _read(pattern.name, flags)
    except PatternError as error:
        refusals.add("row_syntax", node, f"{written(node)} has a pattern that is not known here: {error}.", _SUBSET)
        return
    refusals.searches[id(node)].size = size
    if not size.is_small:
        refusals.add(
            "row_syntax",
            node,
            f"an automaton of the pattern is too large: {MAX_STATES:,} states are allowed.",
            "Repeat less often what can begin at many places, or anchor the pattern, as in "
            "regexp_matches(s, '^[ab]{20}c').",
        )
    elif not _has_room(node, refusals):
        return
    elif isinstance(node, exp.RegexpExtract):
        _check_group(node, known, flags, refusals)
    elif isinstance(node, exp.RegexpReplace):
        _check_replacement(node, refusals)


def _has_room(node: exp.Expr, refusals: Refusals) -> bool:
    """Return whether the searches up to this one are few enough, and else note a refusal.

    *Privacy reason*: the first row that reaches a search builds its automata. If many were built by one row, the time
    would show that row. An alias that is named twice is two searches, of one place in the text.
    """
    searches = refusals.searches
    place = span_of(node, refusals.text) or id(node), node.expression.name, flags_of(node)
    searches.setdefault(id(node), Search(node, place))
    sizes = {search.place: search.size for search in searches.values()}.values()
    if (
        len(sizes) <= MAX_SEARCHES
        and len(searches) <= MAX_COPIES
        and sum(size.steps for size in sizes) <= MAX_STEPS
        and sum(size.states for size in sizes) <= MAX_ALL_STATES
    ):
        return True
    refusals.add(
        "row_syntax",
        None,
        f"a query has at most {MAX_SEARCHES} searches with patterns, with {MAX_ALL_STATES:,} states together.",
        "Write patterns as one, as in regexp_matches(s, 'error|warn').",
    )
    return False


def _check_group(node: exp.RegexpExtract, known: Pattern, flags: str, refusals: Refusals) -> None:
    group = node.args.get("group")
    number = int(group.name) if isinstance(group, exp.Literal) and group.name.isdecimal() else -1
    if not 0 <= number <= min(known.groups, MAX_GROUP) or node.args.get("position") or node.args.get("occurrence"):
        refusals.add(
            "row_syntax",
            node,
            f"{written(node)} takes the number of a group of the pattern, at most {MAX_GROUP}.",
            "Use constants, as in regexp_extract(s, '^([a-z]+)/', 1).",
        )
    elif number and not _is_one_pass(node.expression.name, flags):
        refusals.add(
            "row_syntax",
            node,
            "the next character of a text does not always decide to which part of the pattern it belongs.",
            "A group is then slow to find. Exclude from each part what begins the next one, as in "
            "regexp_extract(s, '^([^-]*)-(.*)$', 1), or take the whole match, as in regexp_extract(s, '[a-z]+-').",
        )


def _check_replacement(node: exp.RegexpReplace, refusals: Refusals) -> None:
    given = node.args.get("replacement")
    replacement = given.name if given else "\\"
    if not _is_text(given) or "\\" in replacement or len(replacement) > MAX_PATTERN:
        refusals.add(
            "row_syntax",
            node,
            f"{written(node)} replaces a match by a text literal without \\, of at most {MAX_PATTERN} characters.",
            "Use constants, as in regexp_replace(s, '[0-9]+$', ''), or take a part of the match, as in "
            "regexp_extract(s, '^([a-z]+)/', 1).",
        )


def _is_text(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and bool(node.is_string))


@lru_cache(maxsize=1_000)
def _read(text: str, flags: str) -> tuple[Pattern, Size]:
    if len(text) > MAX_PATTERN:
        raise PatternError(f"it has more than {MAX_PATTERN} characters")
    known = parsed(text, flags)
    return known, size_of(known)


@lru_cache(maxsize=1_000)
def _is_one_pass(text: str, flags: str) -> bool:
    return is_one_pass(parsed(text, flags))
