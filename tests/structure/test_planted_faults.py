"""The list of planted faults fits the source, so that the command can plant each of them."""

from __future__ import annotations

import ast

import pytest

from tests.structure.planted_faults import FAULTS, ROOT, SETS, Fault, planted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.area)
def test_the_text_of_a_fault_occurs_once_and_the_planted_text_compiles(fault: Fault) -> None:
    source = (ROOT / fault.path).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(planted(fault, source))) != ast.dump(ast.parse(source))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.area)
def test_the_tests_near_a_fault_exist(fault: Fault) -> None:
    assert (ROOT / fault.near).is_file()


def test_each_area_has_one_fault() -> None:
    areas = [fault.area for fault in FAULTS]
    assert len(areas) == len(set(areas)) == 12


def test_the_command_runs_the_sets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [f"-m '{markers}'" in makefile for markers in SETS.values()] == [True, True]


def test_a_text_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="2 times"):
        planted(Fault("noise", "a.py", "x > 0", "x >= 0", "b.py"), "x > 0\nx > 0\n")
