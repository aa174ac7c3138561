"""The memory of a function on the stack of its thread does not grow with the sizes of a program's arrays."""

from __future__ import annotations

import re

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.llvm import Function
from core.codegen.merged_operands import merged_scratch
from core.codegen.rows import row_function
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.passes import optimize
from core.plan import plan_block
from core.plan.instructions import Rows
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.core.codegen.test_merging import by_numpy, updated

MOST = 3 << 19
"""Most bytes of one function: some of them call each other, and a thread has a few megabytes at least."""

BYTES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "bfloat": 2, "i32": 4, "float": 4, "i64": 8, "double": 8, "ptr": 8}


def stack_bytes(f: Function) -> int:
    """Bytes of the arrays that a function has on the stack."""
    return sum(int(n) * BYTES[each] for n, each in re.findall(r"alloca \[(\d+) x (\w+)\]", f.text()))


def shares(rows: int, columns: int, values: int, dtype: str) -> Block:
    """Squares of `values` functions of each row, each divided by the sum of all of them in the row."""
    b = BlockBuilder()
    x = b.param(TensorType((rows, columns), dtype))
    functions = [b.emit(("exp", "tanh", "sin")[i % 3], b.emit("scale", x, scale=0.1 * (i + 1))) for i in range(values)]
    total = functions[0]
    for each in functions[1:]:
        total = b.emit("add", total, each)
    total = b.emit("reduce_sum", total, axes=(1,), keepdims=True)
    out = None
    for each in functions:
        square = b.emit("square", b.emit("div", each, total))
        out = square if out is None else b.emit("add", out, square)
    return optimize(b.build([out]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("values", "dtype"), [(1, "float64"), (3, "float32"), (12, "float64")])
def test_rows_of_any_length_and_many_values_fit_on_the_stack(values, dtype):
    block = shares(2, 131_072, values, dtype)
    kernels = [each.kernel for each in plan_block(block, CPU.target).body.instructions if isinstance(each, Rows)]
    x = np.random.default_rng(0).normal(size=(2, 131_072)).astype(dtype)

    assert kernels
    assert all(stack_bytes(row_function("rows", each)) <= MOST for each in kernels)
    (found,), (wanted,) = native_interpreter(block, CPU)(Run(), x), interpreter_of(block)(Run(), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("width", [30_001, 70_001])
def test_sums_of_long_rows_fit_on_the_stack(width):
    """Merged rows that an update adds up itself."""
    r = np.random.default_rng(0)
    x, table = (8 * r.standard_normal((n, width)) for n in (9, 20))
    ids = r.integers(0, 6, 9)
    found, rows, merges = updated(x, ids, table)
    wanted, sums, distinct = by_numpy(x, ids, 20, None, None)

    assert merges
    np.testing.assert_array_equal(rows, wanted[:distinct])
    np.testing.assert_array_equal(found, table[wanted[:distinct]] - sums[:distinct])


@pytest.mark.parametrize(("width", "on_the_stack"), [(30_001, True), (70_001, False), (10_000_000, False)])
def test_only_sums_of_short_rows_are_on_the_stack(width, on_the_stack):
    b = BlockBuilder()
    x, ids, table = (
        b.param(each)
        for each in (TensorType((9, width), "float64"), TensorType((9,), "int64"), TensorType((20, width), "float64"))
    )
    rows, sums, count = b.emit("merge_rows_padded", x, ids, table, padding_idx=None)
    block = b.build([b.emit("sub", b.emit("gather", table, rows, axis=0), sums), rows, count])
    kernels = [each.kernel for each in plan_block(block, CPU.target).body.instructions if isinstance(each, Rows)]

    (merging,) = [each for each in kernels if each.merged]
    assert (merged_scratch(merging) == 0) == on_the_stack
    assert stack_bytes(row_function("rows", merging)) <= MOST
