"""Factorisations and triangular systems at sizes around those of blocks, strips and vectors.

The checks are residuals: a product of the factors is compared with the matrix, in float64. No check reads the triangle
that an op ignores; it is filled with NaN.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.core.codegen.stepwise import all_compiled, block_of, compiled
from tests.laws.agreement import both

DTYPES = ["float32", "float64"]
SIZES = [1, 3, 8, 17, 33, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 9, 16, 49, 70, 130))]

SYSTEMS = [(1, 1), (8, 3), (17, 50), *(pytest.param(*s, marks=pytest.mark.slow) for s in ((3, 2), (33, 1), (50, 100)))]
TALL = [(1, 1), (5, 1), (16, 8), (40, 33), *(pytest.param(*s, marks=pytest.mark.slow) for s in ((17, 17), (70, 50)))]


def noise(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def definite(dtype: str, *shape: int) -> np.ndarray:
    x = noise("float64", *shape)
    return (x @ x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def close(found: np.ndarray, wanted: np.ndarray, dtype: str, size: int) -> None:
    """Assert that two products differ by the rounding of `size` steps at most, in parts of the largest number."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * size * np.finfo(dtype).eps * np.abs(wanted).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_a_cholesky_factor_times_its_transpose_is_the_matrix_whose_upper_triangle_is_not_read(n, dtype):
    x = definite(dtype, 2, n, n)

    factor = compiled("cholesky_factor", x + np.triu(np.full((n, n), np.nan, dtype), 1))

    assert factor.dtype == dtype and (np.triu(factor, 1) == 0).all() and (factor.diagonal(0, 1, 2) > 0).all()
    wide = factor.astype("float64")
    close(wide @ wide.swapaxes(1, 2), x, dtype, n)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(("n", "k"), SYSTEMS)
def test_the_solution_of_a_triangular_system_fulfils_it_and_the_rest_of_the_matrix_is_not_read(
    n, k, upper, transpose, unit
):
    x = noise("float64", n, n) / n + np.eye(n)
    part = np.triu(x, unit) if upper else np.tril(x, -unit)
    ignored = np.where((np.triu if upper else np.tril)(np.ones((n, n)), (1 if upper else -1) * unit) > 0, 0, np.nan)
    whole = part + np.eye(n) if unit else part
    for dtype in DTYPES:
        y = noise(dtype, n, k)

        z = compiled("triangular_solve", (part + ignored).astype(dtype), y,
                     upper=upper, transpose=transpose, unitriangular=unit)  # fmt: skip

        close((whole.T if transpose else whole) @ z.astype("float64"), y, dtype, 4 * n)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_lu_factors_multiply_to_the_matrix_with_the_pivots_that_lapack_chooses(n, dtype):
    x = noise(dtype, n, n)

    lower, upper, rows = compiled("lu", x)

    np.testing.assert_array_equal(rows, np.argmax(scipy.linalg.lu(x)[0], axis=0))
    assert (np.diag(lower) == 1).all() and (np.triu(lower, 1) == 0).all() and (np.tril(upper, -1) == 0).all()
    close(lower.astype("float64") @ upper.astype("float64"), x[rows], dtype, n)


def test_the_pivot_is_the_first_of_the_largest_numbers_and_nan_is_larger_than_any():
    for n in (4, 20):
        x = np.zeros((n, n), "float32")
        x[1:, 0] = [-2, 2, *[1] * (n - 3)]

        assert compiled("lu", x)[2][0] == 1
        x[3, 0] = np.nan
        assert compiled("lu", x)[2][0] == 3


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_a_solution_an_inverse_and_determinants_come_from_the_factors(n, dtype):
    x = (noise("float64", n, n) / n + np.diag(1 + np.arange(n) % 3)).astype(dtype)[::-1].copy()
    y, wide = noise(dtype, n, 3), x.astype("float64")

    close(wide @ compiled("solve", x, y).astype("float64"), y, dtype, 8 * n)
    close(wide @ compiled("inverse", x).astype("float64"), np.eye(n), dtype, 8 * n)
    sign, logabs = np.linalg.slogdet(wide)
    found = compiled("slogdet", x)
    assert found[0] == sign
    np.testing.assert_allclose(found[1], logabs, rtol=8 * n * np.finfo(dtype).eps, atol=8 * n * np.finfo(dtype).eps)
    wanted = sign * np.exp(logabs)
    np.testing.assert_allclose(compiled("det", x), wanted, rtol=32 * n * np.finfo(dtype).eps)


def test_matrices_and_right_hand_sides_broadcast():
    for x, y in (((3, 1, 5, 5), (2, 5, 4)), ((5, 5), (2, 5, 4)), ((2, 5, 5), (5, 1)), ((2, 5, 5), (5,))):
        matrix, right = noise("float64", *x) + 4 * np.eye(5), noise("float64", *y)
        for op, whole in (("solve", matrix), ("triangular_solve", np.triu(matrix))):
            found = compiled(op, matrix, right)
            shown, wanted = (found[..., None], right[:, None]) if right.ndim == 1 else (found, right)

            np.testing.assert_allclose(whole @ shown, np.broadcast_to(wanted, shown.shape), atol=1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("op", "attrs", "y"),
    [
        ("cholesky_factor", {}, False),
        ("inverse", {}, False),
        ("solve", {}, True),
        ("triangular_solve", {"upper": False}, True),
    ],
)
@pytest.mark.parametrize("n", [1, 3, 20])
def test_a_singular_matrix_in_a_batch_is_the_error_of_the_reference(op, attrs, y, n):
    x = np.stack([np.eye(n)] * 3)
    x[2, n - 1, n - 1] = 0
    values = [x, np.ones((n, 2))] if y else [x]
    block = block_of(op, *values, **attrs)
    assert all_compiled(block)

    with pytest.raises(ExecutionError) as caught:
        native_interpreter(block, CPU)(Run(), *values)

    assert caught.value.code == "singular_matrix"
    with pytest.raises(ExecutionError) as wanted:
        interpreter_of(block)(Run(), *values)
    assert str(caught.value) == str(wanted.value)


def test_determinants_of_singular_matrices_are_zero():
    x = np.stack([np.ones((3, 3)), np.zeros((3, 3)), np.eye(3)])

    np.testing.assert_array_equal(compiled("det", x), [0, 0, 1])
    sign, logabs = compiled("slogdet", x)
    np.testing.assert_array_equal(sign, [0, 0, 1])
    np.testing.assert_array_equal(logabs, [-np.inf, -np.inf, 0])


def test_a_system_and_its_adjoint_share_one_decomposition():
    x, y = noise("float64", 9, 9), noise("float64", 9, 2)
    block = block_of("solve", x, y)
    adjoint = vjp(block, list(block.params))

    kinds = [getattr(each, "kind", "") for each in plan_block(adjoint, CPU.target).body.instructions]

    assert kinds.count("eliminate") == 1
    cx, cy = native_interpreter(adjoint, CPU)(Run(), x, y, np.ones((9, 2)))[1:]
    right = np.linalg.solve(x.T, np.ones((9, 2)))
    np.testing.assert_allclose(cy, right, rtol=1e-9)
    np.testing.assert_allclose(cx, -right @ np.linalg.solve(x, y).T, rtol=1e-8, atol=1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), TALL)
def test_orthonormal_columns_times_a_triangle_are_the_matrix(m, n, dtype):
    x = noise(dtype, 2, m, n)
    x[1, :, n // 2] = 0
    x[1, 0, 0] = 0

    q, r = compiled("qr_factor", x)

    assert (np.tril(r, -1) == 0).all() and (r.diagonal(0, 1, 2) >= 0).all()
    wide = q.astype("float64")
    close(wide @ r.astype("float64"), x, dtype, m)
    close(wide.swapaxes(1, 2) @ wide, np.broadcast_to(np.eye(n), (2, n, n)), dtype, m)


def test_the_squares_of_huge_and_tiny_columns_neither_overflow_nor_vanish():
    for scale in (1e30, 1e-30):
        x = (noise("float64", 9, 4) * scale).astype("float32")

        q, r = compiled("qr_factor", x)

        close(q.astype("float64") @ r.astype("float64"), x, "float32", 9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 6, pytest.param(70, marks=pytest.mark.slow)])
def test_eigenvectors_and_values_rebuild_the_matrix_whose_upper_triangle_is_not_read(n, dtype):
    x = definite(dtype, 2, n, n)
    half = x + np.triu(np.full((n, n), np.nan, dtype), 1)

    values, vectors = compiled("eigh_factor", half)

    wide = vectors.astype("float64")
    close((wide * values[:, None]) @ wide.swapaxes(1, 2), x, dtype, 4 * n)
    close(wide.swapaxes(1, 2) @ wide, np.broadcast_to(np.eye(n), x.shape), dtype, 4 * n)
    assert (np.diff(values) >= 0).all()
    np.testing.assert_allclose(compiled("eigvalsh_factor", half), values, rtol=64 * n * np.finfo(dtype).eps)
    np.testing.assert_array_equal(first_of_the_large(wide) > 0, True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 4), (4, 9), pytest.param(90, 60, marks=pytest.mark.slow)])
def test_singular_vectors_and_values_rebuild_the_matrix_and_its_pseudo_inverse(m, n, dtype):
    x = noise(dtype, 2, m, n)

    u, s, v = (each.astype("float64") for each in compiled("svd", x))

    close((u * s[:, None]) @ v.swapaxes(1, 2), x, dtype, 8 * max(m, n))
    for each in (u, v):
        square = each.swapaxes(1, 2) @ each
        close(square, np.broadcast_to(np.eye(min(m, n)), square.shape), dtype, 8 * max(m, n))
    assert (np.diff(s) <= 0).all() and (first_of_the_large(u) > 0).all()
    inverse = compiled("pinv", x).astype("float64")
    np.testing.assert_allclose(x @ inverse @ x, x, atol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n"), [(2, 2), (9, 4), (70, 33)])
def test_the_gradient_of_a_qr_decomposition_of_dependent_columns_is_an_error(m, n, dtype):
    """The last pivot is zero up to rounding, and rounding differs between executors."""
    b = BlockBuilder()
    x = b.param(TensorType((m, n), dtype))
    block = b.build(list(b.emit("qr_factor", x)))
    adjoint = optimize(vjp(block, list(block.params)))
    for seed in range(5):
        matrix = noise(dtype, m, n, seed=seed)
        matrix[:, -1] = matrix[:, 0] if n == 2 else matrix[:, 0] - matrix[:, 1] / 3
        given = [matrix, noise(dtype, m, n, seed=10), noise(dtype, n, n, seed=11)]
        for run in (interpreter_of(adjoint), native_interpreter(adjoint, CPU)):
            with pytest.raises(ExecutionError) as caught:
                run(Run(), *given)
            assert caught.value.code == "singular_matrix"


def first_of_the_large(vectors: np.ndarray) -> np.ndarray:
    """The first number of each column [..., m, k] of at least 0.9 times the largest size."""
    large = np.abs(vectors) >= 0.9 * np.abs(vectors).max(-2, keepdims=True)
    return np.take_along_axis(vectors, large.argmax(-2)[..., None, :], -2)


@pytest.mark.parametrize("op", ["cholesky", "svd", "pinv", "eigh_factor", "eigvalsh_factor"])
def test_nan_gives_what_it_gives_in_the_reference_executor(op):
    x = np.stack([np.eye(3), np.full((3, 3), np.nan)])
    both(block_of(op, x), [x])


def test_a_long_decomposition_stays_in_the_reference_executor_which_can_be_stopped():
    x = np.zeros((1500, 1500))

    for op in ("svd", "pinv", "eigh_factor"):
        assert not all_compiled(block_of(op, x))


def loss_of(kind: str, n: int) -> Block:
    """A number that depends on a matrix [n, n] through a factorisation."""
    b = BlockBuilder()
    x = b.param(TensorType((n, n), "float64"))
    if kind == "cholesky":
        x = b.emit("add", b.emit("matmul", x, x, transpose_y=True), b.emit("eye", num_rows=n, dtype="float64"))
    out = b.emit(kind, *([x, b.emit("sin", x)] if kind == "solve" else [x]))
    parts = out if isinstance(out, tuple) else (out,)
    floats = [b.emit("reduce_sum", b.emit("sin", p)) for p in parts if p.type.is_float]
    return b.build([b.emit("sum", *floats) if len(floats) > 1 else floats[0]])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["cholesky", "slogdet", "inverse", "qr", "lu", "solve", "eigh", "svd"])
def test_gradients_of_both_orders_agree_with_differences(kind):
    n, rng = 11, np.random.default_rng(3)
    loss = loss_of(kind, n)
    x = rng.standard_normal((n, n)) + 3 * np.diag(1 + np.arange(n) / 4)
    first = vjp(loss, list(loss.params))
    second = optimize(vjp(first, list(first.params)[:1]))
    value, gradient = (native_interpreter(optimize(each), CPU) for each in (loss, first))
    way = rng.standard_normal((n, n))
    one, step = np.array(1.0), 1e-6

    slope = sum(s * value(Run(), x + s * step * way)[0] for s in (1, -1)) / (2 * step)
    found = gradient(Run(), x, one)[1]
    np.testing.assert_allclose((found * way).sum(), slope, rtol=1e-5, atol=1e-6)

    curve = sum(s * gradient(Run(), x + s * step * way, one)[1] for s in (1, -1)) / (2 * step)
    names = dict(zip(second.params, (x, one, np.array(0.0), way), strict=True))
    hessian = native_interpreter(second, CPU)(Run(), *names.values())[-1]
    np.testing.assert_allclose(hessian, curve, rtol=1e-4, atol=1e-4 * np.abs(curve).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 17, pytest.param(50, marks=pytest.mark.slow)])
def test_the_exponential_of_a_diagonalized_matrix_has_the_exponentials_of_its_eigenvalues(n, dtype):
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.standard_normal((n, n)))[0]
    for size in (0.0, 0.1, 1.0, 3.0, 20.0):
        values = size * np.linspace(-1, 1, n) if n > 1 else np.array([size])
        x = ((vectors * values) @ vectors.T).astype(dtype)

        found = compiled("matrix_exp", np.stack([x, -x]))

        for each, sign in zip(found, (1, -1), strict=True):
            wanted = (vectors * np.exp(sign * values)) @ vectors.T
            error = 64 * (1 + size) * np.finfo(dtype).eps * np.abs(wanted).max()
            np.testing.assert_allclose(each, wanted, rtol=0, atol=error)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_exponential_of_a_matrix_that_is_not_finite_is_nan(bad):
    x = np.zeros((2, 3, 3))
    x[1, 2, 0] = bad

    found = compiled("matrix_exp", x)

    np.testing.assert_array_equal(found[0], np.eye(3))
    assert np.isnan(found[1]).all()
