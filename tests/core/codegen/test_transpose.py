"""Squares that are transposed in registers equal numpy's transposes, and LLVM does not search their exchanges."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import lanes, load
from core.codegen.module import Module
from core.codegen.transpose import transposed_square


def written(dtype: str, rows: int) -> tuple[Module, int]:
    """``square(source, target)`` reads `rows` vectors and writes all columns; and the lanes of a vector."""
    width = lanes(dtype)
    f = Function("square", [("source", "ptr"), ("target", "ptr")])
    vectors = [f.load(f.at(f.param("source"), I64(i * width), dtype), dtype, width) for i in range(rows)]
    for i, column in enumerate(transposed_square(f, vectors)):
        f.store(column, f.at(f.param("target"), I64(i * width), dtype))
    module = Module()
    module.functions.append(f)
    return module, width


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint16", "uint8"])
@pytest.mark.parametrize("missing", [0, 1])
def test_columns_of_a_square_equal_numpys(dtype, missing):
    module, width = written(dtype, lanes(dtype) - missing)
    x = np.random.default_rng(0).integers(0, 200, (width, width)).astype(dtype)
    if dtype == "float32":
        x[0, :2] = np.nan, -0.0
    found = np.zeros_like(x)

    library = load(module.text())
    library.function("square", ctypes.c_void_p, ctypes.c_void_p)(x.ctypes.data, found.ctypes.data)

    wanted = x.T[:, : width - missing].copy()
    np.testing.assert_array_equal(found[:, : width - missing].copy().view("uint8"), wanted.view("uint8"))


def test_exchanges_of_computed_floats_stand_behind_fences():
    module, width = written("float32", lanes("float32"))
    stages = width.bit_length() - 1
    assert module.text().count("= call <") == width * (stages - 1)

    f = Function("partial", [("x", "ptr")])
    whole = f.load(f.param("x"), "float32", width)
    transposed_square(f, [whole] * (width - 1) + [IRValue("zeroinitializer", "float32", width)])
    transposed_square(f, [whole] * (width - 1))
    assert "arithmetic.fence" not in f.text()
