"""Chains of functions over long rows: the kernel computes several vectors of a row at once."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import sweeps
from core.codegen.backend import CPU
from core.codegen.machine import lanes, load
from core.codegen.module import Module
from core.codegen.rows import row_function
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.laws.agreement import both

CHAIN = ("tanh", "sigmoid", "sin", "tanh", "cos", "sigmoid", "tanh", "sin")
SIZES = [(17 + more, rest) for more in range(4) for rest in (0, 1)]
"""Rows too long for straight code: a number of vectors, and the elements after the last vector."""


def chain(size: int, dtype: str, sums: bool = True) -> Block:
    """A chain of functions, with `sums` its softmax along the row and a sum over the rows; and the gradient."""
    b = BlockBuilder()
    x = b.param(TensorType((3, size), dtype))
    w = b.param(TensorType((size,), dtype))
    h = x
    for name in CHAIN:
        h = b.emit(name, b.emit("mul", h, w))
    block = b.build([b.emit("reduce_sum", b.emit("mul", b.emit("softmax", h), x), axes=(0,)) if sums else h])
    return optimize(vjp(block, list(block.params)))


def values(block: Block) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    types = [block.types[p] for p in block.params]
    return [random.uniform(0.5, 1.5, t.shape).astype(t.dtype) for t in types if isinstance(t, TensorType)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("vectors", "rest"), SIZES)
def test_a_chain_over_a_long_row_equals_the_reference_executor(vectors, rest, dtype):
    block = chain(vectors * lanes(dtype) + rest, dtype)

    both(block, values(block))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("vectors", "rest"), SIZES)
def test_the_bits_of_values_without_sums_do_not_depend_on_the_number_of_unrolled_vectors(vectors, rest, monkeypatch):
    block = chain(vectors * lanes("float32") + rest, "float32", sums=False)
    args = values(block)
    many = native_interpreter(block, CPU)(Run(), *args)
    monkeypatch.setattr(sweeps, "MOST_UNROLLED", 1)

    one = native_interpreter(block, CPU)(Run(), *args)

    for a, b in zip(many, one, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_chain_of_functions_is_unrolled_and_a_single_function_is_not(monkeypatch):
    found = []
    unroll = sweeps._unroll
    monkeypatch.setattr(sweeps, "_unroll", lambda *given: found.append(unroll(*given)) or found[-1])
    b = BlockBuilder()

    native_interpreter(chain(64 * lanes("float32"), "float32"), CPU)

    assert max(found) == sweeps.MOST_UNROLLED
    found.clear()
    native_interpreter(b.build([b.emit("tanh", b.param(TensorType((3, 64 * lanes("float32")), "float32")))]), CPU)
    assert found == [1]


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("vectors", [1, 2, 40])
@pytest.mark.parametrize("rest", [1, 2, 3, 4, 6])
def test_the_end_of_a_row_equals_the_reference_executor(rest, vectors, dtype):
    """Reductions along rows, down columns and of everything, and values of each row at the same time."""
    b = BlockBuilder()
    size = vectors * lanes("float32") + rest
    x = b.param(TensorType((5, size), dtype))
    kind = "reduce_any" if dtype == "bool" else "reduce_max"
    given = b.emit("cast", x, dtype="float32")
    total = b.emit("reduce_sum", given, axes=(-1,), keepdims=True)
    out = [b.emit("sub", given, total), b.emit("reduce_sum", given, axes=(0,)), b.emit("reduce_sum", given)]
    block = optimize(b.build([*out, b.emit(kind, x, axes=(-1,)), b.emit(kind, x, axes=(0,)), b.emit(kind, x)]))
    numbers = np.random.default_rng(5).integers(-9, 9, (5, size))

    both(block, [(numbers > 0) if dtype == "bool" else numbers.astype(as_dtype(dtype))])


@pytest.mark.parametrize("stride", [1, 2, 300])
@pytest.mark.parametrize("size", [8, 33, 64, 200, 256])
def test_code_that_stores_a_short_row_element_by_element_is_a_loop(size, stride):
    """LLVM compares each of its stores with all before it, so the time to compile them grows with their square."""
    operands = (Operand("float32", (), 1), Operand("float32", (), stride, True))
    code = (
        RowInstruction("load", "float32", True, operand=0),
        RowInstruction("apply", "float32", True, (0,), "square"),
        RowInstruction("store", "float32", True, (1,), operand=1),
    )
    f = row_function("squares", RowKernel((), size, operands, code))
    module = Module()
    module.functions.append(f)
    kernel = load(module.text()).function("squares", *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
    x, out = np.arange(size, dtype="float32"), np.full(size * stride, -1, "float32")

    kernel(x.ctypes.data, out.ctypes.data, 0, 1)

    assert f.text().count("store float") <= 3 * lanes("float32")
    assert (out[::stride] == x * x).all()
    assert (out == -1).sum() == size * (stride - 1)
