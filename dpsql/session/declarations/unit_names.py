"""The warning of a new unit whose name looks like that of another unit: one slip gives people a second budget."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from dpsql.operations.dialect import text_literal
from dpsql.state import Policy

LOOKS_LIKE = "the name of this unit looks like that of unit "
"""The beginning of the warning."""

_LETTERS = {
    # Cyrillic
    **dict(zip("АВЕЅІЈКМНОРСТУХҺԀԚԜѴӀ", "ABESIJKMHOPCTYXHDQWVl", strict=True)),
    **dict(zip("авгеѕіјкмнорстухһьԁԛԝѵӏ", "abresijkmhopctyxhbdqwvl", strict=True)),
    # Greek
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX", strict=True)),
    **dict(zip("αβγεηικνορστυχωϳ", "abyenikvopotuxwj", strict=True)),
    # other Latin letters and signs
    **dict(zip("ıɑɡ|", "iagl", strict=True)),
}
"""Letters of other alphabets, each with the letter of A to Z that it looks like."""
_AS_LETTERS = str.maketrans(_LETTERS)
_DIGITS = str.maketrans("01", "ol")
_INVISIBLE = frozenset(("Cc", "Cf", "Mn", "Me"))
_DASHES = "Pd"


def look_alike_unit(name: str, policy: Policy) -> str:
    """Return a warning if a unit is new and its name looks like that of another unit; else an empty text.

    Args:
        name: of the unit.
        policy: before the unit is declared.

    """
    other = None if policy.unit(name) else look_alike(name.strip(), (unit.name for unit in policy.units))
    if other is None:
        return ""
    return (
        f"{LOOKS_LIKE}{other!r}, and each has a budget of its own: {difference(name.strip(), other)}. For the same "
        f"people name unit := {text_literal(other)}"
    )


def look_of(name: str) -> str:
    r"""Return a text that is equal for names that look alike.

    Case, accents, invisible characters, width and form of letters, kinds of dashes and numbers of blanks do not count.
    Neither do the Cyrillic and Greek letters that look like one of A to Z, nor 0 and 1 in place of o and l.

    It does not find letters of other alphabets, several letters that look like one (rn and m), a capital I in place of
    a small l, or characters that are blank but no blanks.

    >>> look_of("Pаtient"), look_of("ｐａｔｉｅｎｔ"), look_of("pati\u200bént")
    ('patient', 'patient', 'patient')
    """
    shown = (one for one in unicodedata.normalize("NFKD", name) if unicodedata.category(one) not in _INVISIBLE)
    text = "".join("-" if unicodedata.category(one) == _DASHES else one for one in shown)
    return " ".join(text.translate(_AS_LETTERS).casefold().translate(_DIGITS).split())


def look_alike(name: str, known: Iterable[str]) -> str | None:
    """Return the first known name that differs from a name and looks like it, or None if there is none."""
    look = look_of(name)
    return next((one for one in known if one != name and look_of(one) == look), None)


def difference(name: str, other: str) -> str:
    """Return the characters that only one of two names has, by the names that Unicode has for them.

    Args:
        name: a new name.
        other: a known name that looks like it.

    """
    parts = []
    for whose, own, others in (("the new name", name, other), ("the other one", other, name)):
        only = dict.fromkeys(one for one in own if one not in others)
        if only:
            parts.append(f"{whose} has {' and '.join(unicodedata.name(one, f'U+{ord(one):04X}') for one in only)}")
    return ", ".join(parts) or "they have characters in other places"
