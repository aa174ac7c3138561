"""Which results of transforms and convolutions a NaN or infinity reaches, on both executors.

The definition multiplies each number by a coefficient for each result. All results of coefficients that are not 0 are
then NaN or infinite. Others may be NaN only in the same line of a transform, or if the number belongs to a filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run

Function = Callable[..., np.ndarray]

TRANSFORMS = [
    case
    for n in (1, 2, 6, 8, 15, 17, 34)  # real and complex ones, by passes of 2, 3, 4 and 5, and by convolutions
    for case in (
        ("dft", (2, n, 2), {"axis": 1}),
        ("real_dft", (2, n), {}),
        ("real_from_dft", (2, n // 2 + 1, 2), {"n": n}),
    )
]
CONVOLUTIONS = [
    (type, channels, {"strides": [stride] * 2, "paddings": [1, 1], "dilations": [dilation] * 2, "groups": groups})
    for type in ("conv2d", "conv2d_transpose")
    for channels, stride, dilation, groups in ((2, 1, 1, 1), (2, 2, 1, 1), (2, 1, 2, 2), (16, 1, 1, 1), (16, 2, 1, 1))
]


def executors(type: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]) -> list[Function]:
    b = BlockBuilder()
    block = optimize(b.build([b.emit(type, *(b.param(TensorType(shape, "float64")) for shape in shapes), **attrs)]))
    calls = (interpreter_of(block), native_interpreter(block, CPU))
    return [lambda *args, call=call: np.asarray(call(Run(), *args)[0]) for call in calls]


def with_one(x: np.ndarray, position: int, number: float) -> np.ndarray:
    changed = x.copy()
    changed.reshape(-1)[position] = number
    return changed


@pytest.mark.parametrize(("type", "shape", "attrs"), TRANSFORMS)
def test_a_nan_or_infinity_spoils_its_frequencies_and_changes_no_other_line(type, shape, attrs):
    calls = executors(type, [shape], attrs)
    x = np.random.default_rng(0).normal(size=shape)
    usual = calls[0](x)

    for position in range(x[0].size):
        reached = np.abs(calls[0](with_one(np.zeros(shape), position, 1.0))) > 1e-12
        for bad in (np.nan, np.inf):
            for call in calls:
                with np.errstate(invalid="ignore"):
                    found = call(with_one(x, position, bad))
                assert not np.isfinite(found[reached]).any()
                np.testing.assert_allclose(found[1], usual[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("type", "channels", "attrs"), CONVOLUTIONS)
def test_a_nan_or_infinity_spoils_its_results_of_a_convolution(type, channels, attrs):
    kernels = (4, channels) if type == "conv2d" else (channels, 4)
    shapes = [(2, channels, 5, 6), (kernels[0], kernels[1] // attrs["groups"], 3, 3)]
    calls = executors(type, shapes, attrs)
    random = np.random.default_rng(0)
    args = [random.normal(size=shape) for shape in shapes]
    usual = calls[0](*args)

    for which, x in enumerate(args):
        for position in (0, x.size // 2, x.size - 1):
            put = lambda number, x=x, which=which, position=position: [
                with_one(x, position, number) if i == which else each for i, each in enumerate(args)
            ]
            reached = calls[0](*put(2.0)) != calls[0](*put(1.0))
            for bad in (np.nan, np.inf):
                for call in calls:
                    with np.errstate(invalid="ignore"):
                        found = call(*put(bad))
                    assert not np.isfinite(found[reached]).any()
                    if which == 0:
                        np.testing.assert_allclose(found[~reached], usual[~reached], rtol=1e-12, atol=1e-12)
