"""Fourier transforms."""

from __future__ import annotations

import numpy as np

from core.onnx.writing.registry import writes
from core.ops.signal.fourier import frequency_weights

# mypy: disable-error-code="no-untyped-def"


@writes("dft")
def dft(w, x, *, axis, inverse, norm):
    """A `DFT` behind a batch axis. The inverse is the conjugate of the transform of the conjugate numbers.

    onnxruntime divides an inverse transform by a length that it rounds to float32, so no inverse is written.
    """
    v = w.wide(x)
    at = axis % x.rank
    conjugate = w.const([1.0, -1.0], v.dtype)
    batched = w.unsqueeze(w.mul(v, conjugate) if inverse else v, [0])
    found = w.squeeze(w.node("DFT", batched, None, w.const(at + 1, "int64"), shape=batched.shape), [0])
    found = w.mul(found, conjugate) if inverse else found
    power = -0.5 if norm == "ortho" else -1.0 if (norm == "backward") == inverse else 0.0
    if power:
        n = w.cast(w.scalar(w.size(x, at)), v.dtype)
        found = w.mul(found, w.node("Pow", n, w.number(power, v)))
    return w.cast(found, x.dtype)


@writes("real_dft")
def real_dft(w, x, *, axis, norm, inner):
    v = w.wide(x)
    at, n = axis % x.rank, x.shape[axis]
    batched = w.unsqueeze(v, [0, x.rank + 1])
    shape = (1, *x.shape[:at], n // 2 + 1, *x.shape[at + 1 :], 2)
    found = w.squeeze(w.node("DFT", batched, None, w.const(at + 1, "int64"), onesided=1, shape=shape), [0])
    factors = frequency_weights(n, inner, at, x.rank) * _scale(n, norm == "forward", norm)
    return w.cast(w.mul(found, w.const(factors, v.dtype)), x.dtype)


@writes("real_from_dft")
def real_from_dft(w, x, *, n, axis, norm, inner):
    """The transform of all conjugate frequencies; its real parts are those of the inverse."""
    v = w.wide(x)
    at, places = axis % x.rank, np.arange(n)
    kept = np.minimum(places, n - places)
    factors = np.take(frequency_weights(n, inner, at, x.rank - 1), kept, axis=at) * _scale(n, norm == "backward", norm)
    signs = np.where(2 * places <= n, -1.0, 1.0).reshape([-1 if i == at else 1 for i in range(x.rank - 1)])
    factors[..., 1] *= signs
    whole = w.gather(v, w.const(kept, "int64"), at)
    batched = w.unsqueeze(w.mul(whole, w.const(factors, v.dtype)), [0])
    found = w.squeeze(w.node("DFT", batched, None, w.const(at + 1, "int64"), shape=batched.shape), [0])
    return w.cast(w.gather(found, w.const(0, "int64"), x.rank - 1), x.dtype)


def _scale(n, divided, norm):
    return n**-0.5 if norm == "ortho" else 1 / n if divided else 1.0
