"""Discrete Fourier transforms of real arrays, and of complex ones whose last axis holds real and imaginary parts."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Span
from core.ops.common.types import axis_of, floating, working_dtype
from core.ops.indexing.gather import slice_
from core.ops.shape.agreeing import shaped
from core.ops.shape.pad import pad_constant

__all__ = ["fft", "frequency_weights", "irfft", "rfft"]

Norm = Literal["backward", "ortho", "forward"]
TURNED: dict[str, Norm] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}

X = np.sin(np.arange(24.0) * 5 + 1).reshape(3, 4, 2)
LINE = np.cos(np.arange(10.0) * 3).reshape(2, 5)


@op
def dft(xp, x, *, axis: int = -2, inverse: bool = False, norm: Norm = "backward"):
    """Discrete Fourier transform along `axis` of complex numbers x [..., n, ..., 2], without a change of length: see
    `fft`.
    """
    if x.shape[-1] != 2:
        raise ExecutionError(f"the last axis must hold real and imaginary parts, not {x.shape[-1]}", "shape_mismatch")
    wide = x.astype(working_dtype(x), copy=False)
    function = xp.fft.ifft if inverse else xp.fft.fft
    found = function(wide[..., 0] + 1j * wide[..., 1], axis=axis % x.ndim, norm=norm)
    return xp.stack([found.real, found.imag], axis=-1).astype(x.dtype, copy=False)


def _transformed_axis(x: TensorType, axis: int) -> int:
    """The axis, counted from the front. Raises ProgramError unless x has it, and pairs along its last axis."""
    floating(x)
    at = axis_of(axis, x.rank)
    if x.rank < 2 or at == x.rank - 1 or x.shape[-1] not in (2, -1):
        raise ProgramError(
            f"axis {axis} of {x} must be followed by an axis of real and imaginary parts", "shape_mismatch"
        )
    if x.shape[at] == 0:
        raise ProgramError(f"cannot transform an empty axis of {x}", "shape_mismatch")
    return at


@dft.infer
def dft_infer(x, *, axis, inverse, norm):
    _transformed_axis(x, axis)
    return TensorType((*x.shape[:-1], 2), x.dtype)


# The transform is a symmetric matrix, so its adjoint is its conjugate: the transform in the other direction.
dft.vjp(lambda ct, out, x, *, axis, inverse, norm: dft(ct, axis=axis, inverse=not inverse, norm=TURNED[norm]))


def frequency_weights(n: int, inner: float, at: int, rank: int) -> np.ndarray:
    """Factors [..., n / 2 + 1, ..., 2] of the parts of the frequencies of n real numbers: `inner` if a frequency stands
    for its conjugate, too; else 1 and 0, because it is real.
    """
    found = np.full((n // 2 + 1, 2), inner)
    found[0] = found[(n + 1) // 2 :] = (1, 0)
    return found.reshape(*(n // 2 + 1 if i == at else 1 for i in range(rank)), 2)


@op
def real_dft(xp, x, *, axis: int = -1, norm: Norm = "backward", inner: float = 1.0):
    """Discrete Fourier transform along `axis` of real numbers, without a change of length: see `rfft`.

    `inner` is a factor of all frequencies but 0 and, for an even n, n / 2.
    """
    at = axis % x.ndim
    wide = x.astype(working_dtype(x), copy=False)
    found = xp.fft.rfft(wide, axis=at, norm=norm)
    pairs = xp.stack([found.real, found.imag], axis=-1)
    return (pairs * xp.asarray(frequency_weights(x.shape[at], inner, at, x.ndim), dtype=pairs.dtype)).astype(
        x.dtype, copy=False
    )


def _signal_axis(x: TensorType, axis: int) -> int:
    floating(x)
    at = axis_of(axis, x.rank)
    if x.shape[at] < 1:
        raise ProgramError(f"axis {axis} of {x} must have a known size above 0", "shape_mismatch")
    return at


@real_dft.infer
def real_dft_infer(x, *, axis, norm, inner):
    at = _signal_axis(x, axis)
    return TensorType((*x.shape[:at], x.shape[at] // 2 + 1, *x.shape[at + 1 :], 2), x.dtype)


@real_dft.vjp
def real_dft_vjp(ct, out, x, *, axis, norm, inner):
    at = axis % x.rank
    return real_from_dft(ct, n=x.shape[at], axis=at, norm=TURNED[norm], inner=inner / 2)


@op
def real_from_dft(xp, x, *, n: Span, axis: int = -2, norm: Norm = "backward", inner: float = 1.0):
    """`n` real numbers from all of their n / 2 + 1 frequencies x [..., n / 2 + 1, ..., 2]: see `irfft`.

    `inner` is a factor of all frequencies but 0 and, for an even n, n / 2.
    """
    at = axis % x.ndim
    if x.shape[at] != n // 2 + 1:
        raise ExecutionError(f"{n} numbers have {n // 2 + 1} frequencies, not {x.shape[at]}", "shape_mismatch")
    wide = x.astype(working_dtype(x), copy=False)
    factors = xp.asarray(frequency_weights(n, inner, at, x.ndim - 1), dtype=wide.dtype)
    sines = xp.where(factors[..., 1] == 0, 0, wide[..., 1]) * factors[..., 1]  # not even a NaN there has an effect
    z = wide[..., 0] * factors[..., 0] + 1j * sines
    return xp.fft.irfft(z, n, axis=at, norm=norm).astype(x.dtype, copy=False)


@real_from_dft.infer
def real_from_dft_infer(x, *, n, axis, norm, inner):
    at = _transformed_axis(x, axis)
    if x.shape[at] not in (-1, n // 2 + 1):
        raise ProgramError(f"{n} numbers have {n // 2 + 1} frequencies, not {x.shape[at]} as {x}", "shape_mismatch")
    return TensorType((*x.shape[:at], n, *x.shape[at + 1 : -1]), x.dtype)


@real_from_dft.vjp
def real_from_dft_vjp(ct, out, x, *, n, axis, norm, inner):
    return real_dft(ct, axis=axis % x.rank, norm=TURNED[norm], inner=2 * inner)


def _resized(x, n: int | None, at: int):
    """x with `n` elements along an axis: cut off, or followed by zeros."""
    if n is None or x.shape[at] == n:
        return x
    if x.shape[at] == -1:
        raise ProgramError(f"the size of axis {at} of {x.type} must be known to change it to {n}", "shape_mismatch")
    if x.shape[at] > n:
        return slice_(x, axes=(at,), starts=(0,), ends=(n,))
    after = n - x.shape[at]
    return pad_constant(x, paddings=tuple(after if i == 2 * at + 1 else 0 for i in range(2 * x.rank)))


@composite
def fft(x, *, n: Span | None = None, axis: int = -2, inverse: bool = False, norm: Norm = "backward"):
    """Discrete Fourier transform along `axis` of complex numbers x [..., n, ..., 2]: ``out[k] = sum of x[j] exp(-2 pi i
    j k / n)``.

    - `n`: the length of the transform; x is cut off or followed by zeros.
    - `inverse`: the opposite sign of the exponent.
    - `norm`: `backward` divides the inverse transform by n, `forward` the other one, `ortho` both by sqrt(n).
    """
    at = _transformed_axis(x.type, axis)
    return dft(_resized(x, n, at), axis=at, inverse=inverse, norm=norm)


@composite
def rfft(x, *, n: Span | None = None, axis: int = -1, norm: Norm = "backward"):
    """Discrete Fourier transform along `axis` of real numbers: the first frequencies as pairs [..., n / 2 + 1, ..., 2].
    The others are their conjugates.

    `n` and `norm` are as in `fft`.
    """
    floating(x.type)
    at = axis_of(axis, x.rank)
    x = _resized(x, n, at)
    if x.shape[at] < 1:
        raise ProgramError(f"axis {axis} of {x.type} must have a known size above 0", "shape_mismatch")
    return real_dft(x, axis=at, norm=norm)


@composite
def irfft(x, *, n: Span | None = None, axis: int = -2, norm: Norm = "backward"):
    """Real numbers [..., n, ...] whose `rfft` along `axis` is x [..., m, ..., 2].

    - `n`: the length of the result, by default 2 (m - 1); frequencies beyond n / 2 are left out, missing ones are 0.

    The imaginary parts of the frequency 0, and of n / 2 for an even n, have no effect.
    """
    at = _transformed_axis(x.type, axis)
    if x.shape[at] == -1:
        raise ProgramError(f"axis {axis} of {x.type} must have a known size", "shape_mismatch")
    n = 2 * (x.shape[at] - 1) if n is None else n
    if n < 1:
        raise ProgramError(f"the length of the result of {x.type} must be given and above 0", "bad_attr")
    x = shaped(x, (*(-1,) * (x.rank - 1), 2))
    return real_from_dft(_resized(x, n // 2 + 1, at), n=n, axis=at, norm=norm)


def _sum(x, axis, sign=-1, divisor=1.0):
    """The transform as a product with its matrix."""
    z = np.moveaxis(x[..., 0] + 1j * x[..., 1], axis, -1)
    n = z.shape[-1]
    found = np.moveaxis(z @ np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) / divisor, -1, axis)
    return np.stack([found.real, found.imag], -1)


def _pairs(z):
    return np.stack([z.real, z.imag], -1)


dft.example(
    lambda: [
        Example((X,), (_sum(X, 1),)),
        Example((X,), (_sum(X, 0, 1, 3),), {"axis": 0, "inverse": True}),
        Example((X[0],), (_sum(X[0], 0, -1, 2),), {"norm": "ortho"}),
        Example((X[:, :1],), (_sum(X[:, :1], 0, -1, 3),), {"axis": -3, "norm": "forward"}),
        Example((X[:0],), (X[:0],)),
    ]
)
fft.example(
    lambda: [
        Example((X,), (_sum(X, 1),)),
        Example((X,), (_sum(np.pad(X, ((0, 0), (0, 2), (0, 0))), 1, 1, 6),), {"n": 6, "inverse": True}),
        Example((X[0],), (_sum(X[0, :3], 0),), {"n": 3}),
        Example((X,), (_sum(X, 0, 1),), {"axis": 0, "inverse": True, "norm": "forward"}),
        Example((X[:0],), (X[:0],)),
    ]
)
rfft.example(
    lambda: [
        Example((LINE,), (_sum(_pairs(LINE + 0j), 1)[:, :3],)),
        Example((LINE,), (_sum(_pairs(np.pad(LINE, ((0, 0), (0, 1))) + 0j), 1)[:, :4],), {"n": 6}),
        Example((LINE[0],), (_sum(_pairs(LINE[0, :4] + 0j), 0, -1, 2)[:3],), {"n": 4, "norm": "ortho"}),
        Example((LINE,), (_sum(_pairs(LINE + 0j), 0)[:2],), {"axis": 0}),
        Example((LINE[:0],), (np.zeros((0, 3, 2)),)),
    ]
)


def _real(x, n, axis=0):
    """The sum of the cosines and sines of all frequencies."""
    z = np.moveaxis(x[..., 0] + 1j * x[..., 1], axis, -1)
    count = min(z.shape[-1], n // 2 + 1)
    times = np.where((np.arange(count) == 0) | (2 * np.arange(count) == n), 1, 2)
    phase = 2 * np.pi * np.outer(np.arange(count), np.arange(n)) / n
    found = (z.real[..., :count] * times) @ np.cos(phase) - (z.imag[..., :count] * times) @ np.sin(phase)
    return np.moveaxis(found / n, -1, axis)


irfft.example(
    lambda: [
        Example((X,), (_real(X, 6, 1),)),
        Example((X,), (_real(X, 7, 1),), {"n": 7}),
        Example((X[0],), (_real(X[0], 3),), {"n": 3}),
        Example((X,), (_real(X, 8, 0) * 8**0.5,), {"n": 8, "axis": 0, "norm": "ortho"}),
        Example((X[:0],), (np.zeros((0, 6)),)),
    ]
)


def _halved(z, n, axis, inner):
    """The frequencies that `real_dft` keeps of all of them, with their factor."""
    kept = np.moveaxis(z, axis, 0)[: n // 2 + 1]
    whole = np.array([inner if 0 < 2 * k < n else 1.0 for k in range(n // 2 + 1)])
    return np.moveaxis(kept * whole.reshape(-1, *(1 for _ in kept.shape[1:])), 0, axis)


real_dft.example(
    lambda: [
        Example((LINE,), (_halved(_sum(_pairs(LINE + 0j), 1), 5, 1, 1.0),)),
        Example((LINE[:, :4],), (_halved(_sum(_pairs(LINE[:, :4] + 0j), 1), 4, 1, 0.5),), {"inner": 0.5}),
        Example((LINE,), (_sum(_pairs(LINE + 0j), 0, -1, 2**0.5),), {"axis": 0, "norm": "ortho"}),
        Example((X[:, :1],), (_halved(_sum(_pairs(X[:, :1] + 0j), 0, -1, 3), 3, 0, 3.0),),
                {"axis": -3, "norm": "forward", "inner": 3.0}),
        Example((LINE[:, :1],), (_pairs(LINE[:, :1] + 0j),)),
        Example((LINE[:0],), (np.zeros((0, 3, 2)),)),
    ]
)  # fmt: skip
real_from_dft.example(
    lambda: [
        Example((X,), (_real(X, 6, 1),), {"n": 6}),
        Example((X,), (_real(X * [[[1], [0.5], [0.5], [0.5]]], 7, 1),), {"n": 7, "inner": 0.5}),
        Example((X[:, :3],), (_real(X[:, :3], 4, 0) * 2,), {"n": 4, "axis": 0, "norm": "ortho"}),
        Example((X[0, :1],), (X[0, :1, 0],), {"n": 1}),
        Example((X[:0],), (np.zeros((0, 6)),), {"n": 6}),
    ]
)
