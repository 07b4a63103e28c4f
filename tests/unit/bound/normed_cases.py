"""Random tables and queries whose aggregates have norms (`bounding = NORM`)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.unit.bound.query_descriptions import Aggregate, Case
from tests.unit.bound.random_cases import cases

_NORMS = (1.0, 1.5, 3.0, 40.0)


@st.composite
def normed_cases(draw: st.DrawFn) -> Case:
    case = draw(cases().filter(lambda case: case.removed is not None))
    # what is not scaled down is refused, and so are sums far from 0 for their norm
    scaled = (one for one in case.query.aggregates if one.kind in ("units", "rows", "sum", "avg", "var_pop", "stddev"))
    aggregates = tuple(_with_norm(one, draw(st.sampled_from(_NORMS))) for one in scaled)
    query = replace(
        case.query,
        aggregates=aggregates or (Aggregate("rows", norm=draw(st.sampled_from(_NORMS))),),
        max_groups=draw(st.integers(1, 2)) if case.query.keys else 1,
        option_in_text=True,
        bounding="NORM",
    )
    return replace(case, query=query)


def _with_norm(aggregate: Aggregate, norm: float) -> Aggregate:
    if aggregate.kind == "units":
        return aggregate
    if aggregate.per_group:
        # the middle of these bounds is no further from 0 than the norm, and often as far
        low, high = aggregate.per_group
        least = max(abs(low), abs(high), abs(low + high + 1)) / 2
        # rows of another size than the norm are refused
        has_size = max(map(abs, aggregate.per_row or (0, 1))) <= 1e4 * least
        per_row = aggregate.per_row if has_size else None
        return replace(aggregate, norm=least * max(1.0, norm - 2.0), per_row=per_row, private_spelling=False)
    if aggregate.kind != "sum":
        return replace(aggregate, norm=norm, private_spelling=False)
    # of the size of the bounds, so that in some case most units are on either side of it
    largest = max(map(abs, aggregate.per_row or (0, 1)))
    return replace(aggregate, norm=0.3 * norm * largest, private_spelling=False)
