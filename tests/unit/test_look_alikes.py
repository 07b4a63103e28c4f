"""Names that look alike: which of them are found, and which are not."""

from __future__ import annotations

import unicodedata

import pytest

from dpsql.session.declarations.unit_names import _LETTERS, difference, look_alike, look_of

ALIKE = {
    "Cyrillic letter": "p\u0430tient",
    "all that Cyrillic has": "\u0440\u0430\u0442\u0456\u0435n\u0442",
    "Greek capitals": "P\u0391\u03a4\u0399\u0395N\u03a4",
    "full width": "\uff50\uff41\uff54\uff49\uff45\uff4e\uff54",
    "zero width space": "pat\u200bient",
    "soft hyphen": "pa\u00adtient",
    "direction of writing": "\u202epatient",
    "accent": "pati\u00ebnt",
    "accent of its own": "patie\u0308nt",
    "dotless i": "pat\u0131ent",
    "mathematical letters": "\U0001d429\U0001d41atient",
    "case": "PATIENT",
}
OTHERS = ["patients", "patent", "impatient", "pat ient", "patient 2", "p\u0431tient", ""]


@pytest.mark.parametrize("name", ALIKE.values(), ids=ALIKE)
def test_a_name_that_looks_like_a_known_one_is_found(name: str) -> None:
    assert look_alike(name, ["staff", "patient"]) == "patient"
    assert look_alike("patient", ["staff", name]) == name


def test_blanks_dashes_and_digits_are_compared_by_their_look() -> None:
    for one, other in (("ward\u00a01", "ward  l"), ("a\u2010b", "a-b"), ("a\u2013b", "a-b"), ("ro0m", "room")):
        assert look_alike(one, [other]) == other


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_and_the_name_itself_are_not_found(name: str) -> None:
    assert look_alike(name, ["staff", "patient", name]) is None


def test_what_is_not_found_is_no_surprise() -> None:
    """The docstring of `look_of` lists these."""
    for one, other in (("modern", "modem"), ("Il", "ll"), ("\u0561", "w")):
        assert look_of(one) != look_of(other)


def test_the_table_holds_single_letters_of_other_alphabets_or_forms() -> None:
    for letter, latin in _LETTERS.items():
        assert not letter.isascii() or letter == "|"
        assert latin.isascii()
        # letters that Unicode decomposes never meet the table
        assert unicodedata.normalize("NFKD", letter) == letter


def test_a_difference_names_the_characters() -> None:
    assert difference("p\u0430tient", "patient") == (
        "the new name has CYRILLIC SMALL LETTER A, the other one has LATIN SMALL LETTER A"
    )
    assert difference("pa\u200btient", "patient") == "the new name has ZERO WIDTH SPACE"
    assert difference("a  b c", "a b  c") == "they have characters in other places"
