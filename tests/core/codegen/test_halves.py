"""Conversions of 16-bit floats agree with numpy and ml_dtypes on every number, by instructions and by integers."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from core.codegen.cpus import cpu, generating_for
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import load
from core.codegen.module import Module
from core.ir.errors import InternalError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype

ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(params=[True, False], ids=["instructions", "integers"])
def way(request):
    """With the instructions of this CPU for 16-bit floats, and without."""
    if request.param and not cpu().converts_float16:
        pytest.skip("no instructions for float16")
    adds_words = request.param and cpu().adds_words
    with generating_for(replace(cpu(), converts_float16=request.param, adds_words=adds_words)):
        yield


def converted(values: np.ndarray, source: str, target: str, lanes: int) -> np.ndarray:
    """`values` of dtype `source` as `target`, by machine code on `lanes` numbers at a time."""
    f = Function("convert", [("x", "ptr"), ("out", "ptr"), ("count", "int64")])
    with f.loop(I64(0), f.param("count"), lanes) as i:
        value = f.load(f.at(f.param("x"), i, source), source, lanes)
        f.store(f.convert(value, target), f.at(f.param("out"), i, target))
    module = Module()
    module.functions.append(f)
    library = load(module.text())
    out = np.empty(len(values), as_dtype(target))
    call = library.function("convert", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    call(values.ctypes.data, out.ctypes.data, len(values))
    return out


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    """The same bits, except that any NaN equals any other."""
    assert found.dtype == wanted.dtype
    differ = found.view(f"u{found.itemsize}") != wanted.view(f"u{found.itemsize}")
    differ &= ~(np.isnan(found.astype("f8")) & np.isnan(wanted.astype("f8")))
    assert not differ.any(), (found[differ][:5], wanted[differ][:5])


def near_ties(dtype: str) -> np.ndarray:
    """float64: every number of `dtype`, the middles between neighbors, and the float32 numbers around these."""
    numbers = ALL.view(as_dtype(dtype)).astype("f4")
    numbers = np.sort(numbers[np.isfinite(numbers)])
    middles = ((numbers[:-1].astype("f8") + numbers[1:]) / 2).astype("f4")
    near = [np.nextafter(middles, np.float32(to)) for to in (-np.inf, np.inf)]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 65519, 65520, 65521, 3.4e38, 1e-45], "f4")
    return np.concatenate([numbers, middles, *near, special]).astype("f8")


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_float_is_widened_and_narrowed_exactly(dtype, lanes, way):
    numbers = ALL.view(as_dtype(dtype))

    with np.errstate(invalid="ignore"):
        assert_same(converted(numbers, dtype, "float32", lanes), numbers.astype("f4"))
        assert_same(converted(numbers.astype("f4"), "float32", dtype, lanes), numbers)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_a_wider_float_is_rounded_to_the_nearest_number_and_ties_to_even(source, dtype, way):
    values = near_ties(dtype)
    if source == "float64":  # numbers that round to a tie in float32
        values = np.concatenate([values, np.nextafter(values, np.inf), np.nextafter(values, -np.inf)])
    values = np.resize(values, -(-len(values) // 16) * 16).astype(source)

    with np.errstate(all="ignore"):
        assert_same(converted(values, source, dtype, 16), values.astype(as_dtype(dtype)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("source", ["int32", "int64", "bool"])
@pytest.mark.parametrize("dtype", HALVES)
def test_whole_numbers_are_rounded_as_by_numpy(source, dtype):
    values = np.array([0, 1, -1, 255, 257, 2049, 65519, 65520, 2**24 + 1, 2**31 - 1, -(2**31)] + 5 * [3]).astype(source)

    with np.errstate(over="ignore"):
        assert_same(converted(values, source, dtype, 16), values.astype(as_dtype(dtype)))


def test_a_nan_stays_a_nan_whatever_its_bits():
    values = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001], "u4").view("f4")

    for dtype in HALVES:
        assert np.isnan(converted(values, "float32", dtype, 4).astype("f4")).all()


def test_arithmetic_that_would_not_be_rounded_is_refused():
    f = Function("sum", [])
    x = IRValue("%x", "bfloat16")

    with pytest.raises(InternalError, match="fadd of bfloat16"):
        f.binary("fadd", x, x)
    with pytest.raises(InternalError, match="fma of bfloat16"):
        f.fma(x, x, x)
