"""Edge cases of linear algebra: singular matrices, equal values, unknown sizes, unsupported dtypes."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError, ExecutionError, ProgramError
from core.ir.registry import as_tuple
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run
from tests.rounding import ROUNDING

Q = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
DOUBLE = (Q * [1.0, 1.0, 3.0]) @ Q.T
"""Two of its eigenvalues are equal up to rounding."""


def block_of(type: str, *inputs: Any, **attrs: Any) -> Block:
    b = BlockBuilder()
    params = [b.param(TensorType(x.shape, str(x.dtype))) for x in map(np.asarray, inputs)]
    return b.build(as_tuple(b.emit(type, *params, **attrs)))


def run(type: str, *inputs: Any, **attrs: Any) -> Any:
    found = execute(block_of(type, *inputs, **attrs), [np.asarray(x) for x in inputs])
    return tuple(found) if len(found) > 1 else found[0]


def run_native(type: str, *inputs: Any, **attrs: Any) -> Any:
    return native_interpreter(optimize(block_of(type, *inputs, **attrs)), ROUNDING)(Run(), *inputs)


def gradient(loss: Any, x: Any) -> np.ndarray:
    """The gradient of ``loss(b.emit, x)``, which returns the symbol of a 0-d array."""
    x = np.asarray(x, dtype="float64")
    b = BlockBuilder()
    w = b.param(TensorType(x.shape, "float64"))
    block = b.build([loss(b.emit, w)])
    return execute(vjp(block, [w.name]), [x, np.array(1.0)])[1]


def differences(f: Any, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[at] = step
        out[at] = (f(x + moved) - f(x - moved)) / (2 * step)
    return out


def refused(call: Any) -> str:
    with pytest.raises(CoreError) as error:
        call()
    return f"{type(error.value).__name__} {error.value.code}"


def test_equal_eigenvalues_have_a_gradient_even_if_their_vectors_are_computed():
    found = gradient(lambda emit, x: emit("reduce_sum", emit("square", emit("eigh", x)[0])), DOUBLE)

    np.testing.assert_allclose(
        found, 2 * DOUBLE, atol=1e-12
    )  # the sum of squared eigenvalues is the sum of squared elements


def test_the_vector_of_a_simple_eigenvalue_has_a_gradient_if_other_eigenvalues_are_equal():
    def loss(emit, x):
        last = emit("slice", emit("eigh", x)[1], axes=(1,), starts=(2,), ends=(3,))
        return emit("reduce_sum", emit("slice", last, axes=(0,), starts=(0,), ends=(1,)))

    def same(x):
        v = np.linalg.eigh((x + x.T) / 2)[1][:, 2]
        return v[0] * np.sign(next(c for c in v if abs(c) >= 0.9 * np.abs(v).max()))

    np.testing.assert_allclose(gradient(loss, DOUBLE), differences(same, DOUBLE), atol=1e-8)


@pytest.mark.parametrize(
    ("type", "slot", "value"),
    [
        ("eigh", 1, DOUBLE),
        ("eigh", 1, np.zeros((2, 2))),
        ("svd", 0, DOUBLE),
        ("svd", 2, 2 * Q),
        ("svd", 0, [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]),
        ("svd", 2, [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]),
    ],
)
def test_non_unique_vectors_have_no_gradient(type, slot, value):
    weights = np.sin(np.arange(1.0, 10.0))

    def loss(emit, x):
        vectors = emit(type, x)[slot]
        weight = emit(
            "assign_value", values=tuple(weights[: np.prod(vectors.shape)]), shape=vectors.shape, dtype="float64"
        )
        return emit("reduce_sum", emit("mul", vectors, weight))

    assert refused(lambda: gradient(loss, value)) == "ExecutionError degenerate_spectrum"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (2 * Q, Q),
        (np.eye(2, 3), np.eye(2, 3)),
        (np.outer([3.0, 4.0, 0.0], [0.0, 2.0]), np.outer([0.6, 0.8, 0.0], [0.0, 1.0])),
        (np.zeros((2, 3)), np.zeros((2, 3))),
        (np.diag([2.0, 0.0]), np.diag([1.0, 0.0])),
    ],
)
def test_singular_values_of_0_add_nothing_to_the_gradient_of_the_nuclear_norm(value, wanted):
    found = gradient(lambda emit, x: emit("reduce_sum", emit("svd", x)[1]), value)

    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_the_second_derivative_at_equal_eigenvalues_is_refused():
    x = np.eye(2)
    b = BlockBuilder()
    w = b.param(TensorType((2, 2), "float64"))
    first = vjp(b.build([b.emit("reduce_sum", b.emit("square", b.emit("eigvalsh", w)))]), [w.name])
    c = BlockBuilder()
    w = c.param(TensorType((2, 2), "float64"))
    _, inner = c.inline(first, [w, c.constant(1.0, "float64")])
    weight = c.emit("assign_value", values=(1.0, 2.0, 3.0, 4.0), shape=(2, 2), dtype="float64")
    second = vjp(c.build([c.emit("reduce_sum", inner * weight)]), [w.name])

    assert refused(lambda: execute(second, [x, np.array(1.0)])) == "ExecutionError degenerate_spectrum"


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "code"),
    [
        ("solve", (np.ones((2, 2)), np.ones((2, 1))), {}, "singular_matrix"),
        ("solve", (np.stack([np.eye(2), np.ones((2, 2))]), np.ones(2)), {}, "singular_matrix"),
        ("triangular_solve", (np.triu(np.ones((2, 2)), 1), np.ones(2)), {}, "singular_matrix"),
        ("matrix_power", (np.ones((2, 2)),), {"n": -1}, "singular_matrix"),
        ("cholesky", (-np.eye(2),), {}, "singular_matrix"),
        ("svd", (np.full((2, 2), np.nan),), {}, "no_convergence"),
        ("pinv", (np.full((2, 2), np.nan),), {}, "no_convergence"),
    ],
)
def test_a_singular_system_is_an_error_and_not_nan(type, inputs, attrs, code):
    assert refused(lambda: run(type, *inputs, **attrs)) == f"ExecutionError {code}"


def test_the_gradient_of_a_qr_with_dependent_columns_is_refused():
    def loss(emit, x):
        return emit("reduce_sum", emit("qr", x)[0])

    assert refused(lambda: gradient(loss, np.zeros((3, 2)))) == "ExecutionError singular_matrix"


def test_each_op_reports_a_determinant_of_0_as_documented():
    singular = np.ones((2, 2))

    assert run("det", singular) == 0
    assert [float(v) for v in run("slogdet", singular)] == [0, -np.inf]
    assert run("logdet", singular) == -np.inf
    assert np.isnan(run("logdet", np.diag([-1.0, 1.0])))


def test_the_unread_triangle_is_ignored_and_has_gradient_0():
    x = np.array([[2.0, np.nan], [1.0, 4.0]])

    def loss(emit, x):
        right = emit("assign_value", values=(2.0, 4.0), shape=(2,), dtype="float64")
        return emit("reduce_sum", emit("triangular_solve", x, right, upper=False))

    np.testing.assert_allclose(gradient(loss, x), [[-0.375, 0], [-0.25, -0.1875]])


def test_large_triangular_matrices_and_batches_are_solved():
    r = np.random.default_rng(1)
    x, y = r.standard_normal((2, 40, 40)) + 20 * np.eye(40), r.standard_normal((40, 3))

    found = run("triangular_solve", x, y, transpose=True, upper=False)

    np.testing.assert_allclose(np.swapaxes(np.tril(x), 1, 2) @ found, np.broadcast_to(y, (2, 40, 3)), atol=1e-12)


def test_the_pseudo_inverse_of_a_low_rank_matrix_has_the_gradient_for_that_rank():
    a, b, c = np.array([1.0, -2.0, 0.5]), np.array([0.3, 2.0]), np.sin(np.arange(6.0)).reshape(2, 3)

    def loss(emit, x):
        weight = emit("assign_value", values=tuple(c.ravel()), shape=(2, 3), dtype="float64")
        right = emit("assign_value", values=tuple(b), shape=(2,), dtype="float64")
        return emit("reduce_sum", emit("mul", emit("pinv", emit("outer", x, right)), weight))

    def closed(a):
        return (c * np.outer(b, a)).sum() / (a @ a) / (b @ b)

    np.testing.assert_allclose(gradient(loss, a), differences(closed, a), atol=1e-8)


@pytest.mark.parametrize("dtype", [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)])
def test_products_in_16_bits_are_accumulated_in_float32(dtype):
    ones = np.ones((1, 4096), dtype)

    for found in (
        run("matmul", ones, ones, transpose_y=True),
        run("einsum", ones, ones, equation="ij,kj->ik"),
        run("matmul", ones[None], ones.T),
    ):
        assert found.dtype == dtype
        assert float(found.ravel()[0]) == 4096  # bfloat16 alone would stop at 256


@pytest.mark.parametrize("type", ["inverse", "det", "cholesky", "eigh", "eigvalsh", "svd", "qr", "pinv"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64"])
def test_decompositions_refuse_16_bit_floats_and_integers(type, dtype):
    b = BlockBuilder()
    x = b.param(TensorType((2, 2), dtype))

    with pytest.raises(ProgramError) as error:
        b.emit(type, x)
    assert error.value.code == "dtype_mismatch"


def test_sizes_known_only_in_the_run_do_not_broadcast_under_a_letter():
    b = BlockBuilder()
    x, y = (b.param(TensorType((-1, -1), "float64")) for _ in range(2))
    block = b.build([b.emit("einsum", x, y, equation="ij,jk->ik")])

    with pytest.raises(ExecutionError) as error:
        execute(block, [np.ones((2, 1)), np.ones((3, 2))])
    assert error.value.code == "shape_mismatch"


def test_a_flattened_product_needs_no_sizes_if_axes_match_one_to_one():
    b = BlockBuilder()
    x, y = b.param(TensorType((-1, -1, 3), "float64")), b.param(TensorType((3, -1), "float64"))
    out = b.emit("mul_flattened", x, y, x_num_col_dims=2)
    found = execute(b.build([out]), [np.ones((2, 2, 3)), np.ones((3, 5))])[0]

    assert out.shape == (-1, -1, -1)
    np.testing.assert_array_equal(found, np.full((2, 2, 5), 3.0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_determinant_of_nan_has_no_sign_and_no_logarithm(dtype):
    """By the definition as a sum of products: 0 times inf, inf minus inf and NaN are NaN."""
    nan, inf = np.nan, np.inf
    finite, infinite = [[[1, 2], [3, 4]], [[1, 2], [2, 4]]], [[[1, 1], [1, inf]], [[1, 1], [inf, 2]]]
    lost = [[[nan, 1], [1, 1]], [[1, 1], [nan, 1]], [[0, 0], [0, nan]], [[0, 0], [0, inf]], [[inf, inf], [1, inf]]]
    x = np.array([*finite, *infinite, *lost], dtype)
    b = BlockBuilder()
    given = b.param(TensorType(x.shape, dtype))
    block = b.build([b.emit("det", given), *b.emit("slogdet", given)])
    tail = [nan] * len(lost)

    for found in (execute(block, [x]), native_interpreter(block, ROUNDING)(Run(), x)):
        np.testing.assert_allclose(found[0], [-2, 0, inf, -inf, *tail], rtol=1e-6)
        np.testing.assert_allclose(found[1], [-1, 0, 1, -1, *tail])
        np.testing.assert_allclose(found[2], [np.log(2), -inf, inf, inf, *tail], rtol=1e-6)


@pytest.mark.parametrize("type", ["svd", "pinv", "eigh", "eigvalsh"])
def test_a_decomposition_refuses_a_matrix_with_an_infinity_or_a_nan(type):
    """LAPACK never ends for this matrix with an infinity, and finds finite eigenvalues for some with a NaN."""
    x = np.cos(np.arange(25.0)).reshape(5, 5)
    for bad in (np.inf, -np.inf, np.nan):
        for at in ((0, 0), (3, 0), (4, 4)):
            lost = x.copy()
            lost[at] = bad
            assert refused(lambda: run(type, np.stack([x, lost]))) == "ExecutionError no_convergence"  # noqa: B023
            assert refused(lambda: run_native(type, np.stack([x, lost]))) == "ExecutionError no_convergence"  # noqa: B023


def depends_on(call: Any, x: np.ndarray, unknown: np.ndarray) -> list[np.ndarray]:
    """Which elements of the results change with the elements of x at `unknown`."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(3):
        number = rng.uniform(-1.0, 1.0, x.shape)
        found.append(call(np.where(unknown, number + number.T + rng.uniform(20, 60) * np.eye(len(x)), x)))
    return [np.ptp(np.stack(each), axis=0) > 1e-9 for each in zip(*found, strict=True)]


@pytest.mark.parametrize("type", ["solve", "inverse", "det", "slogdet", "cholesky", "qr", "lu_solve"])
def test_elements_of_a_result_that_depend_on_a_nan_are_nan(type):
    """LAPACK leaves out the division by a pivot that is NaN, and had finite numbers below it."""
    rng, n = np.random.default_rng(1), 4
    right = [rng.normal(size=(n, 2))] if type.endswith("solve") else []

    def results(x: np.ndarray) -> list[np.ndarray]:
        if type == "lu_solve":
            found = run("lu_solve", *run("lu", x), *right)
        else:
            found = run(type, x, *right)
        return [np.asarray(v) for v in (found if isinstance(found, tuple) else [found])]

    seen = 0
    for _ in range(40):
        x = rng.normal(size=(n, n))
        x = x + x.T + 20 * np.eye(n)
        unknown = rng.random((n, n)) < 0.1
        unknown |= unknown.T
        for value, lost in zip(results(np.where(unknown, np.nan, x)), depends_on(results, x, unknown), strict=True):
            assert np.isnan(value[lost]).all()
            seen += int(lost.sum())
    assert seen >= 20


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (20, 3), (3, 20), (18, 18)], ids=str)
def test_qr_of_a_matrix_with_a_nan_or_infinity_gives_nan_and_a_triangular_r(shape, bad):
    x = np.random.default_rng(0).normal(size=(4, *shape))
    x[1] = np.eye(*shape)  # no reflection mixes its columns
    k = min(shape)
    x[1, 0, k - 1] = x[2, -1, 0] = bad
    (q, r), (native_q, native_r) = run("qr", x), run_native("qr", x)

    for found in (q, native_q):
        np.testing.assert_array_equal(np.isnan(found).all((1, 2)), [False, True, True, False])
    upper = np.triu(np.ones(r.shape[1:], bool))
    for found in (r, native_r):
        np.testing.assert_array_equal(np.isnan(found), np.array([False, True, True, False])[:, None, None] & upper)
        assert not found[:, ~upper].any()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("type", ["solve", "inverse", "det", "slogdet", "lu", "cholesky", "qr"])
def test_machine_code_and_the_reference_executor_agree_on_infinities_and_nan(type, dtype):
    rng, n = np.random.default_rng(2), 5
    x = rng.normal(size=(60, n, n))
    x = x @ x.swapaxes(1, 2) + np.eye(n)
    for value in (np.nan, np.inf, -np.inf):
        x[rng.random(x.shape) < 0.03] = value
    diagonal = np.arange(n)
    x[:, diagonal, diagonal] = np.abs(x[:, diagonal, diagonal])
    x = np.where(np.tri(n, dtype=bool), x, x.swapaxes(1, 2)).astype(dtype)
    right = [rng.normal(size=(n, 2)).astype(dtype)] if type == "solve" else []
    block = optimize(block_of(type, x[0], *right))
    native, refusals = native_interpreter(block, ROUNDING), 0

    for each in x:
        try:
            wanted = execute(block, [each, *right])
        except ExecutionError as error:
            refusals += 1
            assert refused(lambda: native(Run(), each, *right)) == f"ExecutionError {error.code}"  # noqa: B023
            continue
        for found, value in zip(native(Run(), each, *right), wanted, strict=True):
            np.testing.assert_allclose(found, value, 1e-4 if dtype == "float32" else 1e-12, atol=1e-5)
    assert refusals < 30


def test_the_quotient_of_two_infinities_in_a_system_is_nan():
    inf = np.inf
    x = np.array([[inf, 1.0], [inf, 2.0]])

    assert np.isnan(run("solve", x, np.ones((2, 1)))).all()
    assert np.isnan(run("det", x))
    assert np.isnan(run("cholesky", np.full((2, 2), inf))[1]).all()
    np.testing.assert_array_equal(run("solve", np.array([[inf, 1.0], [1.0, 2.0]]), np.ones(2)), [0, 0.5])


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 1e-40), ("float64", 1e-310)])
def test_factors_and_solutions_of_denormal_matrices_are_right(dtype, unit):
    """BLAS does not divide by denormal pivots, or multiplies by their infinite reciprocals."""
    whole = np.array([[2.0, 0.25, -4.0], [1.0, 1.5, 0.5], [-8.0, 0.5, 3.0]]) * 16
    x = np.stack([whole * unit, whole]).astype(dtype)
    y = x @ np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]], dtype)
    close = partial(np.testing.assert_allclose, rtol=2e-3)

    for call in (run, run_native):
        lower, upper, rows = call("lu", x)
        close(lower, call("lu", x[1])[0] + np.zeros_like(x))
        np.testing.assert_array_equal(rows[0], rows[1])
        np.testing.assert_allclose(lower @ upper, np.take_along_axis(x, rows[..., None], 1), rtol=1e-2, atol=100 * unit)
        for each, right in zip(x, y, strict=True):
            (found,) = np.asarray(call("solve", each, right)).reshape(1, 3, 2)
            close(found, [[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]])
            triangle = np.triu(each)
            (found,) = np.asarray(call("triangular_solve", triangle, triangle @ found)).reshape(1, 3, 2)
            close(found, [[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]])
