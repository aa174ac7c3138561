"""Fourier transforms and the matrix of mel filters."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.arrays import dtype_name
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("DFT", since=20)
def dft(node: Node) -> Tensor:
    return _transformed(node, int(node.number(2, -2.0)))


@converter("DFT", since=17)
def dft_by_attribute(node: Node) -> Tensor:
    return _transformed(node, int(node.attr("axis", 1)))


def _transformed(node: Node, axis: int) -> Tensor:
    x = node[0]
    if not -x.rank <= axis < x.rank or axis % x.rank == x.rank - 1 or x.shape[-1] not in (1, 2):
        raise node.refuse(f"axis {axis} does not fit {x.type}: the last axis holds one or two parts of a number")
    axis %= x.rank
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    length = {"n": int(node.number(1))} if node.given(1) else {}
    is_real = x.shape[-1] == 1
    if onesided and inverse:
        if is_real:
            raise node.refuse(f"the inverse of a one-sided transform needs pairs, not {x.type}")
        found = node.emit("irfft", x, axis=axis, **length)
        real: Tensor = node.emit("unsqueeze", found, axes=[x.rank - 1])
        return real
    if onesided:
        if not is_real:
            raise node.refuse(f"a one-sided transform needs real numbers, not pairs {x.type}")
        half: Tensor = node.emit("rfft", node.emit("squeeze", x, axes=[x.rank - 1]), axis=axis, **length)
        return half
    result: Tensor = node.emit("fft", _pairs(node, x), axis=axis, inverse=inverse, **length)
    return result


def _pairs(node: Node, x: Tensor) -> Tensor:
    """Real numbers [..., 1] with an imaginary part of 0; pairs unchanged."""
    if x.shape[-1] == 2:
        return x
    result: Tensor = node.emit("pad", x, paddings=[*[0] * (2 * x.rank - 1), 1])
    return result


@converter("STFT")
def stft(node: Node) -> Tensor:
    x, window = node[0], node.get(2)
    if x.rank == 2:
        x = node.emit("unsqueeze", x, axes=[2])
    if x.rank != 3 or x.shape[2] not in (1, 2):
        raise node.refuse(f"the signal must be [batch, time, 1 or 2], not {x.type}")
    default = x.shape[1] if window is None else window.shape[0]
    length = int(node.number(3, float(default)))
    if length < 1 or (window is not None and window.shape[0] not in (-1, length)):
        raise node.refuse(f"frames of {length} elements do not fit the signal {x.type} or the window")
    is_complex = x.shape[2] == 2
    result: Tensor = node.emit(
        "stft",
        x if is_complex else node.emit("squeeze", x, axes=[2]),
        window,
        frame_length=length,
        hop_length=int(node.number(1)),
        onesided=bool(node.attr("onesided", 1)),
        complex_input=is_complex,
    )
    return result


@converter("MelWeightMatrix")
def mel_weight_matrix(node: Node) -> Tensor:
    result: Tensor = node.emit(
        "mel_weight_matrix",
        num_mel_bins=int(node.number(0)),
        dft_length=int(node.number(1)),
        sample_rate=int(node.number(2)),
        lower_edge=float(np.float32(node.number(3))),
        upper_edge=float(np.float32(node.number(4))),
        dtype=dtype_name(node.attr("output_datatype", 1)),
    )
    return result
