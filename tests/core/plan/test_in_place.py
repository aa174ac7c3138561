"""An array lies where another one ends if one instruction reads each element of the old one before it writes the new
one.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.passes.pipeline import optimize
from core.plan import arrange, plan_block
from core.plan.in_place import by_elements
from core.plan.instructions import Gemm, Rows
from core.plan.memory import Root, View
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run

ROWS, COLUMNS = 8, 500


def classes(rows: int = 512, width: int = 8, count: int = 300) -> Block:
    """A cross entropy over many classes and its adjoints."""
    b = BlockBuilder()
    x, w = (b.param(TensorType(shape, "float32")) for shape in ((rows, width), (width, count)))
    y = b.param(TensorType((rows,), "int64"))
    loss = b.emit("softmax_with_cross_entropy", b.emit("matmul", x, w), y, reduction="mean")
    return optimize(vjp(b.build([loss])))


def kernel(*code: RowInstruction, written: tuple[bool, ...] = (False, False, True, True)) -> RowKernel:
    """A kernel of rows whose operands are arrays without gaps."""
    operands = tuple(Operand("float32", (COLUMNS,), 1, each) for each in written)
    return RowKernel((ROWS,), COLUMNS, operands, code)


def rows(kernel: RowKernel) -> tuple[Rows, list[Root]]:
    roots = [Root(4 * ROWS * COLUMNS) for _ in kernel.operands]
    views = tuple(View(root, "float32", (ROWS, COLUMNS), (COLUMNS, 1)) for root in roots)
    return Rows(kernel, views), roots


def load(operand: int) -> RowInstruction:
    return RowInstruction("load", "float32", True, operand=operand)


def store(value: int, operand: int) -> RowInstruction:
    return RowInstruction("store", "float32", True, (value,), operand=operand)


def apply(op: str, *args: int, full: bool = True) -> RowInstruction:
    return RowInstruction("apply", "float32", full, args, op)


TOTAL = RowInstruction("reduce", "float32", False, (1,), "sum")
"""The sum of each row of what the second instruction loads."""


def test_a_sweep_that_reads_again_what_an_earlier_one_has_replaced_needs_memory_of_its_own():
    early = rows(kernel(load(0), load(1), TOTAL, store(0, 2), apply("add", 0, 2), store(4, 3)))
    late = rows(kernel(load(0), load(1), TOTAL, apply("add", 0, 2), store(3, 2), store(3, 3)))

    for each, (x, _, first, second) in (early, late):
        assert by_elements(each, x, second)
        assert by_elements(each, x, first) == (each is late[0])


def test_a_kernel_may_replace_an_array_after_it_has_summed_it():
    each, (_, y, new, _) = rows(kernel(load(0), load(1), TOTAL, apply("add", 1, 2), store(3, 2), store(0, 3)))

    assert by_elements(each, y, new)


def test_other_paths_and_other_uses_need_memory_of_their_own():
    code = load(0), load(1), apply("add", 0, 1), store(2, 2)
    each, (x, _, new, _) = rows(kernel(*code))
    assert by_elements(each, x, new)

    one = View(each.views[2].root, "float32", (ROWS, COLUMNS), (COLUMNS, 1), 16)
    moved = Rows(each.kernel, (*each.views[:2], one, each.views[3]))
    turned = list(each.kernel.operands)
    turned[0] = Operand("float32", (1,), ROWS)
    spread = Operand("float32", (0,), 1)
    again = kernel(*code, load(0), store(4, 3))

    assert not by_elements(moved, x, new)
    assert not by_elements(Rows(RowKernel((ROWS,), COLUMNS, tuple(turned), code), each.views), x, new)
    operands = (spread, each.kernel.operands[1], Operand("float32", (0,), 1, True), each.kernel.operands[3])
    assert not by_elements(Rows(RowKernel((ROWS,), COLUMNS, operands, code), each.views), x, new)
    assert not by_elements(Rows(again, each.views), x, new)
    added = RowInstruction("accumulate", "float32", True, (0,), "sum", operand=2)
    assert not by_elements(Rows(kernel(load(0), added), each.views), x, new)


def test_an_epilogue_replaces_what_it_reads_but_not_the_operands_of_its_product():
    each, (x, _, new, _) = rows(kernel(load(0), load(1), apply("mul", 0, 1), store(2, 2)))
    view = each.views[0]
    others = [View(Root(0), "float32", shape, (shape[1], 1)) for shape in ((ROWS, 64), (64, COLUMNS))]
    c = each.views[1]
    spread = View(view.root, "float32", view.shape, (0, 1))

    assert by_elements(Gemm(*others, c, then=each), x, new)
    assert not by_elements(Gemm(view, others[1], c, then=each), x, new)
    assert not by_elements(Gemm(*others, view, then=each), x, new)
    assert not by_elements(Gemm(*others, each.views[2], then=each), x, new)
    assert not by_elements(Gemm(*others, c, then=Rows(each.kernel, (spread, *each.views[1:]))), x, new)
    assert not by_elements(Gemm(*others, c), x, new)


def sizes(block: Block) -> tuple[int, int]:
    plan = plan_block(block, CPU_TARGET)
    return arrange(plan).size, arrange(plan, replaces=True).size


def test_the_gradients_of_scores_lie_where_the_scores_were():
    apart, replaced = sizes(classes())

    scores = 512 * 300 * 4
    assert apart > 2 * scores
    assert replaced < 1.2 * scores


def test_arrays_share_bytes_only_where_one_is_replaced():
    plan = plan_block(classes(), CPU_TARGET)
    arena = arrange(plan, replaces=True)
    lives: dict[Root, list[int]] = {}
    for at, each in enumerate(plan.body.instructions):
        for root in (*each.reads(), *each.writes()):
            lives.setdefault(root, [at, at])[1] = at
    shared = 0
    for a, b in combinations(arena.offsets, 2):
        meet = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
        apart = arena.offsets[a] + a.nbytes <= arena.offsets[b] or arena.offsets[b] + b.nbytes <= arena.offsets[a]
        if meet and not apart:
            old, new = (a, b) if lives[a][1] == lives[b][0] else (b, a)
            assert lives[old][1] == lives[new][0]
            assert arena.offsets[old] == arena.offsets[new]
            assert old.nbytes == new.nbytes
            shared += 1
    assert shared


def test_replaced_arrays_change_no_number():
    block = classes()
    rng = np.random.default_rng(0)
    values = [
        rng.integers(0, 300, type.shape) if type.dtype == "int64" else rng.standard_normal(type.shape).astype("float32")
        for type in (block.types[n] for n in block.params)
    ]

    found, wanted = (run(Run(), *values) for run in (native_interpreter(block, CPU), interpreter_of(block)))

    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=2e-4, atol=1e-6)
