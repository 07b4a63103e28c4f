"""The source of dpsql holds no more of anything than ``limits.py`` allows, and every figure sees what it counts."""

from __future__ import annotations

import pytest

from tests.documents.pages import ROOT
from tests.structure.limits import NONE_TEST_ROOMS, RECORDS_OF_ANY_WIDTH, SOURCE_LIMITS
from tests.structure.source_figures import FIGURES, Module, module_sources, parsed

CLEAN = {
    "dpsql": """
'A package.'
from dpsql.answer.result import connect
__all__ = ['connect']
""",
    "dpsql.answer.result": """
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
    return parsed(module_sources(ROOT))


@pytest.mark.parametrize("name", SOURCE_LIMITS)
def test_no_figure_is_above_its_limit(modules: tuple[Module, ...], name: str) -> None:
    figure = FIGURES[name](modules)
    assert figure.value <= SOURCE_LIMITS[name].most, figure.offenders


def test_every_figure_has_a_limit() -> None:
    assert list(FIGURES) == list(SOURCE_LIMITS)


def test_the_rooms_that_are_counted_exist(modules: tuple[Module, ...]) -> None:
    for room in NONE_TEST_ROOMS:
        assert any(module.name == f"dpsql.{room}" for module in modules)


def test_records_of_any_width_exist(modules: tuple[Module, ...]) -> None:
    names = {module.name: module.tree for module in modules}
    for record in RECORDS_OF_ANY_WIDTH:
        module, _, name = record.rpartition(".")
        assert name in {getattr(node, "name", None) for node in names[module].body}


def test_a_clean_package_has_no_offenders() -> None:
    values = {name: count(parsed(CLEAN)).value for name, count in FIGURES.items()}
    # import, __all__, def, return, class, a field and the string below it
    assert values == dict.fromkeys(FIGURES, 0) | {"statements": 7}


FIELDS = "\n".join(f"    a{number}: int" for number in range(11))
DOCUMENTED = "public names without a docstring, in %"
PARAMETERS = ", ".join(f"a{number}" for number in range(6))


@pytest.mark.parametrize(
    ("name", "planted", "value", "offender"),
    [
        ("statements", {"dpsql.state": "def f():\n    'd'\n    if a:\n        b; c\n"}, 11, "dpsql.state: 4"),
        ("tests for None", {"dpsql.plan": "a is None\n"}, 1, "dpsql.plan: 1"),
        ("tests for None", {"dpsql.session.x": "a is not None or None is not b is None"}, 2, "dpsql.session.x: 2"),
        ("tests for None", {"dpsql.state.x": "a is None"}, 0, None),
        ("tests for None", {"dpsql.plan": "a == None or a is not b"}, 0, None),
        (DOCUMENTED, {"dpsql.x": "def f(): ..."}, 100 * 2 / 7, "dpsql.x"),
        (DOCUMENTED, {"dpsql.x": "'d'\ndef _f(): ..."}, 0, None),
        (DOCUMENTED, {"dpsql.x": "'d'\n@overload\ndef f(): ..."}, 0, None),
        (DOCUMENTED, {"dpsql.x": "'d'\nclass _A:\n    def f(self): ..."}, 0, None),
        (DOCUMENTED, {"dpsql.x": "'d'\ndef _f():\n    def g(): ..."}, 0, None),
        (DOCUMENTED, {"dpsql.x": "'d'\nclass A:\n 'd'\n def f(s): ..."}, 12.5, "dpsql.x.A.f"),
        ("long files", {"dpsql.x": "\n" * 401}, 1, "dpsql.x: 401 lines"),
        ("long files", {"dpsql.x": "\n" * 400}, 0, None),
        ("long functions", {"dpsql.x": "class A:\n  def f(self):" + "\n" * 60 + "    a"}, 1, "dpsql.x.A.f: 61 lines"),
        ("long functions", {"dpsql.x": "def f():" + "\n" * 59 + "    a"}, 0, None),
        ("wide records", {"dpsql.x": f"class A:\n{FIELDS}"}, 1, "dpsql.x.A: 11 fields"),
        ("wide records", {"dpsql.x": f"class A:\n{FIELDS.replace('a3: int', 'a3: ClassVar[int]')}"}, 0, None),
        ("wide records", {"dpsql.answer.result": f"class Receipt:\n{FIELDS}"}, 0, None),
        ("wide signatures", {"dpsql.x": f"def f({PARAMETERS}, *b, **c): ..."}, 1, "dpsql.x.f: 8 parameters"),
        ("wide signatures", {"dpsql.x": f"class A:\n  def f(self, {PARAMETERS}, *, b): ..."}, 0, None),
        ("vague names of modules", {"dpsql.x.utils": ""}, 1, "dpsql.x.utils"),
        ("vague names of modules", {"dpsql.core.frame": ""}, 1, "dpsql.core.frame"),
        ("participles as names of modules", {"dpsql.x.shown": ""}, 1, "dpsql.x.shown"),
        ("participles as names of modules", {"dpsql.x.added_up": ""}, 1, "dpsql.x.added_up"),
        ("participles as names of modules", {"dpsql.x.outside": ""}, 1, "dpsql.x.outside"),
        ("participles as names of modules", {"dpsql.x.written_sets": "", "dpsql.x.seed": ""}, 0, None),
    ],
)  # fmt: skip
def test_a_figure_sees_what_it_counts(name: str, planted: dict[str, str], value: float, offender: str | None) -> None:
    figure = FIGURES[name](parsed({**CLEAN, **planted}))
    assert figure.value == pytest.approx(value)
    assert offender is None or offender in figure.offenders


def test_a_public_signature_may_be_wide_and_any_other_may_not() -> None:
    private = {**CLEAN, "dpsql": "'A package.'"}
    assert FIGURES["wide signatures"](parsed(private)).offenders == ("dpsql.answer.result.connect: 8 parameters",)
