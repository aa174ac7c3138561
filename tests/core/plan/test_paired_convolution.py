"""Convolutions of bfloat16 numbers as products of pairs, with the CPU's instructions for them and with substitutes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings

from core.codegen.backend import CPU, CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.codegen.cpus import cpu
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.geometry import Correlation
from core.plan.instructions import Kernel
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.core.codegen.test_windows import QUIET, Case, convolutions, three_forms
from tests.core.codegen.tiles import multiplies_pairs
from tests.laws.random_programs import EXAMPLES

__all__ = ["multiplies_pairs"]

BF16 = as_dtype("bfloat16")


CASES = {
    "pixels": ((3, 64, 9, 8), (48, 64, 1, 1), {}),
    "small images together": ((4, 36, 5, 6), (64, 36, 3, 3), {}),
    "an image in parts": ((2, 130, 40, 36), (34, 130, 3, 3), {}),
    "parts of odd rows": ((2, 100, 41, 39), (34, 100, 3, 3), {}),
    "groups": ((2, 64, 8, 8), (128, 32, 3, 3), {"groups": 2}),
    "strides": ((2, 40, 17, 18), (48, 40, 3, 3), {"strides": (2, 2), "paddings": (1, 1, 1, 1)}),
    "dilations": ((2, 40, 12, 14), (34, 40, 3, 3), {"dilations": (2, 2), "paddings": (2, 2, 2, 2)}),
    "a wide filter": ((1, 34, 20, 20), (36, 34, 5, 5), {"paddings": (2, 2, 2, 2)}),
    "one axis": ((2, 64, 100), (64, 64, 3), {"strides": (1,), "dilations": (1,), "paddings": (1, 1)}),
    "three axes": (
        (1, 34, 4, 6, 8), (32, 34, 2, 2, 2), {"strides": (1,) * 3, "dilations": (1,) * 3, "paddings": (0,) * 6}
    ),
    "odd sizes": ((3, 33, 7, 9), (35, 33, 3, 3), {}),
}  # fmt: skip
DEFAULTS = {"strides": (1, 1), "dilations": (1, 1), "paddings": (0, 0, 0, 0), "groups": 1}
KINDS = ("correlate", "correlate_input_adjoint", "correlate_filter_adjoint")


def blocks(name: str) -> Iterator[tuple[str, Block, list[np.ndarray]]]:
    """A convolution and its adjoints, of small integers: all sums are exact, whatever their order."""
    image, filter, more = CASES[name]
    rng = np.random.default_rng(len(name))
    integers = lambda shape: rng.integers(-2, 3, shape).astype("float32").astype(BF16)
    x, w = integers(image), integers(filter)
    attrs = DEFAULTS | more
    shape: tuple[int, ...] = ()
    for kind in KINDS:
        b = BlockBuilder()
        args = [x, w]
        if kind != "correlate":
            args = [integers(shape), *([w, x] if "input" in kind else [x, w])]
        given = [b.param(TensorType(each.shape, "bfloat16")) for each in args]
        out = b.emit(kind, *given, **attrs)
        shape = out.type.shape if kind == "correlate" else shape
        yield kind, b.build([out]), args


def paired(block: Block) -> bool:
    kernels = (each for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Kernel))
    return any(isinstance(each.spec, Correlation) and bool(each.spec.given) for each in kernels)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_in_pairs_has_the_numbers_of_the_reference_executor(name, multiplies_pairs):
    forms = {}
    for kind, block, args in blocks(name):
        forms[kind] = paired(block)
        (found,), (wanted,) = (run(Run(), *args) for run in (native_interpreter(block, CPU), interpreter_of(block)))
        assert np.abs(np.asarray(wanted, "float32")).max() > 2
        np.testing.assert_array_equal(np.asarray(found, "float32"), np.asarray(wanted, "float32"))
    assert any(forms.values()) != (name == "odd sizes"), forms
    assert name != "pixels" or all(forms.values()), forms


def test_winograds_algorithm_is_preferred_for_few_channels_if_pairs_are_not_multiplied_in_tiles(multiplies_pairs):
    for channels, expected in ((64, cpu().has_tiles), (128, True)):
        b = BlockBuilder()
        x, w = (b.param(TensorType(shape, "bfloat16")) for shape in ((16, channels, 32, 32), (64, channels, 3, 3)))
        assert paired(b.build([b.emit("correlate", x, w, **DEFAULTS)])) == expected


def test_convolutions_of_16_channels_take_pairs_in_tiles(multiplies_pairs):
    for channels, kernel, expected in ((16, 3, cpu().has_tiles), (14, 3, False), (16, 1, False)):
        b = BlockBuilder()
        x = b.param(TensorType((4, channels, 24, 24), "bfloat16"))
        w = b.param(TensorType((channels, channels, kernel, kernel), "bfloat16"))
        assert paired(b.build([b.emit("correlate", x, w, **DEFAULTS)])) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("few", [False, True])
@settings(QUIET, max_examples=-(-EXAMPLES // 30))
@given(case=convolutions())
@example(case=Case((1, 2, 3, 2), (1, 2, 1, 1), (1, 1, 3, 2), DEFAULTS, "bfloat16"))
def test_convolutions_of_all_forms_agree_in_pairs(few, multiplies_pairs, case):
    """Of any size, as long as each number has a partner; images in parts if `few`."""
    limits = replace(CPU_TARGET.convolutions, pairs=lambda kind, m, n, k: k % 2 == 0 and k > 2)
    limits = replace(limits, pair_channels=lambda: 0)
    if few:
        limits = replace(limits, pixels=dict.fromkeys(limits.pixels, 4), share=4, column_elements=32)
    backend = CpuBackend()
    backend.target = replace(CPU_TARGET, convolutions=limits)  # type: ignore[misc]
    block, rng = three_forms(replace(case, dtype="bfloat16")), np.random.default_rng(1)
    args = [rng.integers(-2, 3, block.types[n].shape).astype("float32").astype(BF16) for n in block.params]

    for f, w in zip(native_interpreter(block, backend)(Run(), *args), interpreter_of(block)(Run(), *args), strict=True):
        np.testing.assert_array_equal(np.asarray(f, "float32"), np.asarray(w, "float32"))
