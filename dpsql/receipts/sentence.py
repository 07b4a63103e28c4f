"""A sentence of receipts, plans and budgets, with examples of what fills it."""

from __future__ import annotations

import re

_EXAMPLE = re.compile(r"\{(\w+)([:!][^}|]*)?\|([^}]*)\}")
"""A placeholder, its format, and the example of its value."""


class Sentence(str):
    """A text with named placeholders, which `format` fills.

    A placeholder has an example of its value behind a bar, which a test renders. It is no part of the text.

    >>> Sentence("{count:,|1200} units ({unit|patient}) have more").format(count=3, unit="person")
    '3 units (person) have more'

    Attributes:
        example: a value for each placeholder.

    """

    __slots__ = ("example",)

    example: dict[str, object]

    def __new__(cls, text: str) -> Sentence:
        """Return the sentence of a text with examples."""
        made = super().__new__(cls, _EXAMPLE.sub(r"{\1\2}", text))
        made.example = {name: _value(example, form) for name, form, example in _EXAMPLE.findall(text)}
        return made


def _value(example: str, form: str) -> object:
    """Return an example as its format wants it: a text, a whole number or a float."""
    if form in ("", "!r"):
        return example
    return int(example) if form == ":," else float(example)
