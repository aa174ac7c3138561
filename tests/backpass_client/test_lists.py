"""Numbers and lists as values of feeds and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backpass_client.lists import as_declared, declared_dtypes

SIGNATURE = {
    "feeds": [{"name": "x", "dtype": "float32"}, {"name": "n", "dtype": "int32"}],
    "parameters": [{"name": "w", "dtype": "float64"}],
    "states": [{"name": "h", "dtype": "float16"}],
}
DTYPES = declared_dtypes(SIGNATURE)


@pytest.mark.parametrize(
    ("name", "given", "dtype"),
    [
        ("x", [0.5, 1.5], "float32"),
        ("x", [[1], [2]], "float32"),
        ("x", (0.5,), "float32"),
        ("x", [], "float32"),
        ("n", [1, 2], "int32"),
        ("n", [], "int32"),
        ("w", [1, 2], "float64"),
        ("h", [float("inf"), 1.0], "float16"),
        ("x", 0.5, "float32"),
        ("x", 2, "float32"),
        ("n", 2, "int32"),
    ],
)
def test_numbers_and_lists_become_arrays_of_the_declared_dtype_with_the_same_numbers(name: str, given: Any, dtype: str):
    found = as_declared({name: given}, DTYPES)[name]

    assert (str(found.dtype), found.tolist()) == (dtype, np.asarray(given).tolist())


@pytest.mark.parametrize(
    ("name", "given"),
    [("n", [0.5]), ("n", [2**40]), ("h", [1e30]), ("x", [True]), ("other", [0.5]), ("n", 0.5), ("x", True)],
)
def test_numbers_that_the_dtype_does_not_have_are_left_to_the_service(name: str, given: Any):
    found = as_declared({name: given}, DTYPES)[name]

    assert np.asarray(found).dtype == np.asarray(given).dtype


@pytest.mark.parametrize("given", [np.array([0.5]), np.float64(0.5)])
def test_an_array_and_a_number_of_numpy_keep_their_dtype(given: Any):
    assert as_declared({"x": given}, DTYPES)["x"] is given


def test_a_tensor_of_pytorch_is_sent_without_its_history():
    torch = pytest.importorskip("torch")
    w = torch.tensor([1.0, 2.0], requires_grad=True)

    found = as_declared({"w": w, "x": 2 * w}, DTYPES)

    assert isinstance(found["w"], np.ndarray)
    assert found["x"].tolist() == [2.0, 4.0]
