"""Convolutions on an emulated GPU: all forms, with tails, groups, padding, strides, dilations and 16-bit numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.device import convolution, small_convolution
from core.device.gpu import DEVICE_TARGET
from core.device.ptx import cubin_of, has_linker, ptx_of
from core.device.rules import Rules
from core.device.step import write_device_step
from core.plan import plan_block
from core.plan.instructions import Kernel
from core.plan.patches import PATCHED
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.core.codegen.test_windows import Case, convolutions, three_forms, values_for
from tests.device.agreement import SCOPES, agree
from tests.device.barriers import races_without
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_products import APART, EPSILONS

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

LAUNCHES = ((1, 64), (3, 32), (2, 96), (2, 128))


def case(
    image: tuple[int, ...], filter: tuple[int, ...], stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1,
    dtype: str = "float32",
) -> Case:  # fmt: skip
    axes = len(image) - 2
    sizes = zip(image[2:], filter[2:], strict=True)
    counts = tuple((n + 2 * pad - (k - 1) * dilation - 1) // stride + 1 for n, k in sizes)
    attrs = {"strides": (stride,) * axes, "paddings": (pad,) * (2 * axes), "dilations": (dilation,) * axes}
    return Case(image, filter, (image[0], filter[0], *counts), {**attrs, "groups": groups}, dtype)


def check_case(of: Case, seed: int) -> None:
    block = three_forms(of)
    kinds = {i.kind for i in plan_block(block, DEVICE_TARGET).body.instructions if isinstance(i, Kernel)}
    assert kinds == set(PATCHED.values())
    blocks, threads = LAUNCHES[seed % 4]
    agree(block, values_for(block, seed), EmulatedBackend(blocks, threads, seed=seed, rules=SCOPES[1 + seed % 2]))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(of=convolutions(longest=14))
def test_convolutions_and_their_adjoints_agree_with_the_reference_executor(of):
    check_case(of, random.Random(repr(of)).randrange(1 << 16))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(of=convolutions(longest=30))
def test_many_convolutions_and_their_adjoints_agree_with_the_reference_executor(of):
    check_case(of, random.Random(repr(of)).randrange(1 << 16))


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(case((2, 5, 11, 13), (20, 5, 3, 3), pad=1), id="several_tiles"),
        pytest.param(case((2, 8, 9, 10), (12, 4, 3, 2), stride=2, pad=1, groups=2), id="classes_with_fewer_taps"),
        pytest.param(case((2, 4, 14), (5, 4, 3), stride=4, pad=2, dilation=2), id="classes_without_taps"),
        pytest.param(
            case((1, 4, 23), (4, 4, 2), stride=6, dilation=9), id="strides_and_dilations_with_a_common_factor"
        ),
        pytest.param(case((2, 6, 9, 8), (12, 1, 3, 3), pad=1, groups=6), id="depthwise"),
        pytest.param(case((1, 2, 12, 12), (2, 1, 6, 6), stride=3, groups=2), id="depthwise_with_large_filters"),
        pytest.param(
            case((2, 4, 4, 5, 6), (6, 4, 2, 3, 2), pad=1, dtype="float64"), id="three_axes", marks=pytest.mark.slow
        ),
    ],
)
def test_forms_agree_with_the_reference_executor(of):
    check_case(of, len(of.attrs["strides"]) + of.image[1])


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=[] if each == "correlate_filter_adjoint" else [pytest.mark.slow]) for each in PATCHED],
)
def test_second_gradients_agree_with_the_reference_executor(kind):
    of = case((2, 4, 6, 5), (8, 2, 3, 2), stride=2, pad=1, groups=2, dtype="float64")
    one = three_forms(of)
    block = replace(one, results=(one.results[list(PATCHED).index(kind)],))
    first = vjp(block, list(block.params))
    second = optimize(vjp(first, list(first.params)))

    agree(second, values_for(second), EmulatedBackend(2, 64, seed=5, rules=SCOPES[1]))


@pytest.mark.parametrize(
    ("dtype", "groups"),
    [
        ("bfloat16", 1),
        ("float16", 4),
        pytest.param("float16", 1, marks=pytest.mark.slow),
        pytest.param("bfloat16", 4, marks=pytest.mark.slow),
    ],
)
def test_16_bit_numbers_are_multiplied_as_they_are_and_added_in_float32(dtype, groups):
    of = case((2, 8, 7, 6), (16, 8 // groups, 3, 3), stride=2, pad=1, groups=groups, dtype=dtype)
    block = three_forms(of)
    values = values_for(block)
    wide = [v.astype(np.float64) for v in values]
    exact = interpreter_of(three_forms(replace(of, dtype="float64")))(Run(), *wide)
    sizes = interpreter_of(three_forms(replace(of, dtype="float64")))(Run(), *map(np.abs, wide))

    found = native_interpreter(block, EmulatedBackend(2, 64, rules=APART))(Run(), *values)

    for one, want, size in zip(found, exact, sizes, strict=True):
        assert one.dtype == values[0].dtype
        bound = 80 * EPSILONS["float32"] * size + EPSILONS[dtype] * np.abs(want)
        assert np.all(np.abs(one.astype(np.float64) - want) <= 1.01 * bound + 1e-30)


def repeated(of: Case, rules: Rules = APART, launches: tuple[tuple[int, int], ...] = ((3, 64), (3, 64))) -> list[Any]:
    """The results of a case in launches with threads in several orders."""
    block = three_forms(of)
    values = values_for(block)
    backends = [EmulatedBackend(*each, seed=seed, rules=rules) for seed, each in enumerate(launches)]
    return [native_interpreter(block, each)(Run(), *values) for each in backends]


@pytest.mark.parametrize("groups", [1, 8])
def test_long_sums_are_split_with_the_same_bits_in_any_order_of_threads(groups, monkeypatch):
    monkeypatch.setattr(small_convolution, "LEAST_PART", 32)
    monkeypatch.setattr(convolution._Writer, "longest", 64)
    of = case((3, 8, 12, 9), (8, 8 // groups, 2, 2), groups=groups)

    one, two = repeated(of)

    assert [x.tobytes() for x in one] == [x.tobytes() for x in two]
    block = three_forms(of)
    agree(block, values_for(block), EmulatedBackend(3, 64, rules=APART))


def test_depthwise_convolutions_have_the_same_bits_in_any_launch(monkeypatch):
    monkeypatch.setattr(small_convolution, "LEAST_PART", 32)

    found = repeated(case((3, 4, 9, 8), (4, 1, 3, 3), groups=4), launches=((1, 32), (2, 96), (4, 64)))

    for each in zip(*found, strict=True):
        assert len({x.tobytes() for x in each}) == 1


def test_tf32_rounds_the_operands_to_11_bits():
    of = case((2, 8, 7, 6), (16, 8, 3, 3), pad=1)
    block = three_forms(of)
    values = values_for(block)
    exact = interpreter_of(block)(Run(), *values)
    sizes = interpreter_of(block)(Run(), *map(np.abs, values))

    found = native_interpreter(block, EmulatedBackend(2, 64, rules=replace(APART, tf32=True)))(Run(), *values)

    for one, want, size in zip(found, exact, sizes, strict=True):
        assert np.all(np.abs(one - want) <= 2.2 * 2**-11 * size)
        assert np.abs(one - want).max() > 1e-5


def test_a_barrier_of_a_convolution_that_is_taken_out_is_a_race():
    of = case((1, 8, 6, 6), (8, 8, 3, 3), pad=1)
    block = replace(three_forms(of), results=three_forms(of).results[:1])

    races = races_without("block_barrier", block, values_for(block), EmulatedBackend(2, 64, rules=APART))

    assert races and all(races)


BENCH = {
    "3x3": case((32, 64, 56, 56), (64, 64, 3, 3), pad=1),
    "bfloat16": case((32, 64, 56, 56), (64, 64, 3, 3), pad=1, dtype="bfloat16"),
    "first": case((32, 3, 224, 224), (64, 3, 7, 7), stride=2, pad=3),
    "half": case((32, 128, 28, 28), (256, 128, 3, 3), stride=2, pad=1),
    "pointwise": case((32, 256, 56, 56), (64, 256, 1, 1)),
    "depthwise": case((32, 64, 56, 56), (64, 1, 3, 3), pad=1, groups=64),
    "line": case((16, 64, 1000), (128, 64, 5), pad=2),
    "volume": case((4, 16, 16, 16, 16), (32, 16, 3, 3, 3), pad=1),
    "patches": case((8, 3, 224, 224), (768, 3, 16, 16), stride=16),
    "float64": case((8, 16, 14, 14), (32, 16, 3, 3), pad=1, dtype="float64"),
}


@pytest.mark.skipif(not has_linker(), reason="no nvJitLink")
@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        pytest.param(name, each, marks=[] if (name, each) == ("bfloat16", "sm_90") else [pytest.mark.slow])
        for name in BENCH
        for each in ("sm_80", "sm_90", "sm_100")
    ],
)
def test_convolutions_of_real_sizes_become_machine_code_without_spilled_registers(name, architecture):
    code = write_device_step(plan_block(three_forms(BENCH[name]), DEVICE_TARGET), 132, 256, APART)

    cubin = cubin_of(ptx_of(code, architecture), architecture)

    assert cubin.spilled == 0
    assert max(cubin.registers.values()) <= 255


def test_few_channels_run_element_by_element_and_many_as_tiles():
    def kinds(of: Case) -> set[bool]:
        body = plan_block(three_forms(of), DEVICE_TARGET).body
        return {small_convolution.is_small(i) for i in body.instructions if isinstance(i, Kernel)}

    assert kinds(case((2, 8, 6, 6), (8, 1, 3, 3), groups=8)) == {True}
    assert kinds(case((2, 8, 6, 6), (8, 8, 3, 3))) == {False}
