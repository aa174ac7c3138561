"""Stretches of small instructions whose branches run side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend as codegen_backend
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import arrange, plan_block, side_by_side
from core.plan.arena import ArenaMap
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import Root, View
from core.plan.partition import plan_parts
from core.plan.row_kernels import MergedOperand, Operand, RowInstruction, RowKernel
from core.plan.side_by_side import Limits, Stretch, _apart, _conflicts, _Place, stretches
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.laws.random_programs import EXAMPLES
from tests.mixtures import mixture

MANY = Limits(longest=1e18, heavy=0.0, gain=-math.inf)
"""Every branch, however short."""

Bytes = set[tuple[object, int]]


def towers(count: int, size: int = 64) -> Block:
    """`count` nets of two layers on the same rows, whose results are added, and all gradients."""
    b = BlockBuilder()
    x = b.param(TensorType((size, size), "float32"))
    weights = [b.param(TensorType((size, size), "float32")) for _ in range(2 * count)]
    total = None
    for i in range(count):
        h = b.emit("tanh", b.emit("matmul", b.emit("tanh", b.emit("matmul", x, weights[2 * i])), weights[2 * i + 1]))
        total = h if total is None else b.emit("add", total, h)
    block = b.build([b.emit("square", total)])
    return optimize(vjp(block, list(block.params[1:])))


def elements(view: View, axes: list[tuple[int, int]]) -> Iterator[int]:
    """The bytes of a view, one by one."""
    size = as_dtype(view.dtype).itemsize
    places = np.full((1,), view.offset)
    for n, stride in axes:
        places = (places[:, None] + np.arange(n) * stride).ravel()
    yield from (np.unique(places)[:, None] * size + np.arange(size)).ravel().tolist()


def touched(each: Instruction, arena: ArenaMap) -> tuple[Bytes, Bytes]:
    """The bytes that an instruction reads or writes, and those that it writes; of the arena by their places in it."""
    everything: Bytes = set()
    written: Bytes = set()

    def add(view: View, axes: list[tuple[int, int]], writes: bool) -> None:
        offset = arena.offsets.get(view.root)
        where = ("arena" if offset is not None else view.root, offset or 0)
        found = {(where[0], where[1] + at) for at in elements(view, axes)}
        everything.update(found)
        written.update(found if writes else ())

    if isinstance(each, Rows):
        kernel = each.kernel
        whole = {i.operand for i in kernel.code if i.kind == "lookup"}
        whole |= {n for each in kernel.merged for n in (each.x, each.order, each.starts)}
        for i, (view, operand) in enumerate(zip(each.views, kernel.operands, strict=True)):
            axes = list(zip((*kernel.outer, kernel.inner), (*operand.outer, operand.inner), strict=True))
            if i in whole:
                axes = [(view.root.nbytes // as_dtype(view.dtype).itemsize - view.offset, 1)]
            add(view, axes, operand.written)
    elif isinstance(each, Gemm):
        for view in (each.a, each.b, each.c):
            add(view, list(zip(view.shape, view.strides, strict=True)), view is each.c)
        if each.then is not None:
            more = touched(each.then, arena)
            everything |= more[0]
            written |= more[1]
    else:
        for root in {*each.reads(), *each.writes()}:
            add(View(root, "bool", (), ()), [(root.nbytes, 1)], root in {*each.writes()})
    return everything, written


def check(block: Block, threads: int) -> list[Stretch]:
    """Two instructions that run at the same time, or not in the order of the plan, share no byte that one writes."""
    found = []
    for plan in plan_parts(block, CPU_TARGET).regions:
        instructions = plan.body.instructions
        chosen = stretches(instructions, threads)
        arena = arrange(plan, [range(each.first, each.end) for each in chosen], replaces=True)
        for stretch in chosen:
            owner = {at: number for number, share in enumerate(stretch.shares) for at in share}
            assert sorted([*stretch.ahead, *owner, *stretch.after]) == list(range(stretch.first, stretch.end))
            apart = [at for at in (*stretch.ahead, *stretch.after) if not isinstance(instructions[at], Rows | Gemm)]
            assert apart == sorted(apart), "checks keep their order"
            memory = {at: touched(instructions[at], arena) for at in range(stretch.first, stretch.end)}
            for i, j in combinations(memory, 2):
                in_order = i in stretch.ahead or j in stretch.after or (i in owner and owner[i] == owner.get(j))
                if not in_order:
                    assert memory[i][1].isdisjoint(memory[j][0])
                    assert memory[j][1].isdisjoint(memory[i][0])
        found += chosen
    return found


def test_towers_run_side_by_side_and_what_adds_them_up_runs_afterwards():
    found = check(towers(4), 2)

    assert [len(each.shares) for each in found] == [2, 2]
    assert len(found[0].after) == 2
    assert not stretches(plan_block(towers(4), CPU_TARGET).body.instructions, 1)


def test_long_instructions_and_chains_have_no_stretches():
    b = BlockBuilder()
    h = b.param(TensorType((64, 64), "float32"))
    for _ in range(12):
        h = b.emit("matmul", h, h)
    assert not stretches(plan_block(b.build([h]), CPU_TARGET).body.instructions, 2)
    assert not stretches(plan_block(towers(4, 512), CPU_TARGET).body.instructions, 2)


def transforms(count: int) -> Block:
    """Fourier transforms, whose kernels have scratch memory, and all gradients."""
    b = BlockBuilder()
    results = [b.emit("rfft", b.param(TensorType((8, 360), "float32"))) for _ in range(count)]
    block = b.build(results)
    return optimize(vjp(block, list(block.params)))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("program", [towers, transforms])
def test_a_step_with_stretches_gives_the_numbers_of_the_reference_executor(program, threads, monkeypatch):
    monkeypatch.setattr(codegen_backend, "thread_count", lambda: threads)
    monkeypatch.setattr(side_by_side, "LIMITS", replace(side_by_side.LIMITS, gain=0.0))
    block = program(5)
    (plan,) = plan_parts(block, CPU_TARGET).regions
    assert any(len(each.shares) == threads for each in stretches(plan.body.instructions, threads))
    rng = np.random.default_rng(0)
    values = [(rng.standard_normal(block.types[n].shape) / 8).astype("float32") for n in block.params]
    run = native_interpreter(block, CPU)

    wanted = interpreter_of(block)(Run(), *values)
    found = [run(Run(), *values) for _ in range(50)]

    for each, right in zip(found[0], wanted, strict=True):
        np.testing.assert_allclose(each, right, rtol=1e-4, atol=1e-5)
    assert all(a.tobytes() == b.tobytes() for again in found for a, b in zip(found[0], again, strict=True))


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 10))])
def test_no_instruction_touches_what_another_one_writes_beside_it(part, monkeypatch):
    """In random mixtures and their gradients, where every branch is a stretch; the bytes are compared one by one."""
    monkeypatch.setattr(side_by_side, "LIMITS", MANY)
    several = 0
    for seed in range(part * 12 + 1, part * 12 + 13):
        block, _, wrt = mixture(seed, "float32", 2)
        several += sum(len(each.shares) > 1 for each in check(optimize(vjp(block, wrt)), 2 + seed % 2))

    assert several > 10


def test_a_kernel_that_merges_rows_waits_for_any_writer_of_them():
    """The strides of such an operand do not describe what the kernel reads."""
    x, out = Root(8 * 16, "arena", "x"), Root(2 * 16, "arena", "out")
    order, starts = (View(Root(32, "arena", name), "int32", (8,), (1,)) for name in ("order", "starts"))
    row = Operand("float32", (4,), 1)
    copy = (
        RowInstruction("load", "float32", True, operand=0),
        RowInstruction("store", full=True, args=(0,), operand=1),
    )
    given = View(Root(64, "given", "y"), "float32", (4, 4), (4, 1))
    last = Rows(RowKernel((4,), 4, (row, replace(row, written=True)), copy), (given, View(x, "float32", (), (), 16)))
    operands = (
        replace(row, outer=(0,)),
        replace(row, written=True),
        Operand("int32", (0,), 0),
        Operand("int32", (1,), 0),
    )
    merged = RowKernel((2,), 4, operands, copy, (MergedOperand(0, 2, 3, 8),))
    merging = Rows(merged, (View(x, "float32", (), ()), View(out, "float32", (), ()), order, starts))

    assert _conflicts([last, merging], [1.0, 1.0], Limits()) == [[], [0]]


def test_a_kernel_waits_for_the_last_product_of_a_batch_whose_epilogue_writes_what_it_reads():
    """The kernel of an epilogue has the rows of one product."""
    shape, strides = (3, 4, 4), (16, 4, 1)
    a, b, c, out, copied = (View(Root(192, "arena", n), "float32", shape, strides) for n in "abcde")
    row = Operand("float32", (4,), 1)
    code = (
        RowInstruction("load", "float32", True, operand=0),
        RowInstruction("store", full=True, args=(0,), operand=1),
    )
    kernel = RowKernel((4,), 4, (row, replace(row, written=True)), code)
    batch = Gemm(a, b, c, then=Rows(kernel, (c, out)))
    last = Rows(kernel, (replace(out, offset=32), copied))

    assert _conflicts([batch, last], [1.0, 1.0], Limits()) == [[], [0]]


def test_places_that_count_as_apart_have_no_byte_in_common():
    rng = np.random.default_rng(7)
    root = Root(10_000, "arena", "x")
    apart = 0
    pairs = min(20_000, 40 * EXAMPLES)  # `make test-all` runs all of them
    for _ in range(pairs):
        places, found = [], []
        for dtype in rng.choice(["float32", "bool", "float64"], 2):
            axes = [(int(rng.integers(1, 5)), int(rng.choice([-6, -2, 0, 1, 2, 3, 6, 8, 12]))) for _ in range(3)]
            view = View(root, str(dtype), (), (), int(rng.integers(100, 140)))
            places.append(_Place(root, True, view, axes))
            found.append(set(elements(view, axes)))
        if _apart(*places):
            apart += 1
            assert found[0].isdisjoint(found[1]), places
    assert apart > pairs // 10
