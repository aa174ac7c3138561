"""Float32 copies of 16-bit arrays: one for all products that read an array, and none for sums."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import plan_block, storage
from core.plan.entries import Uniform
from core.plan.memory import View
from core.plan.storage import Storage
from tests.laws.test_native_halves import both

COUNT, SIZE = 4, 20


def products() -> Block:
    """Products of one matrix with several vectors."""
    b = BlockBuilder()
    matrix = b.param(TensorType((SIZE, SIZE), "float16"))
    vectors = [b.param(TensorType((2, SIZE), "float16")) for _ in range(COUNT)]
    return optimize(b.build([b.emit("matmul", vector, matrix) for vector in vectors]))


def arrays(block: Block) -> list[np.ndarray]:
    rng, types = np.random.default_rng(0), [block.types[name] for name in block.params]
    return [rng.standard_normal(type.shape).astype(as_dtype(type.dtype)) for type in types]


def wide_arrays(block: Block, elements: int) -> int:
    """The float32 arrays of so many elements that the plan of a block writes."""
    roots = {root for each in plan_block(block, CPU_TARGET).body.instructions for root in each.writes()}
    return sum(root.place == "arena" and root.nbytes == 4 * elements for root in roots)


def test_products_that_read_one_16_bit_array_share_its_copy():
    assert wide_arrays(products(), SIZE * SIZE) == 1
    both(products(), arrays(products()), units=1)


@pytest.mark.parametrize(("room", "copies"), [(0, COUNT), (4 * SIZE * SIZE - 1, COUNT), (4 * SIZE * SIZE, 1)])
def test_copies_beyond_a_size_in_all_are_made_for_each_reader(room, copies, monkeypatch):
    monkeypatch.setattr(storage, "HELD", room)

    assert wide_arrays(products(), SIZE * SIZE) == copies


def test_an_array_that_was_written_again_is_copied_again():
    low = Storage(CPU_TARGET.rows)
    array = low.allocate((SIZE,), "float16")
    low.write(Uniform(np.float16(1), "float16", (SIZE,)), array)

    def copied() -> View:
        return low.copied_once(array, lambda low, view: _written(low, view))

    first, second = copied(), copied()
    low.write(Uniform(np.float16(2), "float16", (SIZE,)), array)

    assert first == second
    assert copied() != first


def _written(low: Storage, view: View) -> View:
    made = low.allocate(view.shape, view.dtype)
    low.write(view, made)
    return made


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_reduction_reads_a_16_bit_array_without_a_copy(op, axes):
    b = BlockBuilder()
    x = b.param(TensorType((60, SIZE), "bfloat16"))
    block = optimize(b.build([b.emit(op, x, axes=axes, keepdims=False)]))

    assert wide_arrays(block, 60 * SIZE) == 0
    both(block, arrays(block), units=1)
