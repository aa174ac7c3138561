"""The short-time Fourier transform and its inverse."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import Span
from core.ops.common.types import floating, matches
from core.ops.elementwise.logic import equal, where
from core.ops.elementwise.math import square
from core.ops.indexing.gather import gather, scatter_add_like, slice_
from core.ops.shape.agreeing import shaped
from core.ops.shape.broadcast import expand
from core.ops.shape.creation import fill_constant_batch_size_like, fill_zeros_like, full_like
from core.ops.shape.pad import pad
from core.ops.shape.reshape import divided, merged, squeeze, unsqueeze
from core.ops.signal.fourier import fft, irfft, rfft

__all__: list[str] = []


def _frame_positions(b, frames: int, frame_length: int, hop: int):
    """Positions [frames, frame_length] of the elements of each frame."""
    start = b.emit("range", start=0.0, end=float(frames * hop), step=float(hop), dtype="int64")
    step = b.emit("range", start=0.0, end=float(frame_length), dtype="int64")
    return unsqueeze(start, axes=(1,)) + unsqueeze(step, axes=(0,))


def _checked_window(window, x, frame_length: int):
    if window is None:
        return None
    if not matches(window.type, TensorType((frame_length,), x.dtype)):
        raise ProgramError(
            f"the window must be {x.dtype} with frame_length {frame_length} elements, not {window.type}",
            "shape_mismatch",
        )
    return shaped(window, (frame_length,))


@composite
def stft(
    x,
    window=None,
    *,
    frame_length: Span,
    hop_length: Span,
    onesided: bool = True,
    center: bool = False,
    complex_input: bool = False,
):
    """Short-time Fourier transform of signals x [..., time]: pairs [..., frames, frequencies, 2].

    Frame k is ``x[k hop_length : k hop_length + frame_length]`` times `window`; its transform is not scaled.

    - `window`: optional [frame_length].
    - `onesided`: give the frequencies 0 to frame_length / 2 only; the others are their conjugates.
    - `center`: mirror x at both ends, so that frame k is centred at ``k hop_length``.
    - `complex_input`: x is [..., time, 2], with real and imaginary parts; then `onesided` must be false.
    """
    floating(x.type)
    at = x.rank - (2 if complex_input else 1)
    if at < 0 or (complex_input and (onesided or x.shape[-1] not in (2, -1))):
        raise ProgramError(f"needs [..., time], or [..., time, 2] without onesided, not {x.type}", "shape_mismatch")
    window = _checked_window(window, x, frame_length)
    if center:
        half = frame_length // 2
        x = pad(x, paddings=tuple(half if i // 2 == at else 0 for i in range(2 * x.rank)), mode="reflect")
    if x.shape[at] < frame_length:
        raise ProgramError(
            f"the time of {x.type} must have a known size of at least frame_length {frame_length}", "shape_mismatch"
        )
    count = (x.shape[at] - frame_length) // hop_length + 1
    frames = gather(x, _frame_positions(x.builder, count, frame_length, hop_length), axis=at)
    if window is not None:
        frames = frames * (unsqueeze(window, axes=(1,)) if complex_input else window)
    if complex_input:
        return fft(frames, axis=-2)
    if onesided:
        return rfft(frames)
    return fft(pairs_of(frames), axis=-2)


def pairs_of(x):
    """Real numbers as complex ones with the imaginary part 0."""
    return unsqueeze(x, axes=(x.rank,)) * x.builder.emit("assign_value", values=(1.0, 0.0), shape=(2,), dtype=x.dtype)


@composite
def istft(
    x,
    window=None,
    *,
    frame_length: Span,
    hop_length: Span,
    center: bool = False,
    length: Span | None = None,
):
    """Signals [..., time] whose one-sided `stft` is x [..., frames, frame_length / 2 + 1, 2] (Griffin and Lim 1984).

    The frames, times `window`, are added where they overlap and divided by the sum of the squares of the window there.
    Where that sum is 0 the result is 0.

    - `center`: as it was in `stft`; leave out the mirrored ends.
    - `length`: the number of elements of the result; further ones are 0.
    """
    floating(x.type)
    bins = frame_length // 2 + 1
    if x.rank < 3 or x.shape[-1] != 2 or x.shape[-2] != bins or x.shape[-3] < 1:
        raise ProgramError(
            f"needs [..., frames, {bins}, 2] with a known number of frames above 0, not {x.type}", "shape_mismatch"
        )
    lead = x.shape[:-3]
    if lead.count(-1) > 1:
        raise ProgramError(
            f"at most one size of the batch of {x.type} may be unknown: it must be known", "shape_mismatch"
        )
    window = _checked_window(window, x, frame_length)
    frames = irfft(x, n=frame_length)
    if window is not None:
        frames = frames * window
    count = x.shape[-3]
    total = (count - 1) * hop_length + frame_length
    places = _frame_positions(x.builder, count, frame_length, hop_length)
    flat = merged(frames, 0, len(lead))
    like = fill_constant_batch_size_like(flat, shape=(-1, total), dtype=x.dtype)
    signal = scatter_add_like(flat, places, like, axis=1)
    if window is None:
        each = x.builder.constant(1.0, x.dtype, (count, frame_length))
    else:
        each = expand(unsqueeze(square(window), axes=(0,)), shape=(count, frame_length))
    weight = scatter_add_like(each, places, x.builder.constant(0.0, x.dtype, (total,)), axis=0)
    nothing = equal(weight, fill_zeros_like(weight))
    signal = where(nothing, fill_zeros_like(signal), signal / where(nothing, full_like(weight, value=1.0), weight))
    begin = frame_length // 2 if center else 0
    end = total - begin if length is None else min(begin + length, total)
    signal = slice_(signal, axes=(1,), starts=(begin,), ends=(end,))
    if length is not None and end - begin < length:
        signal = pad(signal, paddings=(0, 0, 0, length - (end - begin)))
    return divided(signal, 0, lead) if lead else squeeze(signal, axes=(0,))


SIGNAL = np.sin(np.arange(18.0) ** 1.3).reshape(2, 9)
WINDOW = np.array([0.25, 1.0, 0.75, 0.5])


def _frames(x, window, hop):
    n = len(window)
    return np.stack([x[..., i : i + n] * window for i in range(0, x.shape[-1] - n + 1, hop)], -2)


def _spectrum(frames, bins):
    n = frames.shape[-1]
    found = frames @ np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(bins)) / n)
    return np.stack([found.real, found.imag], -1)


stft.example(
    lambda: [
        Example((SIGNAL, WINDOW), (_spectrum(_frames(SIGNAL, WINDOW, 2), 3),), {"frame_length": 4, "hop_length": 2}),
        Example((SIGNAL[0],), (_spectrum(_frames(SIGNAL[0], np.ones(5), 3), 5),),
                {"frame_length": 5, "hop_length": 3, "onesided": False}),
        Example((SIGNAL[0], WINDOW), (_spectrum(_frames(np.pad(SIGNAL[0], 2, "reflect"), WINDOW, 3), 3),),
                {"frame_length": 4, "hop_length": 3, "center": True}),
        Example((SIGNAL.T[None], WINDOW),
                (_spectrum(_frames(SIGNAL[0] + 1j * SIGNAL[1], WINDOW, 2), 4)[None],),
                {"frame_length": 4, "hop_length": 2, "onesided": False, "complex_input": True}),
        Example((SIGNAL[:0], WINDOW), (np.zeros((0, 3, 3, 2)),), {"frame_length": 4, "hop_length": 2}),
    ]
)  # fmt: skip


def _overlap_added(x, window, hop):
    """The inverse by its definition, one element of a frame at a time."""
    n, bins = len(window), x.shape[-2]
    z = x[..., 0] + 1j * x[..., 1]
    full = np.concatenate([z, z[..., (n - 1) // 2 : 0 : -1].conj()], -1) if n > 1 else z
    frames = (full @ np.exp(2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)).real / n
    assert bins == n // 2 + 1
    out, weight = (np.zeros((*x.shape[:-3], (x.shape[-3] - 1) * hop + n)) for _ in range(2))
    for k, i in np.ndindex(x.shape[-3], n):
        out[..., k * hop + i] += frames[..., k, i] * window[i]
        weight[..., k * hop + i] += window[i] ** 2
    return out / np.where(weight == 0, 1, weight)


_Z = np.cos(np.arange(36.0) * 2).reshape(2, 3, 3, 2)
istft.example(
    lambda: [
        Example((_Z, WINDOW), (_overlap_added(_Z, WINDOW, 2),), {"frame_length": 4, "hop_length": 2}),
        Example((_Z[0],), (_overlap_added(_Z[0], np.ones(5), 3),), {"frame_length": 5, "hop_length": 3}),
        Example((_Z, WINDOW), (_overlap_added(_Z, WINDOW, 3)[:, 2:8],),
                {"frame_length": 4, "hop_length": 3, "center": True, "length": 6}),
        Example((_Z[:, :1], WINDOW), (np.pad(_overlap_added(_Z[:, :1], WINDOW, 5), ((0, 0), (0, 2))),),
                {"frame_length": 4, "hop_length": 5, "length": 6}),
        Example((_Z[:, :2], WINDOW), (_overlap_added(_Z[:, :2], WINDOW, 6),), {"frame_length": 4, "hop_length": 6}),
        Example((_Z[:0], WINDOW), (np.zeros((0, 8)),), {"frame_length": 4, "hop_length": 2}),
    ]
)  # fmt: skip
