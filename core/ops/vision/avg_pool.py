"""Sums over windows, and the means and p-norms computed from them.

`window_sum` and its transpose are the gradients of each other.
"""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Positive, Reach, Span
from core.ops.common.types import matches
from core.ops.common.windows import sizes, wide
from core.ops.elementwise.arithmetic import abs_, pow_
from core.ops.elementwise.logic import equal, where
from core.ops.elementwise.math import square
from core.ops.indexing.gather import slice_
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.vision.max_pool import (
    BOXES,
    IMAGES,
    LINES,
    by_window_elements,
    cases,
    check_rank,
    geometry,
    pool_shape,
    window_elements,
    windows,
)

__all__: list[str] = []


@op
def window_sum(
    xp,
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """Sum over each window of x [n, c, *spatial]: ``out[..., i] = x[..., i s] + ... + x[..., i s + (k - 1) d]``.

    s is the stride, k the size of the window and d its dilation. Elements outside x count as 0.
    """
    shape = pool_shape(TensorType(x.shape, "float64"), kernel_size, strides, paddings, dilations, ceil_mode).shape
    source = wide(x)
    out = xp.zeros(shape, source.dtype)
    for _, at, inside in windows(x.shape[2:], shape[2:], kernel_size, strides, paddings, dilations):
        block = source[(..., *inside)]
        out[(..., *at)] += block.sum(tuple(range(2, x.ndim))) if isinstance(at[0], int) else block
    return out.astype(x.dtype, copy=False)


window_sum.infer(lambda x, **attrs: pool_shape(x, **attrs))
window_sum.vjp(lambda ct, out, x, **attrs: window_sum_adjoint(ct, x, **attrs))


@op
def window_sum_adjoint(
    xp,
    ct,
    like,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """Cotangent of the input of `window_sum`. `like` gives the shape of the input."""
    given = wide(ct)
    out = xp.zeros(like.shape, given.dtype)
    for _, at, inside in windows(like.shape[2:], ct.shape[2:], kernel_size, strides, paddings, dilations):
        block = given[(..., *at)]
        out[(..., *inside)] += block.reshape(*ct.shape[:2], *(1,) * len(inside)) if block.ndim == 2 else block
    return out.astype(ct.dtype, copy=False)


@window_sum_adjoint.infer
def window_sum_adjoint_infer(ct, like, **attrs):
    wanted = pool_shape(TensorType(like.shape, ct.dtype), **attrs)
    if not matches(ct, wanted):
        raise ProgramError(f"the windows of {like} have type {wanted}, not {ct}", "shape_mismatch")
    return TensorType(like.shape, ct.dtype)


window_sum_adjoint.vjp(lambda ct, out, given, like, **attrs: (window_sum(ct, **attrs), None))


@op(no_gradient="it is a constant")
def window_sizes(
    xp,
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """The number of elements in each window of x [n, c, *spatial], padding included: [1, 1, *windows] in its dtype.

    With `ceil_mode` the last window of an axis may extend beyond the padding, where there are no elements.
    """
    shape = pool_shape(TensorType(x.shape, "float64"), kernel_size, strides, paddings, dilations, ceil_mode).shape
    kernel, *how = geometry(x.ndim - 2, kernel_size, strides, paddings, dilations)
    out = xp.ones((1, 1, *(1 for _ in kernel)), "float64")
    for axis, (size, count, k, s, p, d) in enumerate(zip(x.shape[2:], shape[2:], kernel, *how, strict=True)):
        along = xp.minimum((sum(p) + size - xp.arange(count) * s + d - 1) // d, k)
        out = out * along.reshape(-1, *(1 for _ in kernel[axis + 1 :]))
    return out.astype(x.dtype)


@window_sizes.infer
def window_sizes_infer(x, **attrs):
    return TensorType((1, 1, *pool_shape(x, **attrs).shape[2:]), x.dtype)


# --- the ops that clients use ----------------------------------------------------------------------------------


def _windows_of(kernel_size, strides, paddings, dilations, ceil_mode):
    """The attributes of `window_sum` and `window_sizes`."""
    return {
        "kernel_size": kernel_size,
        "strides": strides,
        "paddings": paddings,
        "dilations": dilations,
        "ceil_mode": ceil_mode,
    }


def _average(x, n, exclusive, **attrs):
    check_rank(x, n)
    total = window_sum(x, **attrs)
    if exclusive and (any(attrs["paddings"]) or attrs["ceil_mode"]):  # otherwise every window lies inside x
        one = slice_(
            x, axes=(0, 1), starts=(0, 0), ends=(1, 1)
        )  # the windows are the same for all samples and channels
        return total / window_sum(full_like(one, value=1.0), **attrs)
    if attrs["ceil_mode"] and _may_overhang(x, **attrs):
        return total / window_sizes(x, **attrs)
    return total / math.prod(sizes(attrs["kernel_size"], n, "kernel_size", 1))


def _may_overhang(x, kernel_size, strides, paddings, dilations, ceil_mode) -> bool:
    """Whether the last window of an axis may extend beyond the padding."""
    axes = zip(x.shape[2:], *geometry(x.rank - 2, kernel_size, strides, paddings, dilations), strict=True)
    return any(size == -1 or (size + sum(p) - d * (k - 1) - 1) % s for size, k, s, p, d in axes)


@composite
def avg_pool1d(
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
    exclusive: bool = True,
):
    """Mean over windows of one spatial axis, x [n, c, length]: see `avg_pool2d`."""
    attrs = _windows_of(kernel_size, strides, paddings, dilations, ceil_mode)
    return _average(x, 1, exclusive, **attrs)


@composite
def avg_pool2d(
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0, 0),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
    exclusive: bool = True,
):
    """Mean over each window of x [n, c, h, w]: ``out[..., i, j] = mean(x[..., i s : i s + k, j s : j s + k])``.

    s is the stride and k the size of the window.

    - `exclusive`: divide by the number of elements of x in the window; otherwise by that number and the padding in it.

    `strides` equal the window size by default. With `ceil_mode` the last window may extend beyond the end of the
    padding; the part beyond counts for nothing. With `dilations` d the elements of a window are d apart.
    """
    attrs = _windows_of(kernel_size, strides, paddings, dilations, ceil_mode)
    return _average(x, 2, exclusive, **attrs)


@composite
def avg_pool3d(
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
    exclusive: bool = True,
):
    """Mean over windows of three spatial axes, x [n, c, depth, h, w]: see `avg_pool2d`."""
    attrs = _windows_of(kernel_size, strides, paddings, dilations, ceil_mode)
    return _average(x, 3, exclusive, **attrs)


@composite
def lp_pool(
    x,
    *,
    p: Positive = 2.0,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """p-norm of each window of x [n, c, *spatial]: ``sum(|x| ** p) ** (1 / p)``. A window of zeros has gradient 0."""
    attrs = _windows_of(kernel_size, strides, paddings, dilations, ceil_mode)

    def safe_power(base, exponent):
        """base ** exponent, with gradient 0 where base is 0."""
        zero, one = fill_zeros_like(base), full_like(base, value=1.0)
        nothing = equal(base, zero)
        return where(nothing, zero, pow_(where(nothing, one, base), one * exponent))

    if p == 1:
        return window_sum(abs_(x), **attrs)
    each = square(x) if p == 2 else safe_power(abs_(x), p)
    return safe_power(window_sum(each, **attrs), 1.0 / p)


# --- examples --------------------------------------------------------------------------------------------------


_totals = by_window_elements(lambda found: sum(value for value, _ in found))
_means = by_window_elements(lambda found: np.mean([value for value, _ in found]))


window_sum.example(cases((*LINES[:3], IMAGES[2], BOXES[2], IMAGES[4], LINES[-1], IMAGES[-1], BOXES[-1]), _totals))


def _average_cases(given):
    yield from cases(given, _means)()
    x, attrs = given[1]
    yield Example((x,), (_totals(x, **attrs) / 3 ** (x.ndim - 2),), {**attrs, "kernel_size": (3,), "exclusive": False})


def _ceil_case():
    """Windows 0:3, 2:5 and 4:7 of [0, x0, x1, x2, x3, 0]; the last holds two elements, one of them padding."""
    x = LINES[0][0][:1, :1, :4]
    sums = np.stack([x[..., :2].sum(-1), x[..., 1:4].sum(-1), x[..., 3]], -1)
    attrs = {"kernel_size": (3,), "strides": (2,), "paddings": (1,), "ceil_mode": True, "exclusive": False}
    yield Example((x,), (sums / np.array([3, 3, 2]),), attrs)


avg_pool1d.example(lambda: [*_average_cases(LINES), *_ceil_case()])
avg_pool2d.example(lambda: _average_cases(IMAGES))
avg_pool3d.example(lambda: cases(BOXES, _means)())


def _lp_examples():
    given = ((2.0, LINES[1]), (1.0, IMAGES[3]), (3.0, BOXES[1]), (1.5, LINES[2]), (2.0, LINES[3]), (3.0, IMAGES[-1]))
    for p, (x, attrs) in given:
        wanted = by_window_elements(lambda found, p=p: sum(abs(value) ** p for value, _ in found) ** (1 / p))
        yield Example((x - 0.55,), (wanted(x - 0.55, **attrs),), {**attrs, "p": p})
    yield Example((np.zeros((1, 1, 4)),), (np.zeros((1, 1, 2)),), {"kernel_size": (2,)}, smooth=False)


lp_pool.example(_lp_examples)
window_sizes.example(
    lambda: [
        Example((np.zeros((2, 3, 5)),), (np.array([[[3.0, 3, 3]]]),),
                {"kernel_size": (3,), "strides": (2,), "paddings": (1,)}),
        Example((np.zeros((1, 1, 4)),), (np.array([[[3.0, 3, 2]]]),),
                {"kernel_size": (3,), "strides": (2,), "paddings": (1,), "ceil_mode": True}),
        Example((np.zeros((0, 1, 3, 5)),), (np.array([[[[4.0, 4, 2], [2, 2, 1]]]]),),
                {"kernel_size": (2,), "ceil_mode": True}),
        Example((np.zeros((1, 1, 8)),), (np.array([[[3.0, 2]]]),),
                {"kernel_size": (3,), "strides": (4,), "dilations": (3,), "ceil_mode": True}),
    ]
)  # fmt: skip


def _adjoint_examples():
    for x, attrs in (LINES[1], IMAGES[2], IMAGES[3], LINES[3], LINES[-1], IMAGES[-1]):
        elements_of, shape = window_elements(x, **attrs)
        ct = np.random.default_rng(7).standard_normal(shape)
        out = np.zeros((*x.shape[:2], math.prod(x.shape[2:])))
        for at, found in elements_of.items():
            for _, position in found:
                out[(*at[:2], position)] += ct[at]
        yield Example((ct, x), (out.reshape(x.shape),), attrs)


window_sum_adjoint.example(_adjoint_examples)
