"""Products of operands with any strides of a view: repeated, reversed, with gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.registry import lookup
from tests.laws.agreement import both

END = -(2**31)


def part(x: Value, *cuts: tuple[int, int, int]) -> Value:
    starts, ends, steps = zip(*cuts, strict=True)
    return lookup("slice")(x, axes=tuple(range(len(cuts))), starts=starts, ends=ends, steps=steps)


def constant(x: Value, *shape: int) -> Value:
    return x.builder.constant(1.5, x.dtype, shape)


def expanded(x: Value, *shape: int) -> Value:
    return lookup("expand")(x, shape=shape)


Given = Callable[..., tuple[int, ...]]

MATRICES: dict[str, tuple[Given, Callable[..., Value]]] = {
    "as it is": (lambda r, c: (r, c), lambda x, r, c: x),
    "by columns": (lambda r, c: (c, r), lambda x, r, c: lookup("transpose")(x, axes=(1, 0))),
    "one row": (lambda r, c: (1, c), expanded),
    "one column": (lambda r, c: (r, 1), expanded),
    "one number": (lambda r, c: (1, 1), expanded),
    "a constant": (lambda r, c: (1, 1), constant),
    "last row first": (lambda r, c: (r, c), lambda x, r, c: part(x, (-1, END, -1), (0, c, 1))),
    "last column first": (lambda r, c: (r, c), lambda x, r, c: part(x, (0, r, 1), (-1, END, -1))),
    "every second row": (lambda r, c: (2 * r, c), lambda x, r, c: part(x, (1, 2 * r, 2), (0, c, 1))),
    "every second column": (lambda r, c: (r, 2 * c), lambda x, r, c: part(x, (0, r, 1), (0, 2 * c, 2))),
    "the middle": (lambda r, c: (r + 2, c + 2), lambda x, r, c: part(x, (1, r + 1, 1), (1, c + 1, 1))),
}
"""Pairs of a shape for [r, c], and the function from an array of that shape to a matrix [r, c]."""

VECTORS: dict[str, tuple[Given, Callable[..., Value]]] = {
    "as it is": (lambda n: (n,), lambda x, n: x),
    "one number": (lambda n: (1,), expanded),
    "a constant": (lambda n: (1,), constant),
    "last first": (lambda n: (n,), lambda x, n: part(x, (-1, END, -1))),
    "every second": (lambda n: (2 * n,), lambda x, n: part(x, (0, 2 * n, 2))),
    "a column": (lambda n: (n, 3), lambda x, n: lookup("reshape")(part(x, (0, n, 1), (1, 2, 1)), shape=(n,))),
}


@pytest.mark.sampled(1, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("i", "j", "k"), [(4, 3, 5), (80, 1, 6), (9, 66, 67)])
def test_sums_of_outer_products_of_rows_with_any_strides(i, j, k, dtype):
    compare(
        dtype, [((x, (i, j)), (y, (i, k))) for x in MATRICES.values() for y in MATRICES.values()], "...ij,...ik->jk"
    )


def compare(dtype: str, pairs: list[tuple[tuple[Any, tuple[int, ...]], ...]], equation: str = "") -> None:
    """Compare every product of `pairs` of (layout, shape), all in one block, by matmul or the einsum `equation`."""
    b, values, products = BlockBuilder(), [], []
    rng = np.random.default_rng(0)
    for pair in pairs:
        operands = []
        for (given, make), shape in pair:
            values.append(rng.standard_normal(given(*shape)).astype(dtype))
            operands.append(make(b.param(TensorType(values[-1].shape, dtype)), *shape))
        products.append(lookup("einsum")(*operands, equation=equation) if equation else lookup("matmul")(*operands))
    both(optimize(b.build(products)), values)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "k", "n"), [(3, 4, 5), (1, 70, 1), (5, 80, 1), (1, 80, 6), (6, 1, 7), (66, 9, 67)])
def test_products_of_matrices_with_any_strides_equal_the_reference_executor(m, k, n, dtype):
    compare(dtype, [((a, (m, k)), (b, (k, n))) for a in MATRICES.values() for b in MATRICES.values()])


@pytest.mark.sampled(1, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "k", "n"), [(2, 4, 5), (2, 47, 48), (5, 80, 1), (66, 9, 67)])
def test_products_of_single_rows_with_any_strides_equal_the_reference_executor(m, k, n, dtype):
    """Matrices [m, 1, k]: some layouts of them are one matrix of m rows, others are not."""

    def rows(make: Callable[..., Value]) -> Callable[..., Value]:
        return lambda x, m, k: lookup("reshape")(make(x, m, k), shape=(m, 1, k))

    alone = [(given, rows(make)) for given, make in MATRICES.values()]
    compare(dtype, [((a, (m, k)), (b, (k, n))) for a in alone for b in MATRICES.values()])


@pytest.mark.sampled(1, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 4), (80, 7), (5, 1)])
def test_products_with_a_vector_of_any_stride_equal_the_reference_executor(k, n, dtype):
    front = [((v, (k,)), (m, (k, n))) for v in VECTORS.values() for m in MATRICES.values()]
    behind = [((m, (n, k)), (v, (k,))) for v in VECTORS.values() for m in MATRICES.values()]
    dots = [((v, (k,)), (u, (k,))) for v in VECTORS.values() for u in VECTORS.values()]
    compare(dtype, front + behind + dots)
