"""A sentence with named placeholders: a row of the table in `words.py`."""

from __future__ import annotations


class Sentence(str):
    """A text with named placeholders, which `format` fills.

    Attributes:
        example: a value for each placeholder; a test renders it.

    """

    __slots__ = ("example",)

    example: dict[str, object]

    def __new__(cls, text: str, **example: object) -> Sentence:
        """Return a sentence with an example of its values."""
        made = super().__new__(cls, text)
        made.example = example
        return made
