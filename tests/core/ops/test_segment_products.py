"""Gradients of products over segments: the rows of one segment never change the gradient of another one."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run

IDS = np.array([2, 0, 1, 2, 1, 0, 2, 1])
HUGE = {"float64": 1e200, "float32": 1e30, "float16": 3e4, "bfloat16": 1e30}


def product(dtype: str, open_size: bool, width: int = 0) -> Block:
    """The products of the chosen rows of x by their ids, weighted."""
    b = BlockBuilder()
    x = b.param(TensorType((8, width) if width else (8,), dtype), "x")
    ids, kept = b.param(TensorType((8,), "int64"), "ids"), b.param(TensorType((8,), "bool"), "kept")
    weights = b.param(TensorType((3, width) if width else (3,), dtype), "weights")
    rows = x
    if open_size:
        at = b.emit("reshape", b.emit("nonzero", kept), shape=(-1,))
        rows, ids = b.emit("gather", x, at), b.emit("gather", ids, at)
    return b.build([b.emit("reduce_sum", b.emit("segment_prod", rows, ids, num_segments=3) * weights)])


def gradient(block: Block, of: int = 0) -> Block:
    """The gradient of result `of` of a block, summed, with respect to x."""
    b = BlockBuilder.like(block)
    total: Value = b.value(block.results[of])
    total = b.emit("reduce_sum", total) if total.type.rank else total
    whole, b = b.build([total]), BlockBuilder()
    params = [b.param(whole.types[p], p) for p in whole.params]
    seed = b.constant(1.0, whole.types[whole.results[0]].dtype)
    return b.build(b.inline(vjp(whole, ["x"]), [*params, seed])[1:])


def first_and_second(x: np.ndarray, kept: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """Both gradients by the rows of each segment: the products of all other rows, and of all but two."""
    found = [np.zeros(x.shape), np.zeros(x.shape)]
    for at in np.ndindex(x.shape):
        same = [k for k in range(8) if kept[k] and IDS[k] == IDS[at[0]] and k != at[0]]
        if kept[at[0]]:
            factor = weights[(IDS[at[0]], *at[1:])]
            found[0][at] = factor * prod((x[(k, *at[1:])] for k in same), start=1.0)
            found[1][at] = factor * sum(prod((x[(k, *at[1:])] for k in same if k != j), start=1.0) for j in same)
    return found


BAD = {
    "infinity": [np.inf, 2.0, 3.0],
    "nan": [2.0, np.nan, -1.0],
    "overflow": [1.0, 1.0, 1.0],
    "infinity and zero": [np.inf, 0.0, 2.0],
}


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("open_size", [False, True])
@pytest.mark.parametrize(
    ("dtype", "kinds"), [*(("float64", (kind,)) for kind in BAD), *((dtype, tuple(BAD)) for dtype in HUGE)]
)
def test_a_segment_without_a_finite_product_leaves_the_gradients_of_the_others_finite(dtype, kinds, open_size):
    """kinds: one for each column."""
    rng = np.random.default_rng(0)
    shape: Any = (8, 4) if len(kinds) > 1 else (8,)
    x = rng.choice([-2.0, -0.5, 1.5, 3.0, 0.0], shape)
    kept = np.array([True] * 7 + [False]) if open_size else np.ones(8, bool)
    bad = np.stack([np.multiply(BAD[kind], HUGE[dtype] if kind == "overflow" else 1.0) for kind in kinds], -1)
    x[IDS == 1] = bad if len(kinds) > 1 else bad[:, 0]
    weights = rng.choice([1.0, -2.0, 0.5], (3, *shape[1:]))
    first = gradient(product(dtype, open_size, *shape[1:]))
    args = [x.astype(as_dtype(dtype)), IDS, kept, weights.astype(as_dtype(dtype))]
    others = IDS != 1

    with np.errstate(all="ignore"):
        for block, wanted in zip((first, gradient(first)), first_and_second(x, kept, weights), strict=True):
            block = optimize(block)
            reference, native = execute(block, args)[0], native_interpreter(block, CPU)(Run(), *args)[0]

            np.testing.assert_array_equal(reference[others].astype(float), wanted[others])
            np.testing.assert_array_equal(native.astype(float), reference.astype(float))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HUGE)
def test_a_factor_of_infinity_for_one_element_leaves_the_gradients_of_the_others_finite(dtype):
    b = BlockBuilder()
    x, values = (b.param(TensorType((n,), dtype), name) for n, name in ((3, "x"), (5, "values")))
    index = b.param(TensorType((5,), "int64"))
    block = optimize(vjp(b.build([b.emit("put_along_axis", x, index, values, axis=0, reduce="mul")])))
    args = [np.array([2.0, 3.0, 5.0]), np.array([7.0, np.inf, 2.0, 4.0, 0.5]), np.array([0, 1, 1, 2, 2]), np.ones(3)]
    args = [v.astype(as_dtype(dtype)) if v.dtype == float else v for v in args]

    for found in (execute(block, args), native_interpreter(block, CPU)(Run(), *args)):
        np.testing.assert_array_equal(found[1].astype(float), [7, np.inf, 2])
        np.testing.assert_array_equal(found[2].astype(float), [2, 6, np.inf, 2.5, 20])
