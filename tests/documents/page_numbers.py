"""Numbers that pages print: exact where noise does not change them, and within a stated tolerance where it does.

The page shows one run with noise, and its test makes another run with other noise, from a fixed seed. So a number
without a tolerance is the same for both. A tolerance that no number needs is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

WITHOUT_NUMBERS = {"docs/dbt.md": r"probably [\d,]+ or more rows", "docs/shell.md": r"at least \d+ % of groups"}
"""Pages whose noise is drawn in another process, with the pattern of a noisy number: only words of their outputs are
compared. The list may only shrink."""

HALF_WIDTHS = 3
"""Largest distance of a number with an interval from the page, in half widths of 95 %: about four sigmas of both."""

# Noisy numbers of a page without an interval: a pattern with the numbers as its groups, and their largest distance.
_COVERAGE = {r"at least ([\d,]+) units": 1000.0, r"at least ([\d.]+) % of": 12.0}
_LEFT_OUT = {r"at least ([\d,]+), probably ([\d,]+) or more rows": 30_000.0, r"about (\d\.\d+) ×": 0.3}
_ROWS = r"(?:EWR|JFK|LGA)"
TOLERANCES: dict[str, Mapping[str, float]] = {
    "README.md": {r"up to ([\d.]+) % could be": 12, r" ± (\d\.\d+) │": 0.1},
    "docs/choosing.md": {
        r"max_groups = (\d+)": 4,
        r"\[0, 100\] ([\d,]+)": 2_000,
        r"\[0, 500\] ([\d,]+)": 10_000,
        r"\[0, 5000\] ([\d,]+)": 100_000,
    },
    "docs/distribution.md": {
        **_LEFT_OUT,
        r"up to ([\d.]+) % could be": 12,
        r"at least ([\d,]+) units": 5000,
        r"\[([\d.]+), ([\d.]+), ([\d.]+)\]": 12,
    },
    "docs/divisible-noise.md": {
        r"released: \[(-?\d+), (-?\d+), (-?\d+)\]": 6,
        r"error: \[(-?\d+), (-?\d+), (-?\d+)\]": 6,
    },
    "docs/dropped-groups.md": {r"asked at epsilon 1: (\d+)": 10, r"for the difference: (\d+)": 10},
    "docs/frequent-words.md": {r" ± ([\d.]+) │": 60, r"has up to (\d+) people": 100},
    "docs/pandas-methods.md": {rf"{_ROWS} (\d+) ([\d.]+) ([\d.]+)": 105},
    "docs/pandas.md": {
        rf"{_ROWS} (\d+) \d+ [\d.]+": 7_600,
        rf"{_ROWS} \d+ (\d+) [\d.]+": 80,
        rf"{_ROWS} \d+ \d+ ([\d.]+)": 15,
        r"LGA (\d+) JFK (\d+) XXX (-?\d+)": 250,
    },
    "docs/server.md": {
        r"up to ([\d.]+) % could be": 12,
        r'"value": (\d+), "low": ([\d.]+), "high": ([\d.]+)': 30,
    },
    "docs/tutorial-sql.md": {**_COVERAGE, r" ± (\d\.\d) │": 0.3},
}

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_WITH_HALF_WIDTH = re.compile(rf"({_NUMBER}) ± ({_NUMBER})")
_WITH_ENDS = re.compile(rf"({_NUMBER}) \(({_NUMBER}) … ({_NUMBER})\)")


@dataclass(frozen=True)
class Noisy:
    """A noisy number of an output: where it is, its value, its largest distance, and the pattern that found it."""

    start: int
    end: int
    value: float
    most: float
    pattern: str


@dataclass(frozen=True)
class Difference:
    """A place where a printed output is not the one of the page."""

    expected: str
    printed: str


def plain(output: str) -> str:
    """Return an output on one line, without the frame of its table, whose widths follow from its numbers."""
    return re.sub(r"[\s─┌┬┐└┴┘├┼┤]+", " ", output).strip()


def noisy_numbers(page: str, line: str) -> list[Noisy]:
    """Return the noisy numbers of an output on one line, in their order."""
    found: dict[int, Noisy] = {}
    for pattern, most in TOLERANCES.get(page, {}).items():
        for match in re.finditer(pattern, line):
            for group, number in enumerate(match.groups(), start=1):
                found.setdefault(match.start(group), Noisy(*match.span(group), _value(number), most, pattern))
    for match in _WITH_HALF_WIDTH.finditer(line):
        most = HALF_WIDTHS * _value(match[2])
        found.setdefault(match.start(1), Noisy(*match.span(1), _value(match[1]), most, _WITH_HALF_WIDTH.pattern))
    for match in _WITH_ENDS.finditer(line):
        most = HALF_WIDTHS * (_value(match[3]) - _value(match[2])) / 2
        for group in (1, 2, 3):
            found.setdefault(
                match.start(group), Noisy(*match.span(group), _value(match[group]), most, _WITH_ENDS.pattern)
            )
    return [found[start] for start in sorted(found)]


def differences(page: str, expected: str, printed: str) -> list[Difference]:
    """Return the places where an output differs from the page's: words and exact numbers, or noise out of bounds."""
    sides = [(line, noisy_numbers(page, line)) for line in (plain(expected), plain(printed))]
    words = [_with_noise_left_out(line, noisy).split() for line, noisy in sides]
    if words[0] != words[1]:
        places = range(max(map(len, words)))
        first = next(place for place in places if words[0][place : place + 1] != words[1][place : place + 1])
        return [Difference(*(" ".join(side[max(first - 3, 0) : first + 4]) for side in words))]
    pairs = zip(sides[0][1], sides[1][1], strict=True)
    return [
        Difference(f"{one.value:g} ± {one.most:g}", f"{other.value:g}")
        for one, other in pairs
        if not abs(one.value - other.value) <= min(one.most, other.most)
    ]


def check_outputs(page: str, outputs: Sequence[tuple[str, str, str]]) -> None:
    """Require that printed outputs are those of a page. Each output has its place, its page's text and the printed one.

    Raises:
        AssertionError: an output differs, a wrong number on the page would not fail, or a tolerance is not needed.

    """
    needed: set[str] = set()
    for place, expected, printed in outputs:
        for one in differences(page, expected, printed):
            raise AssertionError(f"{place}: printed {one.printed!r} in place of {one.expected!r}\n{printed}")
        passed = [fault for fault in planted_faults(page, plain(expected)) if not differences(page, fault, printed)]
        assert passed == [], f"{place}: a wrong number would not fail"
        needed |= needed_patterns(page, expected, printed)
    unneeded = TOLERANCES.get(page, {}).keys() - needed
    assert not unneeded, f"{page}: noise changes no number of these patterns, so they need no tolerance: {unneeded}"


def check_listed(page: str, expected: str) -> None:
    """Require that a page is on the list, and that it cannot leave: its outputs have a noisy number.

    Raises:
        AssertionError: the page is not on the list, or noise changes none of its numbers.

    """
    assert page in WITHOUT_NUMBERS, f"{page}: compare its numbers"
    has_noise = re.search(WITHOUT_NUMBERS[page], plain(expected))
    assert has_noise, f"{page}: noise changes none of its numbers, so take it off the list"


def needed_patterns(page: str, expected: str, printed: str) -> set[str]:
    """Return the patterns of a page that find a number which differs in an output and the printed one."""
    pairs = zip(*(noisy_numbers(page, plain(output)) for output in (expected, printed)), strict=True)
    return {one.pattern for one, other in pairs if one.value != other.value}


def planted_faults(page: str, line: str) -> Iterator[str]:
    """Yield the output with one wrong number: each digit of an exact number changed, each noisy number far off."""
    noisy = noisy_numbers(page, line)
    for one in noisy:
        number = line[one.start : one.end]
        yield f"{line[: one.start]}{'-' if number[0] == '-' else ''}99{number.lstrip('-')}{line[one.end :]}"
    for match in re.finditer(r"\d", line):
        if not any(one.start <= match.start() < one.end for one in noisy):
            yield f"{line[: match.start()]}{(int(match[0]) + 1) % 10}{line[match.end() :]}"


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _with_noise_left_out(line: str, noisy: list[Noisy]) -> str:
    for one in reversed(noisy):
        line = f"{line[: one.start]}~{line[one.end :]}"
    return line
