"""Fourier transforms."""

from __future__ import annotations

from core.onnx.writing.registry import writes

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
