"""The arguments of ``groupby`` that are written once: type checkers and the console see all of them."""

from __future__ import annotations

import inspect

import pytest

from dpsql.frontends.frames.terms import SqlOptions, Terms
from dpsql.frontends.pandas_accessor import _ELSEWHERE, _OF_FRAMES, ArrowFrame, PandasFrame, PolarsFrame
from dpsql.model.private_query import OPTION_NAMES

NAMED = list(dict.fromkeys(Terms.__annotations__))[len(SqlOptions.__annotations__) :]


def test_each_option_of_a_query_is_a_term_or_said_elsewhere() -> None:
    assert set(Terms.__annotations__) - set(_OF_FRAMES) == set(OPTION_NAMES) - set(_ELSEWHERE)
    assert set(NAMED) >= set(_OF_FRAMES)


@pytest.mark.parametrize("view", [PandasFrame, PolarsFrame, ArrowFrame])
def test_the_signature_shows_each_named_term(view: type[PandasFrame | PolarsFrame | ArrowFrame]) -> None:
    parameters = inspect.signature(view.groupby).parameters
    names = list(parameters)
    assert names[:3] + NAMED == names[: 3 + len(NAMED)]
    assert names[:3] == ["self", "by", "unit"]
    assert names[-1] == "options"
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in NAMED)
    assert str(parameters["max_groups"]) == "max_groups: 'int | str | None' = None"
