"""Windows that taper the ends of a frame, and the mel filter bank."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from core.ir import FLOATS, TensorType
from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Dtype, Example, op
from core.ops.common.ranges import Size, Span
from core.ops.common.types import as_dtype

__all__: list[str] = []

_CONSTANT = "its result is a constant"
Weight = Annotated[float, Bounds(ge=0, le=1)]
Hertz = Annotated[float, Bounds(ge=0, le=1e9)]
Bins = Annotated[int, Bounds(ge=1, le=2**20)]


def _cosines(xp, size: int, periodic: bool, weights: tuple[float, ...], dtype: str):
    """``weights[0] - weights[1] cos(t) + weights[2] cos(2 t)``, with t from 0 to 2 pi."""
    steps = size if periodic else size - 1
    turn = 2 * np.pi * xp.arange(size) / max(steps, 1)
    if size == 1 and not periodic:
        return xp.ones(1, as_dtype(dtype))
    out = sum((-1) ** k * w * xp.cos(k * turn) for k, w in enumerate(weights))
    return out.astype(as_dtype(dtype))


def _window_type(*, size: int, dtype: str, **attrs: object) -> TensorType:
    if dtype not in FLOATS:
        raise ProgramError(f"needs a float dtype, not {dtype}", "bad_attr")
    return TensorType((size,), dtype)


@op(no_gradient=_CONSTANT)
def hann_window(xp, *, size: Size, periodic: bool = True, dtype: Dtype = "float32"):
    """Hann window of `size` elements: ``out[i] = (1 - cos(2 pi i / n)) / 2``.

    - `periodic`: n is `size`; otherwise it is ``size - 1``, and the window is symmetric. A symmetric window of one
      element is 1.
    """
    return _cosines(xp, size, periodic, (0.5, 0.5), dtype)


@op(no_gradient=_CONSTANT)
def hamming_window(xp, *, size: Size, periodic: bool = True, alpha: Weight = 0.54, dtype: Dtype = "float32"):
    """Hamming window of `size` elements: ``out[i] = alpha - (1 - alpha) cos(2 pi i / n)``, with n as in `hann_window`.

    ONNX has an `alpha` of 25 / 46.
    """
    return _cosines(xp, size, periodic, (alpha, 1 - alpha), dtype)


@op(no_gradient=_CONSTANT)
def blackman_window(xp, *, size: Size, periodic: bool = True, dtype: Dtype = "float32"):
    """Blackman window of `size` elements: ``out[i] = 0.42 - cos(2 pi i / n) / 2 + 0.08 cos(4 pi i / n)``, with n as in
    `hann_window`.
    """
    return _cosines(xp, size, periodic, (0.42, 0.5, 0.08), dtype)


for _spec, _by_definition in ((hann_window, np.hanning), (hamming_window, np.hamming), (blackman_window, np.blackman)):
    _spec.infer(_window_type)
    _spec.example(
        lambda f=_by_definition: [
            Example((), (f(7)[:6],), {"size": 6, "dtype": "float64"}),
            Example((), (f(5),), {"size": 5, "periodic": False, "dtype": "float64"}),
            Example((), (np.ones(1),), {"size": 1, "periodic": False, "dtype": "float64"}),
        ]
    )


# --- filter banks ----------------------------------------------------------------------------------------------


def _edges(bins: int, length: int, rate: int, lower: float, upper: float) -> np.ndarray:
    """The frequency numbers of the edges of all filters: equally spaced on the mel scale (O'Shaughnessy 1987)."""
    low, high = (2595 * np.log1p(f / 700) / np.log(10) for f in (lower, upper))
    mel = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    hertz = 700 * np.expm1(mel / 2595 * np.log(10))
    return np.floor((length + 1) * hertz / rate).astype(int)


@op(no_gradient=_CONSTANT)
def mel_weight_matrix(
    xp,
    *,
    num_mel_bins: Bins,
    dft_length: Span,
    sample_rate: Span,
    lower_edge: Hertz = 0.0,
    upper_edge: Hertz,
    dtype: Dtype = "float32",
):
    """Matrix [dft_length / 2 + 1, num_mel_bins] of triangular filters, equally spaced on the mel scale.

    A spectrogram [..., frames, dft_length / 2 + 1] times the matrix is a mel spectrogram. Filter k rises from edge k to
    edge k + 1 and falls to edge k + 2; edges are rounded down to frequencies of the transform, as in ONNX.

    - `sample_rate`, `lower_edge`, `upper_edge`: in hertz.
    """
    edges = _edges(num_mel_bins, dft_length, sample_rate, lower_edge, upper_edge)
    out = np.zeros((dft_length // 2 + 1, num_mel_bins))
    for k in range(num_mel_bins):
        left, centre, right = edges[k : k + 3]
        out[left : centre + 1, k] = np.arange(centre - left + 1) / max(centre - left, 1) if centre > left else 1.0
        out[centre:right, k] = np.arange(right - centre, 0, -1) / max(right - centre, 1)
    return xp.asarray(out.astype(as_dtype(dtype)))


@mel_weight_matrix.infer
def mel_weight_matrix_infer(*, num_mel_bins, dft_length, sample_rate, lower_edge, upper_edge, dtype):
    _window_type(size=0, dtype=dtype)
    count = dft_length // 2 + 1
    if not lower_edge < upper_edge:
        raise ProgramError(f"lower_edge {lower_edge} must be below upper_edge {upper_edge}", "bad_attr")
    if _edges(num_mel_bins, dft_length, sample_rate, lower_edge, upper_edge)[-1] > count:
        raise ProgramError(f"upper_edge {upper_edge} is above half of the sample_rate {sample_rate}", "bad_attr")
    return TensorType((count, num_mel_bins), dtype)


def _filter(frequency, left, centre, right):
    if frequency == centre:
        return 1.0
    if left <= frequency < centre:
        return (frequency - left) / (centre - left)
    return (right - frequency) / (right - centre) if centre < frequency < right else 0.0


def _bank(edges, count):
    """The triangles by definition, from their edges."""
    return np.array([[_filter(f, *edges[k : k + 3]) for k in range(len(edges) - 2)] for f in range(count)])


def _hertz(k, count, upper):
    """Edge k of `count`, equally spaced up to `upper` where a mel is 2595 log10(1 + f / 700)."""
    return 700 * ((1 + upper / 700) ** (k / count) - 1)


_EDGES = [int(17 * _hertz(k, 6, 4096.0) / 8192) for k in range(6)]
mel_weight_matrix.example(
    lambda: [
        Example((), (_bank(_EDGES, 9),),
                {"num_mel_bins": 4, "dft_length": 16, "sample_rate": 8192, "upper_edge": 4096.0, "dtype": "float64"}),
    ]
)  # fmt: skip
