"""No part of the source of dpsql is larger than ``limits.py`` allows, and none breaks a rule."""

from __future__ import annotations

import pytest

from tests.documents.pages import ROOT
from tests.structure.limits import SIZE_LIMITS
from tests.structure.source_figures import RULES, SIZES, Module, modules_of, parsed, too_large

CLEAN = {
    "dpsql": """
'A package.'
from dpsql.receipts.result import connect
__all__ = ['connect']
""",
    "dpsql.receipts.result": """
'A module.'
def connect(a, b, c, d, e, f, g, *, h):
    'Open.'
    return a
""",
    "dpsql.plan.aggregates.sum_lattice": """
'A module.'
class Frame:
    'Noun.'
    a: int
    'Below a field.'
""",
}


@pytest.fixture(scope="module")
def modules() -> tuple[Module, ...]:
    return modules_of(ROOT)


@pytest.mark.parametrize("name", SIZES)
def test_nothing_is_larger_than_its_limit(modules: tuple[Module, ...], name: str) -> None:
    assert too_large(modules, name) == []


@pytest.mark.parametrize("name", RULES)
def test_nothing_breaks_a_rule(modules: tuple[Module, ...], name: str) -> None:
    assert RULES[name](modules) == []


def test_every_size_has_a_limit() -> None:
    assert list(SIZES) == list(SIZE_LIMITS)


PARAMETERS = ", ".join(f"a{number}" for number in range(6))
SHORT = "def f():" + "\n" * 59 + "    a"
LONG = "class A:\n  def f(self):" + "\n" * 60 + "    a"


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("lines of a file", "\n" * 400, []),
        ("lines of a file", "\n" * 401, ["dpsql.x: 401"]),
        ("lines of a function", SHORT, []),
        ("lines of a function", LONG, ["dpsql.x.A.f: 61"]),
        ("parameters of a function", f"class A:\n  def f(self, {PARAMETERS}, *, b): ...", []),
        ("parameters of a function", f"def f({PARAMETERS}, *b, **c): ...", ["dpsql.x.f: 8"]),
    ],
)
def test_a_size_above_its_limit_is_seen(name: str, source: str, found: list[str]) -> None:
    assert too_large(parsed({**CLEAN, "dpsql.x": source}), name) == found


DOCUMENTED = "public names without a docstring"
VAGUE = "vague names of modules"
PARTICIPLE = "participles as names of modules"


@pytest.mark.parametrize(
    ("name", "module", "source", "found"),
    [
        (DOCUMENTED, "dpsql.x", "def f(): ...", ["dpsql.x", "dpsql.x.f"]),
        (DOCUMENTED, "dpsql.x", "'d'\ndef _f(): ...", []),
        (DOCUMENTED, "dpsql.x", "'d'\n@overload\ndef f(): ...", []),
        (DOCUMENTED, "dpsql.x", "'d'\nclass _A:\n    def f(self): ...", []),
        (DOCUMENTED, "dpsql.x", "'d'\ndef _f():\n    def g(): ...", []),
        (DOCUMENTED, "dpsql.x", "'d'\nclass A:\n 'd'\n def f(s): ...", ["dpsql.x.A.f"]),
        (VAGUE, "dpsql.x.utils", "", ["dpsql.x.utils"]),
        (VAGUE, "dpsql.core.frame", "", ["dpsql.core.frame"]),
        (PARTICIPLE, "dpsql.x.shown", "", ["dpsql.x.shown"]),
        (PARTICIPLE, "dpsql.x.added_up", "", ["dpsql.x.added_up"]),
        (PARTICIPLE, "dpsql.x.outside", "", ["dpsql.x.outside"]),
        (PARTICIPLE, "dpsql.x.written_sets", "", []),
        (PARTICIPLE, "dpsql.x.seed", "", []),
    ],
)
def test_what_breaks_a_rule_is_named(name: str, module: str, source: str, found: list[str]) -> None:
    assert RULES[name](parsed({**CLEAN, module: source})) == found


def test_a_clean_package_breaks_no_rule() -> None:
    clean = parsed(CLEAN)
    assert [too_large(clean, name) for name in SIZES] == [[]] * len(SIZES)
    assert [rule(clean) for rule in RULES.values()] == [[]] * len(RULES)


def test_a_public_signature_may_be_wide_and_any_other_may_not() -> None:
    private = {**CLEAN, "dpsql": "'A package.'"}
    assert too_large(parsed(private), "parameters of a function") == ["dpsql.receipts.result.connect: 8"]
