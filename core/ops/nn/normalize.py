"""Normalization by instance, group, root mean square, neighbouring channels, norm and spectral norm."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from ml_dtypes import finfo

from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ir.slot_roles import Scale, Shift
from core.ops.common.ranges import Count, NotNegative, Positive
from core.ops.common.types import as_dtype, axis_of
from core.ops.elementwise.arithmetic import pow_, stop_gradient
from core.ops.elementwise.logic import equal, where
from core.ops.elementwise.math import clip, rsqrt, square
from core.ops.indexing.gather import shifted_view
from core.ops.linalg.matmul import matmul
from core.ops.reduction.statistics import norm
from core.ops.reduction.sums import reduce_mean, reduce_sum, sum_
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.pad import pad
from core.ops.shape.reshape import divided, reshape, reshape_to, transpose, unsqueeze

__all__: list[str] = []

X = np.sin(np.arange(24.0) * 5).reshape(2, 4, 3)
IMAGE = np.cos(np.arange(32.0) * 3).reshape(1, 4, 2, 4)
GAIN, SHIFT = np.array([1.0, 2.0, 0.5, -1.0]), np.array([0.1, 0.2, 0.3, 0.4])


def _channel(value, rank: int):
    """A vector of channels, shaped to broadcast over [n, c, *spatial]."""
    return unsqueeze(value, axes=tuple(range(1, rank - 1))) if rank > 2 else value


def _standardised(x, axes: tuple[int, ...], epsilon: float):
    centred = x - reduce_mean(x, axes=axes, keepdims=True)
    variance = reduce_mean(square(centred), axes=axes, keepdims=True)
    return centred * rsqrt(variance + epsilon)


def _affine(x, scale, bias):
    if scale is not None:
        x = x * _channel(scale, x.rank)
    return x if bias is None else x + _channel(bias, x.rank)


def _spatial(x) -> tuple[int, ...]:
    if x.rank < 3:
        raise ProgramError(f"needs [batch, channels, *spatial], not {x.type}", "shape_mismatch")
    return tuple(range(2, x.rank))


@composite
def instance_norm(x, scale: Scale = None, bias: Shift = None, *, epsilon: NotNegative = 1e-5):
    """Instance normalization (Ulyanov et al. 2016): ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Mean and variance are taken over the spatial axes, for each channel of each sample of x [n, c, *spatial]. The
    variance has no Bessel correction.
    """
    return _affine(_standardised(x, _spatial(x), epsilon), scale, bias)


@composite
def group_norm(x, scale: Scale = None, bias: Shift = None, *, groups: Count, epsilon: NotNegative = 1e-5):
    """Group normalization (Wu and He 2018): `instance_norm` over `groups` equal groups of channels."""
    c = x.shape[1] if x.rank > 1 else 0
    if c == 0 or (c > 0 and c % groups):
        raise ProgramError(f"the channels of {x.type} are not a multiple of {groups} groups", "bad_attr")
    out = _standardised(divided(x, 1, (groups, -1)), tuple(range(2, x.rank + 1)), epsilon)
    return _affine(reshape_to(out, x), scale, bias)


@composite
def rms_norm(x, scale: Scale = None, *, begin_axis: int = -1, epsilon: NotNegative = 1e-6):
    """Root mean square normalization (Zhang and Sennrich 2019): ``x / sqrt(mean(x ** 2) + epsilon) * scale``.

    The mean is over the axes from `begin_axis` on.
    """
    axes = tuple(range(axis_of(begin_axis, x.rank), x.rank))
    out = x * rsqrt(reduce_mean(square(x), axes=axes, keepdims=True) + epsilon)
    return out if scale is None else out * scale


@composite
def l2_normalize(x, *, axis: int = -1, epsilon: NotNegative = 1e-12):
    """x divided by its 2-norm along `axis`: ``x / sqrt(max(sum(x ** 2), epsilon))``.

    Zeros stay zeros, even if `epsilon` underflows in the dtype of x.
    """
    total = reduce_sum(square(x), axes=(axis_of(axis, x.rank),), keepdims=True)
    least = float(finfo(as_dtype(x.dtype)).smallest_normal) if x.type.is_float else 0.0
    return x * rsqrt(clip(total, min=max(epsilon, least)))


@composite
def lp_normalize(x, *, p: Positive = 2.0, axis: int = -1):
    """x divided by its p-norm along `axis`: ``x / sum(|x| ** p) ** (1 / p)``. Zeros stay zeros, with gradient 0."""
    length = norm(x, p=p, axes=(axis_of(axis, x.rank),), keepdims=True)
    nothing = equal(length, fill_zeros_like(length))
    return where(nothing, fill_zeros_like(x), x / where(nothing, full_like(length, value=1.0), length))


@composite
def lrn(x, *, n: Count = 5, k: float = 1.0, alpha: float = 1e-4, beta: float = 0.75):
    """Local response normalization (Krizhevsky et al. 2012) of x [n, c, *spatial].

    ``x / (k + alpha * sum of squares of n neighbouring channels) ** beta``. With an even n there is one more neighbour
    before than after.
    """
    _spatial(x)
    c = x.shape[1]
    before, after = n // 2, n - 1 - n // 2
    if c >= 0:  # no more neighbours than channels
        before, after = min(before, max(c - 1, 0)), min(after, max(c - 1, 0))
    if before + after >= 1000:
        raise ProgramError(f"n covers {before + after + 1} channels, more than the limit of 1000", "bad_attr")
    borders = (0, 0, before, after, *(0,) * (2 * (x.rank - 2)))
    padded = pad(square(x), paddings=borders)
    parts = [shifted_view(padded, 1, i, before + after) for i in range(before + after + 1)]
    total = sum_(*parts) * alpha + k
    return x * pow_(total, full_like(total, value=-beta))


@composite(outputs=("out", "u_out", "v_out"))
def spectral_norm(
    weight,
    u,
    v,
    *,
    axis: int = 0,
    power_iterations: Annotated[int, Bounds(ge=0, le=100)] = 1,
    epsilon: NotNegative = 1e-12,
):
    """Spectral normalization (Miyato et al. 2018): ``weight / (u @ weight @ v)``, the largest singular value by power
    iteration.

    The weight is used as a matrix with `axis` as rows [h] and all other axes as columns [w]. u [h] and v [w] are state
    from step to step. The gradient treats them as constants; it flows through the weight and the estimated singular
    value. `power_iterations` is at most 100.
    """
    at = axis_of(axis, weight.rank)
    if -1 in weight.shape:
        raise ProgramError(f"spectral_norm needs known sizes, not {weight.type}", "shape_mismatch")
    order = (at, *(i for i in range(weight.rank) if i != at))
    rows = weight.shape[at]
    matrix = reshape(transpose(weight, axes=order), shape=(rows, -1) if rows else (0, 0))
    fixed = stop_gradient(matrix)
    u, v = stop_gradient(u), stop_gradient(v)
    for _ in range(power_iterations):
        v = l2_normalize(matmul(u, fixed), epsilon=epsilon)
        u = l2_normalize(matmul(fixed, v), epsilon=epsilon)
    sigma = matmul(matmul(u, matrix), v)
    return weight / sigma, u, v


@composite
def weight_norm(v, g, *, axis: int = 0):
    """Weight normalization: ``g * v / norm(v)``, with the 2-norm over all axes but `axis`.

    g has one element for each slice along `axis`. A slice of zeros gives NaN.
    """
    at = axis_of(axis, v.rank)
    length = norm(v, axes=tuple(i for i in range(v.rank) if i != at), keepdims=True)
    scale = unsqueeze(g, axes=tuple(range(1, v.rank - at))) if v.rank - at > 1 else g
    return v / length * scale


def _normal(x, axes, epsilon=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


instance_norm.example(
    lambda: [
        Example((X,), (_normal(X, 2),)),
        Example((IMAGE, GAIN, SHIFT), (_normal(IMAGE, (2, 3)) * GAIN[:, None, None] + SHIFT[:, None, None],)),
        Example((X[:0], GAIN), (X[:0],)),
    ]
)


def _grouped(x, groups):
    shape = (x.shape[0], groups, -1) if x.size else (0, groups, 0)
    return _normal(x.reshape(shape), 2).reshape(x.shape)


group_norm.example(
    lambda: [
        Example((X,), (_grouped(X, 2),), {"groups": 2}),
        Example(
            (IMAGE, GAIN, SHIFT), (_grouped(IMAGE, 2) * GAIN[:, None, None] + SHIFT[:, None, None],), {"groups": 2}
        ),
        Example((X[:, :, 0], GAIN), (_grouped(X[:, :, 0], 1) * GAIN,), {"groups": 1}),
        Example((X[:0],), (X[:0],), {"groups": 4}),
    ]
)


def _rms(x, axes):
    return x / np.sqrt((x**2).mean(axes, keepdims=True) + 1e-6)


rms_norm.example(
    lambda: [
        Example((X,), (_rms(X, -1),)),
        Example((X[:, :, 0], GAIN), (_rms(X[:, :, 0], -1) * GAIN,)),
        Example((X,), (_rms(X, (1, 2)),), {"begin_axis": 1}),
        Example((X[:0],), (X[:0],)),
    ]
)
l2_normalize.example(
    lambda: [
        Example((X,), (X / np.sqrt((X**2).sum(-1, keepdims=True)),)),
        Example((X,), (X / np.sqrt((X**2).sum(1, keepdims=True)),), {"axis": 1}),
        Example((X[:0],), (X[:0],)),
        Example((X[0, 0],), (X[0, 0] / np.sqrt((X[0, 0] ** 2).sum()),)),
    ]
)


def _lrn(x, n, k, alpha, beta):
    out = np.zeros(x.shape)
    for c in range(x.shape[1]):
        low = c - n // 2
        neighbours = x[:, max(low, 0) : max(low + n, 0)]
        out[:, c] = x[:, c] / (k + alpha * (neighbours**2).sum(1)) ** beta
    return out


lp_normalize.example(
    lambda: [
        Example((X,), (X / np.sqrt((X**2).sum(-1, keepdims=True)),)),
        Example((GAIN,), (GAIN / 4.5,), {"p": 1.0, "axis": 0}),
        Example((IMAGE,), (IMAGE / (np.abs(IMAGE) ** 3).sum(-1, keepdims=True) ** (1 / 3),), {"p": 3.0}),
        Example((X[:0],), (X[:0],)),
        Example((np.array([[0.0, 0.0], [3.0, -4.0]]),), (np.array([[0.0, 0.0], [0.6, -0.8]]),), smooth=False),
    ]
)
lrn.example(
    lambda: [
        Example((X,), (_lrn(X, 3, 2, 0.5, 0.75),), {"n": 3, "k": 2.0, "alpha": 0.5}),
        Example((IMAGE,), (_lrn(IMAGE, 2, 1, 0.3, 0.5),), {"n": 2, "alpha": 0.3, "beta": 0.5}),
        Example((X,), (_lrn(X, 9, 1, 0.2, 0.75),), {"n": 9, "alpha": 0.2}),
        Example((X[:0],), (X[:0],)),
    ]
)


def _spectral(w, u, axis):
    m = np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)
    v = u @ m / np.linalg.norm(u @ m)
    u = m @ v / np.linalg.norm(m @ v)
    return w / (u @ m @ v), u, v


_W = X[0]
spectral_norm.example(
    lambda: [
        Example(
            (_W, GAIN, SHIFT[:3]), _spectral(_W, GAIN, 0), smooth=False
        ),  # the gradient treats u and v as constants
        Example((X, SHIFT[:3], np.ones(8)), _spectral(X, SHIFT[:3], 2), {"axis": 2}, smooth=False),
        *(
            Example((w, u, v), (w / (u @ w.reshape(len(u), -1) @ v), u, v), {"power_iterations": 0})
            for w, u, v in ((_W, GAIN, SHIFT[:3]), (_W[:2], GAIN[:2], SHIFT[:3]), (X[:, :, :1], GAIN[:2], SHIFT))
        ),
    ]
)
weight_norm.example(
    lambda: [
        Example((_W, GAIN), (_W / np.linalg.norm(_W, axis=1, keepdims=True) * GAIN[:, None],)),
        Example((_W, SHIFT[:3]), (_W / np.linalg.norm(_W, axis=0) * SHIFT[:3],), {"axis": 1}),
        Example((X, GAIN), (X / np.sqrt((X**2).sum((0, 2), keepdims=True)) * GAIN[:, None],), {"axis": 1}),
    ]
)
