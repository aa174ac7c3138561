"""Instructions that free memory run early, and keep their order where one needs another."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.passes.pipeline import optimize
from core.plan import arrange, plan_block
from core.plan.freeing import freed_early
from core.plan.instructions import Instruction, Instructions, Rows
from core.plan.memory import Root, View
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.plan.test_side_by_side import towers

ROWS, WIDTH = 1024, 96
ONE = 4 * ROWS * WIDTH


def tower(layers: int) -> Block:
    """The gradients of dense layers with tanh."""
    b = BlockBuilder()
    h = b.param(TensorType((ROWS, WIDTH), "float32"))
    for _ in range(layers):
        h = b.emit("tanh", b.emit("matmul", h, b.param(TensorType((WIDTH, WIDTH), "float32"))))
    return optimize(vjp(b.build([b.emit("reduce_sum", b.emit("square", h))])))


@pytest.mark.parametrize("layers", [3, 6])
def test_the_gradients_of_a_layer_need_no_memory_beside_what_the_layers_keep(layers):
    plan = plan_block(tower(layers), CPU_TARGET)
    body = Instructions(freed_early(plan.body.instructions))

    kept = layers * ONE
    assert arrange(plan, replaces=True).size >= kept + ONE
    assert backend.write_plan(plan)[1] <= kept + ONE // 8
    assert {*body.instructions} == {*plan.body.instructions}


def waiting() -> tuple[Instruction, ...]:
    """The last instruction takes no memory and frees a large array, but also reads what the one before it writes."""
    large, next, last = (Root(4 * n) for n in (1 << 18, (1 << 18) + 16, (1 << 18) + 32))
    small, given, result = Root(4), Root(4, "given"), Root(4, "given")

    def rows(*reads: Root, writes: Root) -> Rows:
        code = [RowInstruction("load", "float32", operand=i) for i in range(len(reads))]
        code.append(RowInstruction("store", "float32", args=(0,), operand=len(reads)))
        operands = tuple(Operand("float32", (), 0, root is writes) for root in (*reads, writes))
        views = tuple(View(root, "float32", (), ()) for root in (*reads, writes))
        return Rows(RowKernel((), 1, operands, tuple(code)), views)

    return (
        rows(given, writes=large),
        rows(large, writes=next),
        rows(next, writes=last),
        rows(last, writes=small),
        rows(large, small, writes=result),
    )


@pytest.mark.parametrize(
    "make",
    [lambda: plan_block(tower(4), CPU_TARGET).body.instructions, waiting],
    ids=["tower", "waiting"],
)
def test_the_order_of_instructions_that_touch_one_array_stays(make):
    before = make()
    after = freed_early(before)

    def conflict(a: Instruction, b: Instruction) -> bool:
        meet = {*a.writes()} & {*b.writes(), *b.reads()} | {*b.writes()} & {*a.reads()}
        return bool(meet)

    place = {each: at for at, each in enumerate(after)}
    assert len(after) == len(before)
    assert all(place[a] < place[b] for a, b in combinations(before, 2) if conflict(a, b))


def test_small_arrays_change_no_order():
    before = plan_block(towers(4), CPU_TARGET).body.instructions

    assert freed_early(before) is before


def test_the_bits_do_not_depend_on_the_order(monkeypatch):
    block = tower(3)
    rng = np.random.default_rng(0)
    values = [(0.1 * rng.standard_normal(block.types[n].shape)).astype("float32") for n in block.params]

    found = native_interpreter(block, CpuBackend())(Run(), *values)
    monkeypatch.setattr(backend, "freed_early", lambda instructions: instructions)
    wanted = native_interpreter(block, CpuBackend())(Run(), *values)

    assert [f.tobytes() for f in found] == [w.tobytes() for w in wanted]
