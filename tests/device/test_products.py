"""Products on an emulated GPU: tiles with rests, any layout and dtype, tensor cores, and sums in parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.device.gpu import DEVICE_TARGET
from core.device.rules import Rules
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.device.barriers import races_without
from tests.device.emulator import EmulatedBackend, compiler

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


GRADIENTS = [((33, 40), (40, 18)), ((3, 17, 20), (20, 18)), ((3, 17, 20), (3, 20, 16)), ((2, 1, 5, 8), (3, 8, 4))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("turns", TURNS, ids=["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize(("x", "y"), GRADIENTS)
def test_gradients_of_16_bit_products_round_each_float32_sum_once(x, y, dtype, turns):
    x, y = (s[:-2] + s[:-3:-1] if turn else s for s, turn in zip((x, y), turns, strict=True))
    block = product(x, y, dtype, turns)
    rng = np.random.default_rng(5)
    values = [numbers(rng, block.types[n].shape, dtype) for n in (*block.params, *block.results)]
    backend = EmulatedBackend(3, 64, seed=5, rules=APART)

    _, of_x, of_y = native_interpreter(optimize(vjp(block, list(block.params))), backend)(Run(), *values)

    a, b = (turned(v, turn) for v, turn in zip(values[:2], turns, strict=True))
    ct = values[2].astype(np.float64)
    for gradient, turn, left, right in (
        (of_x, turns[0], ct, np.swapaxes(b, -1, -2)),
        (of_y, turns[1], np.swapaxes(a, -1, -2), ct),
    ):
        shape = turned(gradient, turn).shape
        exact, sizes = summed_to(left @ right, shape), summed_to(np.abs(left) @ np.abs(right), shape)
        bound = 200 * EPSILONS["float32"] * sizes + EPSILONS[dtype] * np.abs(exact)
        if shape not in ((left @ right).shape, shape[-2:]):  # a sum of several products that are rounded
            bound = bound + EPSILONS[dtype] * sizes
        assert np.all(np.abs(turned(gradient, turn) - exact) <= 1.1 * bound + SMALLEST[dtype])


def summed_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`x` summed over the batches that `shape` does not have."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(i for i, n in enumerate(shape) if n < x.shape[i]), keepdims=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "equation",
    [
        "bij,bik->jk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "ij,kj->ki", "ij,j->i", "i,i->", "i,j->ij", "ii,ij->j",
        "ij,jk,kl->il", "ij,jk->k",
    ],
)  # fmt: skip
def test_an_einsum_of_16_bit_numbers_is_rounded_once(equation, dtype):
    sizes = dict(zip("bijkqhdl", (2, 7, 12, 9, 11, 3, 8, 5), strict=True))
    terms = equation.split("->")[0].split(",")
    b = BlockBuilder()
    operands = [b.param(TensorType(tuple(sizes[c] for c in term), dtype)) for term in terms]
    block = b.build([b.emit("einsum", *operands, equation=equation)])
    rng = np.random.default_rng(6)
    values = [numbers(rng, each.shape, dtype) for each in block.param_types]

    (found,) = native_interpreter(block, EmulatedBackend(2, 64, seed=6, rules=APART))(Run(), *values)

    wide = [v.astype(np.float64) for v in values]
    exact, most = np.einsum(equation, *wide), np.einsum(equation, *map(np.abs, wide))
    bound = 200 * EPSILONS["float32"] * most + EPSILONS[dtype] * np.abs(exact)
    assert np.all(np.abs(found.astype(np.float64) - exact) <= 1.1 * bound + SMALLEST[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_16_bit_product_is_stored_as_transposed_heads(dtype):
    b = BlockBuilder()
    x, y = b.param(TensorType((2, 3, 17, 20), dtype)), b.param(TensorType((2, 3, 20, 8), dtype))
    block = b.build([b.emit("transpose", b.emit("matmul", x, y), axes=(0, 2, 1, 3))])
    rng = np.random.default_rng(7)
    values = [numbers(rng, each.shape, dtype) for each in block.param_types]

    (found,) = native_interpreter(block, EmulatedBackend(2, 64, seed=7, rules=APART))(Run(), *values)

    x, y = (v.astype(np.float64) for v in values)
    exact, most = (np.transpose(v, (0, 2, 1, 3)) for v in (x @ y, np.abs(x) @ np.abs(y)))
    bound = 20 * EPSILONS["float32"] * most + EPSILONS[dtype] * np.abs(exact)
    assert np.all(np.abs(found.astype(np.float64) - exact) <= 1.1 * bound + SMALLEST[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nan_and_infinity_spread_only_along_their_row_of_a_16_bit_product(dtype):
    rng = np.random.default_rng(8)
    values = [numbers(rng, (20, 50), dtype), numbers(rng, (50, 32), dtype)]
    values[0].view(np.uint16)[3, 5] = 0x7FFF
    values[0][4, 6] = np.inf
    block = product((20, 50), (50, 32), dtype, (False, False))

    (found,) = native_interpreter(block, EmulatedBackend(2, 64, rules=APART))(Run(), *values)

    assert np.isnan(found[3].astype(np.float32)).all()
    assert np.isinf(found[4].astype(np.float32)).all()
    assert np.isfinite(np.delete(found.astype(np.float32), [3, 4], axis=0)).all()


@pytest.mark.sampled(1)
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

    races = races_without("block_barrier", step, values, EmulatedBackend(1, 64, rules=APART))

    assert races and all(races)
