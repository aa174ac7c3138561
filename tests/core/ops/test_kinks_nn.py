"""Edge cases of layers: borders, masked rows, half precision, shared masks, and attributes of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError
from core.ir.registry import as_tuple
from core.runtime.reference import execute
from tests.programs import Sketch, close, grads, step

IMAGE = np.arange(1.0, 7.0).reshape(1, 1, 2, 3)


def run(type: str, *inputs: Any, **attrs: Any) -> Any:
    b = BlockBuilder()
    arrays = [np.asarray(x) for x in inputs]
    values: list[Value] = [b.param(TensorType(x.shape, str(x.dtype))) for x in arrays]
    return execute(b.build(as_tuple(b.emit(type, *values, **attrs))), arrays)[0]


def gradients(type: str, *inputs: Any, **attrs: Any) -> list[Any]:
    """d (sum of the first output) / d each input; None for an input without a path to it."""
    s = Sketch()
    names = [s.param(f"p{i}", x) for i, x in enumerate(inputs)]
    out = s.op(type, *names, **attrs)
    s.total(out)
    found = grads(s)
    return [found.get(n) for n in names]


# --- attention -------------------------------------------------------------------------------------------------

Q, K, V = (np.sin(np.arange(6.0) * n).reshape(3, 2) for n in (1, 2, 3))


@pytest.mark.parametrize("hidden", [np.array([[True] * 3, [False] * 3, [True, False, True]]), None])
def test_a_fully_masked_position_gives_zeros_with_gradient_0(hidden):
    s = Sketch()
    for name, value in (("q", Q), ("k", K), ("v", V)):
        s.param(name, value)
    if hidden is None:
        s.feed("mask", np.array([[0.0] * 3, [-np.inf] * 3, [0.0, -np.inf, 0.0]]))
    else:
        s.feed("mask", hidden, dtype="bool")
    s.op("scaled_dot_product_attention", "q", "k", "v", "mask", out="y")
    s.total(s.op("square", "y"))

    found = step(s, fetch=["y"])

    np.testing.assert_array_equal(found.fetched["y"][1], 0.0)
    np.testing.assert_array_equal(found.gradients["q"][1], 0.0)
    for value in found.gradients.values():
        assert np.all(np.isfinite(value)) and np.any(value)


# --- resampling ------------------------------------------------------------------------------------------------


def grid(*places: tuple[float, float]) -> np.ndarray:
    return np.array([[places]])


def test_a_position_outside_the_border_has_gradient_0():
    for mode in ("bilinear", "bicubic"):
        for padding in ("zeros", "border"):
            _, at = gradients("grid_sample", IMAGE, grid((9.0, -9.0), (-9.0, 9.0)), mode=mode, padding_mode=padding)
            np.testing.assert_array_equal(at, 0.0)


def test_the_gradient_of_an_inner_position_is_the_slope_of_the_image():
    # x: 2 units cover 3 elements with slope 1 each; y: 2 units cover a rise of 3
    image, at = gradients("grid_sample", IMAGE, grid((0.25, 0.5)))

    close(at, [[[[1.0, 1.5]]]], 1e-12)
    close(image, [[[[0.0, 0.1875, 0.0625], [0.0, 0.5625, 0.1875]]]], 1e-12)


def test_a_nan_position_gives_nan_and_an_infinite_position_is_outside():
    assert np.isnan(run("grid_sample", IMAGE, grid((np.nan, 0.0)))).all()
    assert run("grid_sample", IMAGE, grid((np.inf, 0.0))).item() == 0.0
    assert run("grid_sample", IMAGE, grid((np.inf, -np.inf)), padding_mode="border").item() == 3.0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_float16_image_with_more_than_2048_elements_is_read_at_the_right_positions(dtype):
    image = np.zeros((1, 1, 65, 65), dtype)  # 4225 elements; float16 is exact for integers up to 2048
    image[0, 0, -1] = np.arange(65)

    last_row = grid(*((k / 32 - 1, 1.0) for k in range(65))).astype(dtype)  # all are exact in half precision

    np.testing.assert_array_equal(run("grid_sample", image, last_row).ravel(), np.arange(65))


def test_nearest_elements_are_computed_in_integers():
    # 49 * (2 / 98) is 0.9999999999999999 in floating point
    np.testing.assert_array_equal(run("interpolate", np.array([[[3.0, 5.0]]]), size=(98,)), [[[3.0] * 49 + [5.0] * 49]])


@pytest.mark.parametrize("align_corners", [False, True])
def test_a_long_axis_is_resized_without_a_matrix_to_the_same_values(align_corners):
    size, out = 1500, 1000
    line = np.sin(np.arange(size) / 7.0)
    at = np.arange(out) * (size - 1) / (out - 1) if align_corners else (np.arange(out) + 0.5) * size / out - 0.5
    attrs = {"size": (out,), "mode": "linear", "align_corners": align_corners}

    found = run("interpolate", line[None, None], **attrs)
    (slope,) = gradients("interpolate", line[None, None], **attrs)

    close(found[0, 0], np.interp(at, np.arange(size), line), 1e-12)
    wanted = np.zeros(size)
    np.add.at(wanted, np.floor(at).astype(int), 1 - at % 1)
    np.add.at(wanted, np.minimum(np.floor(at).astype(int) + 1, size - 1), at % 1)
    close(slope[0, 0], wanted, 1e-9)


# --- normalisation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_zeros_normalise_to_zeros(dtype):
    np.testing.assert_array_equal(run("l2_normalize", np.zeros((2, 3), dtype)), 0.0)
    np.testing.assert_array_equal(run("rms_norm", np.zeros((2, 3), dtype)), 0.0)


def test_the_gradient_of_spectral_norm_treats_u_and_v_as_constants():
    weight, u, v = np.cos(np.arange(6.0)).reshape(2, 3), np.array([0.6, 0.8]), np.array([1.0, 2.0, 2.0]) / 3
    sigma = u @ weight @ v

    found = gradients("spectral_norm", weight, u, v, power_iterations=0)

    # d (sum W / s) = sum(dW) / s - sum(W) / s^2 * u' dW v
    close(found[0], 1 / sigma - weight.sum() / sigma**2 * np.outer(u, v), 1e-12)
    assert found[1] is None and found[2] is None


# --- dropout ---------------------------------------------------------------------------------------------------


def test_dropout_along_some_axes_shares_one_mask_along_the_others_forward_and_backward():
    s = Sketch()
    s.param("w", np.ones((4, 8, 3, 2)))
    s.op("dropout", "w", p=0.5, axes=(0, 1), out="y")
    s.total("y")

    found = step(s, fetch=["y"])

    y = found.fetched["y"]
    np.testing.assert_array_equal(found.gradients["w"], y)
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :, :1, :1], y.shape))
    assert set(np.unique(y)) == {0.0, 2.0}


def test_alpha_dropout_keeps_mean_and_variance_and_the_gradient_of_kept_elements():
    x = np.random.default_rng(3).standard_normal(200_000)

    y = run("alpha_dropout", x, np.array(5), p=0.3)

    assert abs(y.mean()) < 0.02 and abs(y.var() - 1) < 0.03
    values, counts = np.unique(y, return_counts=True)
    dropped = y == values[counts.argmax()]
    assert abs(dropped.mean() - 0.3) < 0.01
    a, b = np.polyfit(x[~dropped], y[~dropped], 1)  # the kept elements lie on a line
    close(y[~dropped], a * x[~dropped] + b, 1e-9)
    close(values[counts.argmax()], a * -1.7580993408473766 + b, 1e-9)


# --- attributes of any size ------------------------------------------------------------------------------------

HUGE = 10**8


@pytest.mark.parametrize(
    ("type", "inputs", "attrs"),
    [
        ("spectral_norm", (IMAGE, np.ones(1), np.ones(6)), {"power_iterations": HUGE}),
        ("interpolate", (IMAGE,), {"scale_factor": (np.inf,)}),
        ("interpolate", (IMAGE,), {"scale_factor": (np.nan,)}),
        ("interpolate", (IMAGE,), {"scale_factor": (0.1,)}),
        ("temporal_shift", (IMAGE,), {"segments": HUGE}),
    ],
)
def test_attributes_out_of_bounds_are_refused(type, inputs, attrs):
    with pytest.raises(ProgramError) as error:
        run(type, *inputs, **attrs)
    assert error.value.code == "bad_attr"


def test_type_inference_is_fast_for_large_types():
    b = BlockBuilder()
    theta, image = b.param(TensorType((1, 2, 3), "float32")), b.param(TensorType((1, 4, 2, 2), "float32"))
    filter = b.param(TensorType((HUGE, 2), "float32"))
    sequence = b.param(TensorType((1, 5, 2), "float32"))

    assert b.emit("affine_grid", theta, size=(HUGE, HUGE)).shape == (1, HUGE, HUGE, 2)
    assert b.emit("interpolate", image, size=(HUGE, HUGE)).shape == (1, 4, HUGE, HUGE)
    assert b.emit("lrn", image, n=HUGE).shape == image.shape
    assert b.emit("row_conv", sequence, filter).shape == sequence.shape
