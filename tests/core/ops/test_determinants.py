"""Gradients of determinants of singular matrices, of both orders, equal those of the definition by minors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run
from tests.laws.examples import gradient, type_of

OUTER = np.outer([1.0, 2.0, 3.0], [0.3, 0.1, 0.7])
SINGULAR = {
    "one element": np.zeros((1, 1)),
    "zeros": np.zeros((3, 3)),
    "rank 1": OUTER,
    "rank 1 of 4": np.outer([1.0, -2.0, 0.5, 3.0], [0.3, 0.0, 0.7, -1.0]),
    "rank 2": OUTER + np.outer([0.1, 0.5, 0.2], [1.0, 0.2, 0.9]),
    "rank 2, exact zero pivot": np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.5], [1.0, 2.0, 4.0]]),
    "integers": np.arange(1.0, 10.0).reshape(3, 3),
    "zero row": np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [4.0, 1.0, 2.0]]),
    "nilpotent": np.eye(4, k=1),
    "nilpotent of 25": np.eye(25, k=1),
    "small": 1e-12 * np.arange(1.0, 10.0).reshape(3, 3),
    "regular": np.array([[2.0, -1.0, 0.5], [0.3, 1.0, 4.0], [1.0, 1.0, -1.0]]),
    "two": np.stack([np.ones((2, 2)), np.array([[1.0, 2.0], [3.0, 4.0]])]),
}


def minor(x: np.ndarray, rows: tuple[int, ...], columns: tuple[int, ...]) -> float:
    return float(np.linalg.det(np.delete(np.delete(x, rows, 0), columns, 1)))


def cofactors(x: np.ndarray) -> np.ndarray:
    """The derivative of the determinant, by minors."""
    if x.ndim > 2:
        return np.stack([cofactors(each) for each in x])
    n = len(x)
    return np.array([[(-1) ** (i + j) * minor(x, (i,), (j,)) for j in range(n)] for i in range(n)])


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The derivative of ``sum(y * cofactors(x))``: the determinant is linear in each element, so differences of its
    cofactors by an element of any size are exact.
    """
    out = np.zeros_like(x)
    size = np.abs(x).max() or 1.0
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at], down[at] = size, -size
        out[at] = (y * (cofactors(up) - cofactors(down))).sum() / (2 * size)
    return out


def first(x: np.ndarray) -> Block:
    b = BlockBuilder()
    total = b.emit("reduce_sum", b.emit("det", b.param(type_of(x))))
    block = b.build([b.emit("cast", total, dtype="float64")])
    return gradient(block, [block.params[0]])


def second(x: np.ndarray, weights: np.ndarray) -> Block:
    inner = first(x)
    b = BlockBuilder()
    p = b.param(type_of(x))
    (found,) = b.inline(inner, [p])
    weight = b.emit("assign_value", values=tuple(weights.ravel()), shape=weights.shape, dtype=str(x.dtype))
    block = b.build([b.emit("cast", b.emit("reduce_sum", found * weight), dtype="float64")])
    return gradient(block, [block.params[0]])


def run(block: Block, x: np.ndarray, native: bool) -> Any:
    block = optimize(block)
    return (native_interpreter(block, CPU)(Run(), x) if native else execute(block, [x]))[0]


both = partial(pytest.mark.parametrize, "native", [False, True], ids=["reference", "machine code"])


@pytest.mark.sampled(1)
@both()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", SINGULAR)
def test_the_gradient_of_a_determinant_is_the_matrix_of_cofactors(case, dtype, native):
    if case == "nilpotent of 25" and native:
        pytest.skip("machine code has a number in place of each pivot of 0, and too many of them leave its range")
    x = SINGULAR[case].astype(dtype)

    found = run(first(x), x, native)

    size = np.abs(x).max() ** (x.shape[-1] - 1)
    np.testing.assert_allclose(found, cofactors(x.astype("float64")), atol=50 * np.finfo(dtype).eps * size, rtol=1e-5)


@pytest.mark.sampled(1)
@both()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [case for case in SINGULAR if case not in ("nilpotent of 25", "small")])
def test_the_second_gradient_of_a_determinant_exists_at_singular_matrices(case, dtype, native):
    x = SINGULAR[case].astype(dtype)
    weights = np.random.default_rng(1).normal(size=x.shape)

    found = run(second(x, weights), x, native)

    size = max(np.abs(x).max(), 1.0) ** x.shape[-1]
    wanted = slopes(x.astype("float64"), weights)
    np.testing.assert_allclose(found, wanted, atol=500 * np.finfo(dtype).eps * size, rtol=1e-5)


@both()
def test_the_third_gradient_of_a_determinant_is_refused_at_a_singular_matrix(native):
    x, weights = SINGULAR["zero row"], np.random.default_rng(2).normal(size=(3, 3))
    inner = second(x, weights)
    b = BlockBuilder()
    (found,) = b.inline(inner, [b.param(type_of(x))])
    block = b.build([b.emit("reduce_sum", found * found)])

    with pytest.raises(ExecutionError) as error:
        run(gradient(block, [block.params[0]]), x, native)
    assert error.value.code == "singular_matrix"
