"""Types of Fourier transforms, spectrograms and windows."""

from __future__ import annotations

from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import as_axis, floats
from backpass_client.builder.types import InvalidOp, NotKnown, Size, Type

__all__: list[str] = []


def _pairs(x: Type, axis: int) -> int:
    """The axis, counted from the front. Raises InvalidOp unless pairs along the last axis follow it."""
    floats(x)
    at, last = as_axis(axis, x.rank), x.dims[-1]
    if at == x.rank - 1 or (isinstance(last, int) and last != 2):
        raise InvalidOp(f"axis {axis} of {x} must be followed by an axis of real and imaginary parts")
    return at


def _known(size: Size) -> int:
    """A size that is a number. Raises NotKnown."""
    if not isinstance(size, int):
        raise NotKnown
    return size


def _with_size(x: Type, at: int, size: Size) -> tuple[Size, ...]:
    return (*x.dims[:at], size, *x.dims[at + 1 :])


@rule("dft")
def dft(x: Type, axis: int, **a: Any) -> Type:
    _pairs(x, axis)
    return Type(x.kind, (*x.dims[:-1], 2))


@rule("fft")
def fft(x: Type, n: int | None, axis: int, **a: Any) -> Type:
    at = _pairs(x, axis)
    return Type(x.kind, (*_with_size(x, at, x.dims[at] if n is None else n)[:-1], 2))


@rule("rfft")
def rfft(x: Type, n: int | None, axis: int, **a: Any) -> Type:
    floats(x)
    at = as_axis(axis, x.rank)
    return Type(x.kind, (*_with_size(x, at, _known(x.dims[at] if n is None else n) // 2 + 1), 2))


@rule("irfft")
def irfft(x: Type, n: int | None, axis: int, **a: Any) -> Type:
    at = _pairs(x, axis)
    return Type(x.kind, _with_size(x, at, 2 * (_known(x.dims[at]) - 1) if n is None else n)[:-1])


@rule("real_dft")
def real_dft(x: Type, axis: int, **a: Any) -> Type:
    return rfft(x, None, axis)


@rule("real_from_dft")
def real_from_dft(x: Type, n: int, axis: int, **a: Any) -> Type:
    at = _pairs(x, axis)
    if isinstance(x.dims[at], int) and x.dims[at] != n // 2 + 1:
        raise InvalidOp(f"{n} numbers have {n // 2 + 1} frequencies, not {x.dims[at]} as {x}")
    return Type(x.kind, _with_size(x, at, n)[:-1])


@rule("stft")
def stft(
    x: Type, window: Type | None, frame_length: int, hop_length: int, onesided: bool, center: bool,
    complex_input: bool, **a: Any,
) -> Type:  # fmt: skip
    floats(x)
    lead = x.dims[:-2] if complex_input else x.dims[:-1]
    time = _known(x.dims[len(lead)])
    time += 2 * (frame_length // 2) if center else 0
    if time < frame_length:
        raise InvalidOp(f"the time of {x} must have a size of at least frame_length {frame_length}")
    bins = frame_length // 2 + 1 if onesided else frame_length
    return Type(x.kind, (*lead, (time - frame_length) // hop_length + 1, bins, 2))


@rule("istft")
def istft(
    x: Type, window: Type | None, frame_length: int, hop_length: int, center: bool, length: int | None, **a: Any
) -> Type:
    floats(x)
    if length is None:
        length = (_known(x.dims[-3]) - 1) * hop_length + frame_length - (frame_length // 2 if center else 0)
    return Type(x.kind, (*x.dims[:-3], length))


@rule("hann_window", "hamming_window", "blackman_window")
def window(size: int, dtype: str, **a: Any) -> Type:
    return Type(dtype, (size,))


@rule("mel_weight_matrix")
def mel_weight_matrix(num_mel_bins: int, dft_length: int, dtype: str, **a: Any) -> Type:
    return Type(dtype, (dft_length // 2 + 1, num_mel_bins))
