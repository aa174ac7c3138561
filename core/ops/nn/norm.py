"""Layer normalization and batch normalization."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from core.ir.builder import narrowed, widened
from core.ir.errors import ProgramError
from core.ir.precision import is_half
from core.ir.registry import Example, composite
from core.ir.slot_roles import Scale, Shift, Spread
from core.ops.common.ranges import NotNegative
from core.ops.common.types import product
from core.ops.elementwise.arithmetic import stop_gradient
from core.ops.elementwise.logic import where
from core.ops.elementwise.math import rsqrt, square
from core.ops.elementwise.rounding import isinf
from core.ops.reduction.sums import inverse_count, reduce_mean
from core.ops.shape.reshape import reshape, squeeze, unsqueeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
S, B = np.array([1.5, 0.5, 2.0]), np.array([0.1, -0.2, 0.3])
LIST = np.arange(1.0, 7.0) / 4


@composite
def layer_norm(x, scale: Scale = None, bias: Shift = None, *, begin_norm_axis: int = 1, epsilon: NotNegative = 1e-5):
    """Layer normalization: ``out = (x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from
    `begin_norm_axis` on.

    The variance is the mean squared distance from the mean. `scale` and `bias` broadcast against the normalized axes,
    or are vectors of all their elements in row-major order.
    """
    begin = begin_norm_axis + x.rank if begin_norm_axis < 0 else begin_norm_axis
    if not 0 <= begin < x.rank:
        raise ProgramError(f"begin_norm_axis {begin_norm_axis} is out of range for {x.type}", "bad_attr")
    axes = tuple(range(begin, x.rank))
    centred = x - reduce_mean(x, axes=axes, keepdims=True)
    variance = reduce_mean(square(centred), axes=axes, keepdims=True)
    out = centred * rsqrt(variance + epsilon)
    if scale is not None:
        out = out * _reshaped_if_flat(scale, x.shape[begin:])
    return out if bias is None else out + _reshaped_if_flat(bias, x.shape[begin:])


def _reshaped_if_flat(value, shape):
    """`value` reshaped to `shape` if it is a vector of all its elements; any other value unchanged."""
    if value.rank != 1 or len(shape) == 1 or value.shape[0] in (1, max(shape[-1], 1)):
        return value
    if -1 in (*shape, *value.shape):
        raise ProgramError(
            f"cannot decide whether {value.type} has one element per normalized element: its sizes must be known",
            "shape_mismatch",
        )
    return reshape(value, shape=shape) if value.shape[0] == math.prod(shape) else value


def _normal(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


layer_norm.example(
    lambda: [
        Example((X,), (_normal(X, (1,)),)),
        Example((X, S, B), (_normal(X, (1,)) * S + B,)),
        Example((X[None], S), (_normal(X[None], (1, 2), 1e-3) * S,), {"epsilon": 1e-3}),
        Example((X[None], LIST), (_normal(X[None], (1, 2)) * LIST.reshape(2, 3),)),
        Example((X[:0], S), (X[:0],)),
    ]
)


@composite(outputs=("out", "mean_out", "variance_out"))
def batch_norm(
    x,
    scale: Scale,
    bias: Shift,
    mean: Shift,
    variance: Spread,
    *,
    momentum: float = 0.9,
    epsilon: NotNegative = 1e-5,
    is_test: bool = False,
    use_global_stats: bool = False,
    data_layout: Literal["NCHW", "NHWC"] = "NCHW",
):
    """Batch normalization: each channel is normalized over all other axes: ``(x - m) / sqrt(v + epsilon) * scale +
    bias``.

    In training, m and v are the mean and the (biased) variance of the batch, and the running statistics are updated:
    ``mean_out = momentum * mean + (1 - momentum) * m``, and variance_out likewise. In a test, or with
    `use_global_stats`, m and v are the running statistics, which stay unchanged. They also stay unchanged for an empty
    batch. To keep the updates, write `mean_out` and `variance_out` over `mean` and `variance`. No gradient flows
    through the running statistics.

    An empty vector x is a batch without channels. Where x has 16 bits, each other operand may be float32; then all is
    computed in float32, and out has the dtype of x.

    - `data_layout`: channels are axis 1 (NCHW) or the last axis (NHWC).
    """
    operands = (x, scale, bias, mean, variance)
    wide = is_half(x.type) and any(each.dtype == "float32" for each in operands)
    if wide:
        x, scale, bias, mean, variance = map(widened, operands)
    fixed = is_test or use_global_stats
    results = _batch_normalised(x, scale, bias, mean, variance, momentum, epsilon, fixed, data_layout)
    if not wide:
        return results
    old, *_, old_mean, old_variance = operands
    return tuple(narrowed(each, v.type) for each, v in zip(results, (old, old_mean, old_variance), strict=True))


def _batch_normalised(x, scale, bias, mean, variance, momentum: float, epsilon: float, fixed: bool, data_layout: str):
    """`batch_norm` of operands of one dtype. fixed: normalise with the running statistics."""
    if x.shape in ((0,), (-1,)):
        x = x.builder.emit("check_shape", x, shape=(0,))
        return x + scale + bias, stop_gradient(mean), stop_gradient(variance)
    if x.rank < 2:
        raise ProgramError(f"batch_norm needs a batch and a channel axis, not {x.type}", "shape_mismatch")
    channel = 1 if data_layout == "NCHW" else x.rank - 1
    reduced = tuple(i for i in range(x.rank) if i != channel)

    def per_channel(value):
        return unsqueeze(value, axes=reduced) if reduced else value

    if fixed:
        m, v = per_channel(stop_gradient(mean)), per_channel(stop_gradient(variance))
        mean_out, variance_out = stop_gradient(mean), stop_gradient(variance)
    else:
        m = reduce_mean(x, axes=reduced, keepdims=True)
        v = reduce_mean(square(x - m), axes=reduced, keepdims=True)
        mean_out, variance_out = (
            stop_gradient(_updated(x, running, squeeze(now, axes=reduced), momentum, reduced))
            for running, now in ((mean, m), (variance, v))
        )
    out = (x - m) * rsqrt(v + epsilon) * per_channel(scale) + per_channel(bias)
    return out, mean_out, variance_out


def _updated(x, running, now, momentum: float, axes: tuple[int, ...]):
    """The running statistic after this batch. An empty batch leaves it unchanged."""
    count = product(x.shape[i] for i in axes)
    if count == 0:
        return running
    updated = running * momentum + now * (1.0 - momentum)
    if count > 0:
        return updated
    empty = isinf(inverse_count(x, axes=axes))
    return where(empty, running, updated)


def _bn_examples():
    r = np.random.default_rng(1)
    image = r.standard_normal((2, 3, 2, 2))
    running, spread = np.zeros(3), np.ones(3)
    per_channel = (slice(None), None, None)
    out = _normal(image, (0, 2, 3)) * S[per_channel] + B[per_channel]
    m, v = image.mean((0, 2, 3)), image.var((0, 2, 3))
    yield Example((image, S, B, running, spread), (out, 0.1 * m, 0.9 + 0.1 * v))
    yield Example(
        (image.transpose(0, 2, 3, 1), S, B, running, spread),
        (out.transpose(0, 2, 3, 1), 0.1 * m, 0.9 + 0.1 * v),
        {"data_layout": "NHWC"},
    )
    fixed = image / np.sqrt(1 + 1e-5) * S[per_channel] + B[per_channel]
    yield Example((image, S, B, running, spread), (fixed, running, spread), {"is_test": True})
    updated, wider = np.array([0.2, -0.1, 0.4]), np.array([0.5, 2.0, 1.5])
    rows = image[:, :, 0, 0]
    fixed = (rows - updated) / np.sqrt(wider + 1e-3) * S + B
    global_ = {"use_global_stats": True, "epsilon": 1e-3, "data_layout": "NHWC"}
    yield Example((rows, S, B, updated, wider), (fixed, updated, wider), global_)
    three = r.standard_normal((3, 2, 1))  # [n, c, length], with a different momentum
    m, v = three.mean((0, 2)), three.var((0, 2))
    out = _normal(three, (0, 2)) * S[:2, None] + B[:2, None]
    stats = (out, 0.5 * updated[:2] + 0.5 * m, 0.5 * wider[:2] + 0.5 * v)
    yield Example((three, S[:2], B[:2], updated[:2], wider[:2]), stats, {"momentum": 0.5})
    yield Example((three[:0], S[:2], B[:2], updated[:2], wider[:2]), (three[:0], updated[:2], wider[:2]))
    yield Example((np.zeros(0),) * 5, (np.zeros(0),) * 3)


batch_norm.example(_bn_examples)
