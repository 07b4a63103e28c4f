"""The options of a private model: words of its dbt config that are options of a query."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dpsql.errors import PolicyError
from dpsql.frontends.dbt.declarations import number
from dpsql.session import OPTION_NAMES

_TEXT_OPTIONS = ("as_of", "buckets", "other_group", "privacy_unit_column")
_SHORT_NAME = 4
"""Length up to which an option counts as misspelled only if one letter differs."""


def model_options(name: str, config: Mapping[str, Any], words_of_dbt: Collection[str]) -> dict[str, Any]:
    """Return the options of a model.

    Args:
        name: the model's name, for the message.
        config: the model's whole config.
        words_of_dbt: words that dbt and its adapter know.

    Raises:
        PolicyError: the config has a word that looks like a misspelled option.

    """
    misspelled = [
        f"model {name!r} has the config word {word!r}: write {option!r}, or put a word of your own below meta"
        for word, option in _misspelled(config, words_of_dbt)
    ]
    if misspelled:
        raise PolicyError("; ".join(misspelled))
    return {
        option: value if option in _TEXT_OPTIONS else number(value)
        for option in OPTION_NAMES
        if (value := config.get(option)) is not None
    }


def _misspelled(config: Mapping[str, Any], words_of_dbt: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each word that is nearly an option, with the option."""
    for word in config:
        if word in OPTION_NAMES or word.replace("-", "_") in words_of_dbt:
            continue
        folded = word.lower()
        distance, option = min((edits(folded, option), option) for option in OPTION_NAMES)
        if distance <= (1 if len(option) <= _SHORT_NAME else 2):
            yield word, option


def edits(word: str, other: str) -> int:
    """Return the fewest letters to add, drop, replace or swap with their neighbour to get from a word to another.

    >>> edits("epsilo", "epsilon"), edits("roh", "rho"), edits("bonding", "bounding"), edits("meta", "delta")
    (1, 1, 1, 2)

    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        earlier, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            steps = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == wanted:
                steps = min(steps, earlier[j - 2] + 1)
            row.append(steps)
    return row[-1]
