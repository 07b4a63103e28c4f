"""Vectors as Arrow arrays and back are those that pyarrow itself makes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from dpsql.state.arrow_vectors import texts_to_arrow, to_arrow, to_numpy

VECTORS = {
    "integers": np.array([-1, 0, 2**63 - 1]),
    "floats": np.array([-0.0, 1.5, np.inf]),
    "missing": np.array([np.nan, 1.0, *np.arange(20.0), np.nan]),
    "all missing": np.full(9, np.nan),
    "no integers": np.empty(0, np.int64),
    "no floats": np.empty(0),
    "small ones": np.array([1, 2], np.int32),
    "every second": np.arange(10)[::2],
}


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_arrays_are_those_of_pyarrow(vector: npt.NDArray[Any]) -> None:
    for nan_as_null in (False, True):
        array = to_arrow(vector, nan_as_null=nan_as_null)
        array.validate(full=True)
        # unlike equals(…), this tells NaN from NULL
        assert array.to_pylist().__repr__() == pa.array(vector, from_pandas=nan_as_null).to_pylist().__repr__()
        assert array.type == pa.array(vector).type
        back = to_numpy(pa.chunked_array([array]))
        assert back.dtype == vector.dtype
        np.testing.assert_array_equal(back, vector)


@pytest.mark.parametrize("texts", [[], [""], ["Lund", "", "Malmö", "\N{GRINNING FACE}"]], ids=len)
def test_texts_are_those_of_pyarrow(texts: list[str]) -> None:
    array = texts_to_arrow(texts)
    array.validate(full=True)
    assert array.equals(pa.array(texts, pa.string()))


def test_what_is_no_number_is_read_by_pyarrow() -> None:
    assert to_numpy(pa.chunked_array([[True, False]])).tolist() == [True, False]
    np.testing.assert_array_equal(to_numpy(pa.chunked_array([[1, None]])), [1.0, np.nan])


def test_an_array_outlives_its_vector() -> None:
    array = to_arrow(np.arange(1000) * 3)
    assert to_numpy(pa.chunked_array([array]))[999] == 2997


def test_chunks_and_slices_are_read_in_order() -> None:
    column = pa.chunked_array([[0, 1], [2, 3, 4]])
    assert to_numpy(column).tolist() == [0, 1, 2, 3, 4]
    assert to_numpy(column[1:4]).tolist() == [1, 2, 3]
    assert to_numpy(column[2:4]).tolist() == [2, 3]
    assert to_numpy(pa.chunked_array([], pa.int64())).tolist() == []


@pytest.mark.parametrize("chunks", ["[]", "[to_arrow(np.arange(0))]", "[to_arrow(np.arange(3))]"])
def test_no_import_tells_whether_there_are_values(chunks: str) -> None:
    code = (
        "import sys, numpy as np, pyarrow as pa; from dpsql.state.arrow_vectors import to_arrow, to_numpy; "
        f"to_numpy(pa.chunked_array({chunks}, pa.int64())); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("values", [np.ones((2, 2)), np.array([True, False]), np.array([1], dtype=">i8")], ids=repr)
def test_an_array_that_is_no_vector_of_numbers_is_refused(values: npt.NDArray[Any]) -> None:
    with pytest.raises(TypeError, match="no vector of numbers"):
        to_arrow(values)
