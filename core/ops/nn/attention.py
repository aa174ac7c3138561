"""Attention, rotary positions and lookahead convolution."""

from __future__ import annotations

import math

import numpy as np

from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import NotNegative, Positive
from core.ops.common.types import same_size
from core.ops.elementwise.arithmetic import cast, maximum, stop_gradient
from core.ops.elementwise.logic import greater_than, logical_and, where
from core.ops.elementwise.math import cos, exp, sin, sqrt, tanh
from core.ops.indexing.gather import shifted_view, slice_
from core.ops.linalg.matmul import matmul
from core.ops.nn.softmax_loss import of_nothing, softmax
from core.ops.reduction.sums import inverse_count, reduce_max, reduce_sum, sum_
from core.ops.shape.agreeing import agreed
from core.ops.shape.concat_split import concat, split
from core.ops.shape.creation import full_like
from core.ops.shape.diagonals import triangle_mask_like
from core.ops.shape.pad import pad
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

Q = np.sin(np.arange(12.0)).reshape(2, 3, 2)
K = np.cos(np.arange(16.0)).reshape(2, 4, 2)
V = np.sin(np.arange(24.0) * 3).reshape(2, 4, 3)


@composite
def scaled_dot_product_attention(
    query, key, value, mask=None, *, causal: bool = False, scale: float | None = None, softcap: NotNegative = 0.0
):
    """Scaled dot-product attention: ``softmax(query @ key.T * scale + mask) @ value`` (Vaswani et al. 2017).

    query is [..., l, d], key [..., s, d] and value [..., s, e].

    - `scale`: ``1 / sqrt(d)`` by default.
    - `mask`: a bool mask is true at visible positions. A mask of another dtype is added to the scores; -inf hides a
      position.
    - `causal`: position i sees positions 0 to i of the key. Both sequences start at the same position.

    - `softcap`: if above 0, scores s become ``softcap * tanh(s / softcap)`` before the mask (Gemma Team 2024).

    A query position without visible keys gives zeros, with gradient 0.
    """
    if query.rank < 2 or key.rank != query.rank or value.rank != query.rank:
        raise ProgramError(
            f"attention needs equal ranks of at least 2, not {query.type}, {key.type} and {value.type}",
            "shape_mismatch",
        )
    if mask is None:
        same_size(key.shape[-2], value.shape[-2], f"{key.type} and {value.type} differ in length")
    else:  # which could repeat a single key
        key, value = agreed(key, value, (key.rank - 2, key.rank - 2))
    if scale is None:
        if query.shape[-1] == 0:
            raise ProgramError(f"the last axis of {query.type} must not be empty", "shape_mismatch")
        scale = 1.0 / math.sqrt(query.shape[-1]) if query.shape[-1] > 0 else sqrt(inverse_count(query, axes=(-1,)))
    scores = _scaled_product(query, key, scale)
    if softcap > 0:
        scores = tanh(scores / softcap) * softcap
    if mask is None and not causal:
        return matmul(softmax(scores), value)
    if mask is not None and mask.dtype != "bool":
        scores, mask = scores + mask, None
    if causal:
        past = triangle_mask_like(scores)
        mask = past if mask is None else logical_and(mask, past)
    last = (-1,)
    least = -1e30 if scores.dtype != "float16" else -6e4
    masked = scores if mask is None else where(mask, scores, full_like(scores, value=least))
    if masked.shape[-1] == 0:
        return matmul(masked, value)
    top = stop_gradient(reduce_max(masked, axes=last, keepdims=True, empty=of_nothing(masked.shape[-1])))
    top = maximum(top, full_like(top, value=least))  # a finite maximum, because a row of -inf minus -inf would be NaN
    weight = exp(masked - top)
    if mask is not None:
        weight = where(mask, weight, full_like(scores, value=0.0))
    total = reduce_sum(weight, axes=last, keepdims=True)
    visible = greater_than(total, full_like(total, value=0.0))
    weight = weight / where(visible, total, full_like(total, value=1.0))
    return matmul(weight, value)


def _scaled_product(query, key, scale):
    """``query @ key.T * scale``. In float16 the query is scaled first: the product alone may overflow."""
    if query.dtype != "float16":
        return matmul(query, key, transpose_y=True) * scale
    if not isinstance(scale, float) or scale == 0.0:
        return matmul(query * scale, key, transpose_y=True)
    first = 2.0 ** min(math.floor(math.log2(abs(scale))), 0)  # a power of 2, by which the query is scaled exactly
    scores = matmul(query * first, key, transpose_y=True)
    return scores if scale == first else scores * (scale / first)


def _attend(q, k, v, mask=None, scale=None):
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    weight = np.exp(scores) if mask is None else np.exp(scores) * mask
    return weight @ v / np.maximum(weight.sum(-1, keepdims=True), 1e-300)


def _capped(q, k, v, cap):
    scores = cap * np.tanh(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) / cap)
    return np.exp(scores) @ v / np.exp(scores).sum(-1, keepdims=True)


_MASK = np.array([[True, False, True, True], [False, False, False, False], [True, True, False, True]])
_ADDED = np.where(_MASK, 0.5, -np.inf)
scaled_dot_product_attention.example(
    lambda: [
        Example((Q, K, V), (_attend(Q, K, V),)),
        Example((Q, K, V, _MASK), (_attend(Q, K, V, _MASK),)),
        Example(
            (Q, K, V, Q @ K.swapaxes(1, 2)), (_attend(Q, K, V, np.exp(Q @ K.swapaxes(1, 2)), 0.5),), {"scale": 0.5}
        ),
        Example((Q, K, V, _ADDED), (_attend(Q, K, V, np.exp(_ADDED)),)),
        Example((Q[0], K[0], V[0]), (_attend(Q[0], K[0], V[0], np.tri(3, 4, dtype=bool)),), {"causal": True}),
        Example((Q[:0], K[:0], V[:0]), (np.zeros((0, 3, 3)),)),
        Example((Q, K, V), (_capped(Q, K, V, 0.8),), {"softcap": 0.8}),
    ]
)


@composite
def rotary_embedding(x, positions, *, base: Positive = 10000.0):
    """Rotary position embedding (Su et al. 2021): each pair (i, i + d / 2) of the last axis of x [..., l, d] is
    rotated.

    The angle is ``position * base ** (-2 i / d)``.

    - `positions`: [l], or any shape that broadcasts to [..., l]; integers, or the dtype of x. Positions in half
      precision give angles in half precision.
    """
    d = x.shape[-1] if x.rank > 1 else 1
    if d < 2 or d % 2:
        raise ProgramError(f"the last axis of {x.type} must be known and even", "shape_mismatch")
    half = d // 2
    exponents = x.builder.emit("linspace", start=0.0, stop=2.0 / d - 1.0, num=half, dtype="float64")
    rates = exp(exponents * math.log(base))
    if not positions.type.is_float and positions.dtype != "bool":
        angle = unsqueeze(cast(positions, dtype="float64"), axes=(-1,)) * rates
    else:
        angle = unsqueeze(positions, axes=(-1,)) * cast(rates, dtype=x.dtype)
    cosine, sine = cast(cos(angle), dtype=x.dtype), cast(sin(angle), dtype=x.dtype)
    a, b = split(x, num=2, axis=x.rank - 1)
    return concat(a * cosine - b * sine, a * sine + b * cosine, axis=x.rank - 1)


def _rope(x, positions):
    half = x.shape[-1] // 2
    angle = positions[..., None] * 10000.0 ** (-2 * np.arange(half) / x.shape[-1])
    rotated = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([rotated.real, rotated.imag], -1)


_L = np.arange(3.0)
_WIDE = np.sin(np.arange(24.0)).reshape(2, 3, 4)
rotary_embedding.example(
    lambda: [
        Example((_WIDE, _L), (_rope(_WIDE, _L),)),
        Example((Q, np.arange(3) * 7), (_rope(Q, np.arange(3) * 7.0),)),
        Example((Q, np.stack([_L, _L + 5])), (_rope(Q, np.stack([_L, _L + 5])),)),
        Example((Q[:, :0], _L[:0]), (Q[:, :0],)),
    ]
)


@composite
def row_conv(x, filter):
    """Lookahead convolution of Deep Speech 2 (Amodei et al. 2016): ``out[t] = sum over k of filter[k] * x[t + k]``.

    x is [batch, time, d] and the filter [k, d]. Beyond the end of the sequence x counts as 0.
    """
    if x.rank != 3 or filter.rank != 2 or filter.shape[0] < 1:
        raise ProgramError(
            f"row_conv takes [batch, time, d], and [k, d] of known k, not {x.type} and {filter.type}",
            "shape_mismatch",
        )
    time, k = x.shape[1], filter.shape[0]
    if time >= 0:
        k = min(k, max(time, 1))  # filter rows beyond the sequence meet only zeros
    if k > 1000:
        raise ProgramError(f"row_conv looks ahead at most 1000 steps, not {k}", "shape_mismatch")
    padded = pad(x, paddings=(0, 0, 0, k - 1, 0, 0))
    parts = []
    for i in range(k):
        past = shifted_view(padded, 1, i, k - 1)
        parts.append(past * slice_(filter, axes=(0,), starts=(i,), ends=(i + 1,)))
    return sum_(*parts)


def _row_conv(x, f):
    out = np.zeros(x.shape)
    for t in range(x.shape[1]):
        for k in range(len(f)):
            if t + k < x.shape[1]:
                out[:, t] += f[k] * x[:, t + k]
    return out


_FILTER = np.sin(np.arange(18.0) * 2).reshape(3, 2, 3)[:, 0]
row_conv.example(
    lambda: [
        Example((V, _FILTER), (_row_conv(V, _FILTER),)),
        Example((Q, K[0, :1]), (_row_conv(Q, K[0, :1]),)),
        Example((Q[:0], K[0]), (Q[:0],)),
    ]
)
