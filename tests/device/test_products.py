"""Products on an emulated GPU: tiles with rests, any layout and dtype, tensor cores, and sums in parts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.device.gpu import DEVICE_TARGET
from core.device.rules import Rules
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.device.emulator import Emulated, EmulatedBackend, EmulatorFault, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

APART = Rules(launch=0.0, block_flops=1.0)
"""Every product has a launch of its own on all blocks."""

DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

EPSILONS = {"float32": 2**-24, "float64": 2**-53, "float16": 2**-11, "bfloat16": 2**-8}
"""Half the distance from 1 to the next number."""


SMALLEST = {"float32": 1e-44, "float64": 1e-323, "float16": 2**-25, "bfloat16": 1e-40}
"""Half the distance between numbers near 0, or more."""


def product(x: tuple[int, ...], y: tuple[int, ...], dtype: str, turns: tuple[bool, bool]) -> Block:
    b = BlockBuilder()
    one, other = (b.param(TensorType(s, dtype)) for s in (x, y))
    return b.build([b.emit("matmul", one, other, transpose_x=turns[0], transpose_y=turns[1])])


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(DTYPES[dtype])


def turned(x: np.ndarray, turn: bool) -> np.ndarray:
    x = x.astype(np.float64)
    return np.swapaxes(x, -1, -2) if turn else x


def check(
    block: Block, values: list[np.ndarray], turns: tuple[bool, bool], backend: EmulatedBackend, unit: float
) -> Any:
    """The product differs from that of float64 numbers by no more than rounding does. unit: of the operands."""
    (found,) = native_interpreter(block, backend)(Run(), *values)
    a, b = (turned(v, turn) for v, turn in zip(values, turns, strict=True))
    dtype = str(found.dtype)
    terms, wide = a.shape[-1], min(EPSILONS["float32"], EPSILONS[dtype])
    bound = (terms * wide + 2 * unit) * (np.abs(a) @ np.abs(b)) + EPSILONS[dtype] * np.abs(a @ b)
    assert np.all(np.abs(found.astype(np.float64) - a @ b) <= 1.1 * bound + SMALLEST[dtype])
    return found


SHAPES = [
    ((5, 7), (7, 3)),
    ((33, 40), (40, 65)),
    ((1, 130), (130, 9)),
    ((64, 32), (32, 64)),
    ((3, 17, 19), (3, 19, 18)),
    ((2, 20, 16), (16, 8)),
    ((70, 1), (1, 70)),
]
TURNS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turns", TURNS, ids=["nn", "tn", "nt", "tt"])
def test_a_product_of_any_layout_is_that_of_float64_numbers(dtype, turns):
    rng = np.random.default_rng(1)
    for seed, (x, y) in enumerate(SHAPES):
        if dtype != "float32" and (seed + TURNS.index(turns)) % 2:
            continue  # each shape in two of the four layouts
        x, y = (s[:-2] + s[:-3:-1] if turn else s for s, turn in zip((x, y), turns, strict=True))
        if len(x) > len(y) and turns[0]:
            continue
        values = [numbers(rng, x, dtype), numbers(rng, y, dtype)]
        blocks, block = ((1, 64), (3, 128), (2, 96))[seed % 3]
        backend = EmulatedBackend(blocks, block, seed=seed, rules=APART)
        check(product(x, y, dtype, turns), values, turns, backend, 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_sums_are_added_in_parts_with_the_same_bits_in_any_order_of_threads(dtype):
    rng = np.random.default_rng(2)
    values = [numbers(rng, (10, 700), dtype), numbers(rng, (700, 6), dtype)]
    block = product((10, 700), (700, 6), dtype, (False, False))

    found = [
        check(block, values, (False, False), EmulatedBackend(4, 64, seed=seed, rules=APART), 0.0) for seed in (1, 2)
    ]

    assert found[0].tobytes() == found[1].tobytes()
    (launch,) = [each for each in launches(block, 4) if each.cooperative]
    assert launch.grid == 4


def launches(block: Block, blocks: int) -> tuple[Any, ...]:
    return write_device_step(plan_block(block, DEVICE_TARGET), blocks, 64, APART).launches


def test_tf32_rounds_the_operands_to_11_bits_and_only_where_it_may():
    rng = np.random.default_rng(3)
    values = [numbers(rng, (20, 50), "float32"), numbers(rng, (50, 30), "float32")]
    block = product((20, 50), (50, 30), "float32", (False, False))
    backend = EmulatedBackend(2, 64, rules=replace(APART, tf32=True))

    found = check(block, values, (False, False), backend, 2**-11)

    short = [((v.view(np.uint32) + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32) for v in values]
    exact = short[0].astype(np.float64) @ short[1].astype(np.float64)
    assert np.abs(found - exact).max() < 50 * 2**-24 * (np.abs(short[0]) @ np.abs(short[1])).max()
    assert np.abs(found - values[0].astype(np.float64) @ values[1]).max() > 1e-5
    values[0].view(np.uint32)[3, 5] = 0x7FFFFFFF  # the NaN of a GPU
    (found,) = native_interpreter(block, backend)(Run(), *values)
    assert np.isnan(found[3]).all()
    assert np.isfinite(found[4]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_barrier_of_a_product_that_is_taken_out_is_a_race(dtype):
    rng = np.random.default_rng(4)
    values = [numbers(rng, (70, 150), dtype), numbers(rng, (150, 80), dtype)]
    step = product((70, 150), (150, 80), dtype, (False, False))
    code = write_device_step(plan_block(step, DEVICE_TARGET), 1, 64, APART)
    barriers = [m.span() for m in re.finditer(r"  call void @dev_block_barrier\(i32 \d+\)", code.text)]
    assert barriers

    for start, end in barriers:
        backend = EmulatedBackend(1, 64, rules=APART)
        native = native_interpreter(step, backend)
        (region,) = backend.compiled
        region.emulated = Emulated(replace(code, text=code.text[:start] + code.text[end:]), watches=True)
        with pytest.raises(EmulatorFault, match="a race"):
            native(Run(), *values)
