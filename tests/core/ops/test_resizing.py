"""Resizing, adaptive means and borders equal their definitions, for any ratio of sizes and any width."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.ops.common.types import as_dtype
from core.ops.vision.axis_resizing import phase_count
from core.passes.expand import expand_composites
from tests.core.ops.test_kinks_nn import run
from tests.programs import Sketch, grads

SIZES = [(8, 16), (8, 4), (9, 6), (6, 9), (8, 24), (12, 3), (10, 8), (2, 4), (4, 2), (3, 3), (1, 5), (5, 1), (7, 10),
         (90, 130), (300, 299), (40, 20)]  # fmt: skip
MODES = ["nearest", "linear", "cubic"]


def weights(mode: str, t: Fraction) -> list[float]:
    """The weights of the elements from `begin(mode)` on around a position that is `t` after an element."""
    if mode == "linear":
        return [float(1 - t), float(t)]
    near = [((1.25 * d - 2.25) * d * d + 1, d) for d in (float(t), float(1 - t))]
    far = [-0.75 * (d**3 - 5 * d * d + 8 * d - 4) for d in (float(1 + t), float(2 - t))]
    return [far[0], near[0][0], near[1][0], far[1]]


def matrix(size: int, out: int, mode: str, align: bool, from_first: bool) -> np.ndarray:
    """[out, size]: the weight of each element in each output element, by the formulas of `interpolate`."""
    found = np.zeros((out, size))
    for i in range(out):
        at = Fraction(i * (size - 1), max(out - 1, 1)) if align else Fraction(i * size, out)
        if not (align or from_first or mode == "nearest"):
            at = Fraction((2 * i + 1) * size, 2 * out) - Fraction(1, 2)
        if mode == "nearest":
            found[i, floor(at + Fraction(1, 2)) if align else floor(at)] = 1
            continue
        for k, weight in enumerate(weights(mode, at - floor(at)), start=floor(at) - (mode == "cubic")):
            found[i, min(max(k, 0), size - 1)] += weight
    return found


@pytest.mark.sampled(2, each="mode")
@pytest.mark.parametrize(("size", "out"), SIZES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("align", [False, True])
def test_an_axis_is_resized_by_its_definition(size, out, mode, align):
    rng = np.random.default_rng(size + out)
    x, c = rng.standard_normal((2, 3, size, 2)), rng.standard_normal((2, 3, out, 2))
    for from_first in (False, True) if mode == "linear" and not align else (False,):
        how = {"size": (out, 2), "mode": mode, "align_corners": align, "align_mode": int(from_first)}
        by = matrix(size, out, mode, align, from_first)
        np.testing.assert_allclose(run("interpolate", x, **how), np.einsum("oi,ncil->ncol", by, x), atol=1e-12)
        s = Sketch()
        s.param("x", x)
        s.feed("c", c)
        s.total(s.op("mul", s.op("interpolate", "x", **how), "c"))
        np.testing.assert_allclose(grads(s)["x"], np.einsum("oi,ncol->ncil", by, c), atol=1e-12)


@pytest.mark.parametrize(("size", "out"), SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_resize_and_interpolate_agree(size, out, mode):
    x = np.sin(np.arange(3.0 * size)).reshape(1, 3, size)
    coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
    how = {"mode": mode, "coordinates": coordinates, "nearest_mode": "floor"}
    wanted = run("interpolate", x, size=(out,), mode=mode)
    np.testing.assert_allclose(run("resize", x, sizes=(out,), axes=(2,), **how), wanted, atol=1e-9)


def test_sizes_with_a_simple_ratio_have_phases():
    found = {sizes: phase_count(*sizes, 2) for sizes in SIZES}
    assert [sizes for sizes in SIZES if not found[sizes]] == [(1, 5), (5, 1), (7, 10), (90, 130), (300, 299)]
    assert [found[sizes] for sizes in ((8, 16), (8, 4), (9, 6), (6, 9), (10, 8))] == [2, 1, 2, 3, 4]


@pytest.mark.parametrize(("mode", "out"), [(mode, out) for mode in MODES for out in (1024, 256, 768)])
def test_a_long_axis_needs_no_product_with_a_matrix(mode, out):
    b = BlockBuilder()
    x = b.param(TensorType((1, 1, 512), "float32"))
    block = expand_composites(b.build((b.emit("interpolate", x, size=(out,), mode=mode),)))
    assert "matmul" not in {op.type for op in block.ops} and "slice" in {op.type for op in block.ops}


@pytest.mark.parametrize(("size", "out"), [(8, 16), (7, 10), (300, 299)])
def test_a_nan_reaches_only_the_elements_that_copy_it(size, out):
    x = np.zeros((1, 1, size))
    x[0, 0, 5] = np.nan
    found = run("interpolate", x, size=(out,))
    assert np.isnan(found).sum() == np.count_nonzero(matrix(size, out, "nearest", False, True)[:, 5])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("size", "out"), [(128, 256), (128, 64), (128, 192), (128, 200), (300, 299)])
def test_sums_of_16_bit_floats_are_rounded_once(dtype, size, out):
    x = np.random.default_rng(1).standard_normal((1, 2, size)).astype(as_dtype(dtype))
    wide = run("interpolate", x.astype("float32"), size=(out,), mode="cubic")
    np.testing.assert_array_equal(run("interpolate", x, size=(out,), mode="cubic"), wide.astype(x.dtype))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_have_no_weighted_sums(mode):
    with pytest.raises(ProgramError, match="needs floats") as caught:
        run("interpolate", np.arange(4).reshape(1, 1, 4), size=(8,), mode=mode)
    assert caught.value.code == "dtype_mismatch"


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (0, 2), (3, 1), (4, 4), (5, 2), (2, 6), (11, 13)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_border_of_any_width_and_its_gradient_equal_those_of_numpy(mode, before, after, axis):
    x = np.sin(np.arange(15.0)).reshape((5, 3) if axis == 0 else (3, 5))
    widths = [(0, 0), (0, 0)]
    widths[axis] = (before, after)
    how = {"paddings": tuple(n for pair in widths for n in pair), "mode": mode}
    numpys = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    np.testing.assert_array_equal(run("pad", x, **how), np.pad(x, widths, mode=numpys))
    places = np.pad(np.arange(15).reshape(x.shape), widths, mode=numpys)
    c = np.cos(np.arange(float(places.size))).reshape(places.shape)
    s = Sketch()
    s.param("x", x)
    s.feed("c", c)
    s.total(s.op("mul", s.op("pad", "x", **how), "c"))
    wanted = np.bincount(places.ravel(), weights=c.ravel(), minlength=15).reshape(x.shape)
    np.testing.assert_allclose(grads(s)["x"], wanted, atol=1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "count"), [(8, 4), (9, 6), (7, 3), (5, 5), (5, 8), (30, 7), (6, 1), (101, 67)])
@pytest.mark.parametrize("axis", [2, 3])
def test_adaptive_means_and_their_gradient(size, count, axis):
    rng = np.random.default_rng(size)
    by = np.zeros((count, size))
    for i in range(count):
        start, end = i * size // count, -(-(i + 1) * size // count)
        by[i, start:end] = 1 / (end - start)
    x, c = (np.moveaxis(rng.standard_normal((2, 3, 4, n)), 3, axis) for n in (size, count))
    output_size = [4, 4]
    output_size[axis - 2] = count
    found = run("adaptive_avg_pool2d", x, output_size=output_size)
    np.testing.assert_allclose(found, np.moveaxis(np.moveaxis(x, axis, 3) @ by.T, 3, axis), atol=1e-12)
    s = Sketch()
    s.param("x", x)
    s.feed("c", c)
    s.total(s.op("mul", s.op("adaptive_avg_pool2d", "x", output_size=output_size), "c"))
    np.testing.assert_allclose(grads(s)["x"], np.moveaxis(np.moveaxis(c, axis, 3) @ by, 3, axis), atol=1e-12)


@pytest.mark.parametrize("count", [4, 7, 1])
def test_a_nan_reaches_only_the_means_of_its_windows(count):
    x = np.zeros((1, 1, 20))
    x[0, 0, 11] = np.nan
    found = run("adaptive_avg_pool1d", x, output_size=(count,))
    wanted = [i * 20 // count <= 11 < -(-(i + 1) * 20 // count) for i in range(count)]
    np.testing.assert_array_equal(np.isnan(found[0, 0]), wanted)
