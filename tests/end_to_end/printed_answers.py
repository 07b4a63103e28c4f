"""Printed answers, compared without what is noisy in them."""

from __future__ import annotations

import re


def without_numbers(text: str) -> list[str]:
    """Return the lines of printed answers without numbers, spaces, rows of groups and lines about AUTO."""
    rows = [
        line
        for line in text.strip().splitlines()
        if not re.match(r"^│ [A-Z0-9]{2,3} |^kept |^note     AUTO |^NULL in ", line)
    ]
    return [re.sub(r"[\d.]+(e-\d+)?| +", "#", line).strip("#") for line in rows if set(line) - set("─┌┬┐├┼┤└┴┘ ")]
