"""Normalisation."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.registry import Example, composite, lookup

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
S, B = np.array([1.5, 0.5, 2.0]), np.array([0.1, -0.2, 0.3])


@composite
def layer_norm(x, scale=None, bias=None, *, begin_norm_axis: int = 1, epsilon: float = 1e-5):
    """``out = (x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from `begin_norm_axis` on.

    The variance is the mean square distance from the mean. `scale` and `bias` broadcast against those axes.
    """
    begin = begin_norm_axis + x.rank if begin_norm_axis < 0 else begin_norm_axis
    if not 0 <= begin < x.rank:
        raise ProgramError(f"begin_norm_axis {begin_norm_axis} is out of range for {x.type}", "bad_attr")
    axes = tuple(range(begin, x.rank))
    centred = x - lookup("reduce_mean")(x, axes=axes, keepdims=True)
    variance = lookup("reduce_mean")(lookup("square")(centred), axes=axes, keepdims=True)
    out = centred * lookup("rsqrt")(variance + epsilon)
    if scale is not None:
        out = out * scale
    return out if bias is None else out + bias


def _normal(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


layer_norm.example(
    lambda: [
        Example((X,), (_normal(X, (1,)),)),
        Example((X, S, B), (_normal(X, (1,)) * S + B,)),
        Example((X[None], S), (_normal(X[None], (1, 2), 1e-3) * S,), {"epsilon": 1e-3}),
    ]
)


@composite(outputs=("out", "mean_out", "variance_out"))
def batch_norm(
    x,
    scale,
    bias,
    mean,
    variance,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    is_test: bool = False,
    use_global_stats: bool = False,
    data_layout: Literal["NCHW", "NHWC"] = "NCHW",
):
    """Normalise each channel over all other axes: ``(x - m) / sqrt(v + epsilon) * scale + bias``.

    In training m and v are the batch's own mean and (biased) variance, and the running statistics move towards them:
    ``mean_out = momentum * mean + (1 - momentum) * m``. In a test, or with `use_global_stats`, m and v are the running
    statistics, which stay. Write `mean_out` and `variance_out` over `mean` and `variance` to keep them. The running
    statistics carry no gradient. `data_layout` says whether channels are axis 1 or the last axis.
    """
    if x.rank < 2:
        raise ProgramError(f"batch_norm needs a batch and a channel axis, not {x.type}", "shape_mismatch")
    channel = 1 if data_layout == "NCHW" else x.rank - 1
    others = tuple(i for i in range(x.rank) if i != channel)
    stop = lookup("stop_gradient")

    def wide(value):
        return lookup("unsqueeze")(value, axes=others) if others else value

    if is_test or use_global_stats:
        m, v = wide(stop(mean)), wide(stop(variance))
        mean_out, variance_out = stop(mean), stop(variance)
    else:
        m = lookup("reduce_mean")(x, axes=others, keepdims=True)
        v = lookup("reduce_mean")(lookup("square")(x - m), axes=others, keepdims=True)
        mean_out = stop(mean * momentum + lookup("squeeze")(m, axes=others) * (1.0 - momentum))
        variance_out = stop(variance * momentum + lookup("squeeze")(v, axes=others) * (1.0 - momentum))
    out = (x - m) * lookup("rsqrt")(v + epsilon) * wide(scale) + wide(bias)
    return out, mean_out, variance_out


def _bn_examples():
    r = np.random.default_rng(1)
    image = r.standard_normal((2, 3, 2, 2))
    running, spread = np.zeros(3), np.ones(3)
    wide = (slice(None), None, None)
    out = _normal(image, (0, 2, 3)) * S[wide] + B[wide]
    m, v = image.mean((0, 2, 3)), image.var((0, 2, 3))
    yield Example((image, S, B, running, spread), (out, 0.1 * m, 0.9 + 0.1 * v))
    yield Example(
        (image.transpose(0, 2, 3, 1), S, B, running, spread),
        (out.transpose(0, 2, 3, 1), 0.1 * m, 0.9 + 0.1 * v),
        {"data_layout": "NHWC"},
    )
    fixed = image / np.sqrt(1 + 1e-5) * S[wide] + B[wide]
    yield Example((image, S, B, running, spread), (fixed, running, spread), {"is_test": True})


batch_norm.example(_bn_examples)
