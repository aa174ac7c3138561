"""Fourier transforms and spectrograms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.beside_torch.installed import torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def complex_of(x: Any) -> Any:
    return torch.complex(x[..., 0], x[..., 1])


def pairs(z: Any) -> Any:
    return torch.stack([z.real, z.imag], -1)


def front(axis: int, x: Any) -> int:
    """An axis of pairs, as an axis of complex numbers."""
    return axis % x.ndim


def fft(x: Any, axis: int, inverse: bool, norm: str, n: int | None = None) -> Any:
    run = torch.fft.ifft if inverse else torch.fft.fft
    return pairs(run(complex_of(x), n, front(axis, x), norm))


def stft(
    x: Any, window: Any, frame_length: int, hop_length: int, onesided: bool, center: bool, complex_input: bool
) -> Any:
    x = complex_of(x) if complex_input else x
    if not x.numel():
        return x.reshape(0, *[0] * (x.ndim - 1)).new_zeros(0, 3, 3, 2)
    ones = torch.ones(frame_length, dtype=torch.float64) if window is None else window
    found = torch.stft(x, frame_length, hop_length, window=ones, center=center, onesided=onesided, return_complex=True)
    return pairs(found.mT)


def istft(x: Any, window: Any, frame_length: int, hop_length: int, center: bool, length: int | None) -> Any:
    """torch.istft refuses windows whose squares leave gaps: frames are added one by one."""
    if not x.numel():
        return x.new_zeros(0, (x.shape[-3] - 1) * hop_length + frame_length)
    frames = torch.fft.irfft(complex_of(x), frame_length)
    window = torch.ones(frame_length, dtype=x.dtype) if window is None else window
    count = frames.shape[-2]
    out = torch.zeros(*x.shape[:-3], (count - 1) * hop_length + frame_length, dtype=x.dtype)
    weight = torch.zeros(out.shape[-1], dtype=x.dtype)
    for k in range(count):
        place = torch.arange(frame_length) + k * hop_length
        out = out.index_add(-1, place, frames[..., k, :] * window)
        weight = weight.index_add(0, place, window**2)
    out = out / torch.where(weight == 0, 1.0, weight)
    begin = frame_length // 2 if center else 0
    out = out[..., begin : out.shape[-1] - begin if length is None else begin + length]
    return torch.nn.functional.pad(out, (0, max((length or 0) - out.shape[-1], 0)))


def _inner(n, factor, axis, rank):
    found = torch.tensor([factor if 0 < 2 * k < n else 1.0 for k in range(n // 2 + 1)], dtype=torch.float64)
    return found.reshape([-1 if i == axis else 1 for i in range(rank)])


def real_dft(x, axis, norm, inner):
    at = axis % x.ndim
    return pairs(torch.fft.rfft(x, dim=at, norm=norm) * _inner(x.shape[at], inner, at, x.ndim).to(x.dtype))


def real_from_dft(x, n, axis, norm, inner):
    at = axis % x.ndim
    given = complex_of(x) * _inner(n, inner, at, x.ndim - 1).to(x.dtype)
    return torch.fft.irfft(given, n, at, norm)


OPS: dict[str, Callable[..., Any]] = {
    "dft": fft,
    "fft": fft,
    "irfft": lambda x, n, axis, norm: torch.fft.irfft(complex_of(x), n, front(axis, x), norm),
    "istft": istft,
    "real_dft": real_dft,
    "real_from_dft": real_from_dft,
    "rfft": lambda x, n, axis, norm: pairs(torch.fft.rfft(x, n, axis, norm)),
    "stft": stft,
}

NORMS = ("backward", "ortho", "forward")

MORE: dict[str, list[Inputs]] = {
    "dft": [case((2, 5, 3, 2), axis=a, inverse=i, norm=n) for a in (1, 2) for i in (False, True) for n in NORMS],
    "fft": [case((2, 5, 2), axis=1, n=k, inverse=i) for k in (3, 5, 8) for i in (False, True)],
    "irfft": [case((2, 4, 2), n=k, norm=n) for k in (None, 5, 6, 9, 2, 1) for n in NORMS],
    "istft": [case((2, 4, 5, 2), (8,), frame_length=8, hop_length=3, span=(0.2, 1.5))],
    "real_dft": [case((2, k, 3), axis=1, inner=i) for k in (1, 2, 6, 9) for i in (1.0, 0.5)],
    "real_from_dft": [case((2, k // 2 + 1, 3, 2), n=k, axis=1, inner=i) for k in (1, 2, 6, 9) for i in (1.0, 2.0)],
    "rfft": [case((2, 6), n=k, norm=n) for k in (None, 5, 9, 1) for n in NORMS] + [case((4, 3, 2), axis=0)],
    "stft": [
        case((2, 20), (8,), frame_length=8, hop_length=3, onesided=o, center=c)
        for o in (True, False)
        for c in (True, False)
    ],
}
