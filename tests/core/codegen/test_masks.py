"""Masks, moved elements, positions of extremes, and scaled gradients equal numpy's for any shape."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.llvm import literal
from core.ir.errors import ExecutionError, InternalError
from tests.core.codegen.stepwise import all_compiled, block_of, compiled

SHAPES = [(1, 1), (1, 7), (3, 1), (5, 5), (4, 33), (2, 17, 16)]


def values(shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_triangles_equal_numpys(shape):
    x = values(shape)
    for diagonal in (-2, 0, 3):
        np.testing.assert_array_equal(compiled("tril", x, diagonal=diagonal), np.tril(x, diagonal))
    np.testing.assert_array_equal(compiled("triu", x, diagonal=1), np.triu(x, 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 17)])
def test_diagonals_equal_numpys(shape):
    x = values(shape)

    np.testing.assert_array_equal(compiled("eye_like", x, offset=-1, dtype="int32"), np.eye(*shape, -1, dtype="int32"))
    np.testing.assert_array_equal(compiled("diagonal", x), np.diagonal(x))
    into = compiled("diagonal_into", np.diagonal(x).copy(), x)
    np.testing.assert_array_equal(into, x * np.eye(*shape, dtype="float32"))


def test_whole_ranges_are_counted_and_others_rounded_as_in_numpy():
    found = compiled("range", start=5.0, end=-200.0, step=-3.0, dtype="int32")
    np.testing.assert_array_equal(found, np.arange(5, -200, -3, dtype="int32"))
    found = compiled("range", start=0.1, end=9.0, step=0.3, dtype="float32")
    np.testing.assert_array_equal(found, (0.1 + np.arange(30) * 0.3).astype("float32"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(1,), (3, 4), (2, 1, 17)])
def test_tiles_equal_numpys(shape):
    x = values(shape)
    for repeats in ((3,), (2, 1, 2), (1,) * len(shape)):
        np.testing.assert_array_equal(compiled("tile", x, repeats=repeats), np.tile(x, repeats))
    np.testing.assert_allclose(compiled("sum_tiles_like", np.tile(x, (3,)), x, repeats=(3,)), 3 * x, rtol=1e-6)


@pytest.mark.parametrize("steps", [-5, -2, 1, 4, 9])
def test_shifted_elements_leave_zeros(steps):
    x = values((3, 5, 2))
    wanted = np.zeros_like(x)
    for t in range(5):
        if 0 <= t - steps < 5:
            wanted[:, t] = x[:, t - steps]

    np.testing.assert_array_equal(compiled("shift", x, axis=1, steps=steps), wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(1,), (4, 33), (3, 5, 17), (2, 20_000)])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_position_of_an_extreme_is_that_of_the_first_one_or_of_a_nan(shape, name):
    x = np.round(values(shape), 1)
    x.flat[x.size // 2] = np.nan
    for axis in range(len(shape)):
        np.testing.assert_array_equal(compiled(name, x, axis=axis), getattr(np, name)(x, axis))


def test_the_first_true_element_is_marked():
    x = values((4, 5, 6)) > 1
    wanted = np.zeros_like(x)
    for i in range(5):
        hits = np.argwhere(x[:, i])
        if len(hits):
            wanted[hits[0][0], i, hits[0][1]] = True

    np.testing.assert_array_equal(compiled("first_true", x, axes=(0, 2)), wanted)


def test_one_hot_refuses_an_index_beyond_its_depth():
    index = np.array([[0, 3], [2, 1]])

    np.testing.assert_array_equal(compiled("one_hot", index, depth=4), np.eye(4, dtype="float32")[index])
    with pytest.raises(ExecutionError, match="outside 0 to 2"):
        compiled("one_hot", index, depth=3)


def test_one_hot_takes_a_depth_that_the_dtype_of_the_indices_lacks():
    index = np.array([0, 5], "int32")

    assert compiled("one_hot", np.zeros(0, "int32"), depth=2**31 + 5).shape == (0, 2**31 + 5)
    np.testing.assert_array_equal(compiled("one_hot", index, depth=300), np.eye(300, dtype="float32")[index])


@pytest.mark.parametrize(("number", "dtype"), [(2**31, "int32"), (-(2**31) - 1, "int32"), (2**63, "int64")])
def test_a_literal_out_of_the_range_of_its_dtype_is_an_error(number, dtype):
    with pytest.raises(InternalError, match="its range"):
        literal(number, dtype)


@pytest.mark.parametrize("axes", [(0,), (1,), None])
def test_sums_of_exponentials_do_not_overflow(axes):
    x = values((4, 33), "float64") * 400
    x[:, 2] = -np.inf
    x[2] = -np.inf
    top = np.max(x, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)

    with np.errstate(divide="ignore"):
        wanted = np.squeeze(np.log(np.exp(x - top).sum(axes, keepdims=True)) + top, axes)
    np.testing.assert_allclose(compiled("logsumexp", x, axes=axes), wanted, rtol=1e-14)


@pytest.mark.parametrize("scale", [0.01, 100.0, np.inf])
def test_gradients_are_clipped_by_their_joint_norm(scale):
    x, y = values((3, 40)) * np.float32(scale), values((7,)) * np.float32(scale)
    norm = np.sqrt((x.astype("float64") ** 2).sum() + (y.astype("float64") ** 2).sum())
    factor = min(1.0, 2.0 / norm) if np.isfinite(norm) else 1.0

    found = compiled("clip_by_global_norm", x, y, max_norm=2.0)

    for each, before in zip(found, (x, y), strict=True):
        np.testing.assert_allclose(each, (before * factor).astype("float32"), rtol=1e-6)


def test_unscaled_gradients_tell_of_elements_that_are_not_finite():
    x, y = values((3, 40)), np.array([1.0, np.nan], "float32")

    *found, overflow = compiled("unscale", np.float32(8.0), x, y)

    np.testing.assert_array_equal(found[0], x / 8)
    assert overflow
    assert not compiled("unscale", np.float32(8.0), x)[-1]


def test_a_number_that_is_not_finite_ends_the_run():
    np.testing.assert_array_equal(compiled("check_finite", values((40,))), values((40,)))
    with pytest.raises(ExecutionError, match="not finite"):
        compiled("check_finite", np.array([1.0, np.inf]))


def test_a_long_constant_is_left_to_the_reference_executor():
    assert all_compiled(block_of("linspace", start=0.0, stop=1.0, num=1000))
    assert not all_compiled(block_of("linspace", start=0.0, stop=1.0, num=100_000))
