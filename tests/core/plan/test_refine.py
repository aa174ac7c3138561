"""The bodies of loops and branches are rewritten like whole plans: equal results, no more memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend as codegen_backend
from core.codegen import packed_gemm, parallel
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.plan import arrange, plan_block, refine
from core.plan.flow import Branch, Loop
from core.plan.instructions import Gather, Gemm, Instruction, ScatterAdd
from core.plan.striped import Striped
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.test_stripes import agree, limits
from tests.device.agreement import SCOPES
from tests.device.agreement import agree as agree_on_device
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_stripes import target as device_target

Made = tuple[Block, list[np.ndarray]]
SHAPE = (2, 3, 19, 6)


def inside(instructions: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """The instructions in the bodies of loops and branches."""
    for each in instructions:
        bodies = (each.body,) if isinstance(each, Loop) else (each.yes, each.no) if isinstance(each, Branch) else ()
        for body in bodies:
            yield from body.instructions
            yield from inside(body.instructions)


def found_inside(block: Block, backend: CpuBackend) -> list[Instruction]:
    return list(inside(plan_block(optimize(block), backend.target).body.instructions))


def differentiated(b: BlockBuilder, results: list[Value], order: int = 1) -> Made:
    """The block with its gradients, and random operands."""
    block = b.build(results)
    wrt = [name for name in block.params if block.types[name].is_float]
    for _ in range(order):
        block = vjp(block, wrt)
    rng = np.random.default_rng(7)
    values = []
    for name in block.params:
        type = block.types[name]
        is_number = type.dtype.startswith("float")
        values.append((rng.standard_normal(type.shape) * 0.5).astype(type.dtype) if is_number else np.ones((), "bool"))
    return block, values


def in_loop(body: Callable[..., Value], shape: tuple[int, ...], dtype: str = "float64", order: int = 1, **how) -> Made:
    """``x = tanh(body(x, w, row))`` for three rows; `body` takes the state, a captured array and a row of a stack."""
    i, b = BlockBuilder(), BlockBuilder()
    state = TensorType(shape, dtype)
    new = i.emit("tanh", body(*(i.param(state) for _ in range(3))))
    x, w = b.param(state), b.param(state)
    rows = b.emit("array_unstack", b.param(TensorType((3, *shape), dtype)))
    out = b.emit("loop", x, w, rows, sub_block=i.build([new]), carried=1, captured=1, condition=False, **how)
    return differentiated(b, [out], order)


def in_branch(body: Callable[..., Value], shape: tuple[int, ...], dtype: str = "float64") -> Made:
    """`body` on three arrays if a bool is true, else the first of them."""
    b, sides = BlockBuilder(), [BlockBuilder(), BlockBuilder()]
    state = TensorType(shape, dtype)
    given = [[side.param(state) for _ in range(3)] for side in sides]
    blocks = [sides[0].build([body(*given[0])]), sides[1].build([given[1][0] * 0.5])]
    condition = b.param(TensorType((), "bool"))
    operands = [b.param(state) for _ in range(3)]
    return differentiated(b, [b.emit("if_else", condition, *operands, true_block=blocks[0], false_block=blocks[1])])


def attention(q: Value, k: Value, v: Value) -> Value:
    b = q.builder
    return b.emit("matmul", b.emit("softmax", b.emit("matmul", q, k, transpose_y=True) * 0.4), v)


def causal(q: Value, k: Value, v: Value) -> Value:
    return q.builder.emit("scaled_dot_product_attention", q, k, v, causal=True)


def dense(x: Value, w: Value, row: Value) -> Value:
    b = x.builder
    return b.emit("tanh", b.emit("matmul", x, w) + row) * x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", [{"memory": "store"}, {"memory": "recompute", "reverse": True}, {"memory": "sqrt"}])
@pytest.mark.parametrize("body", [attention, causal])
def test_attention_in_a_loop_runs_in_stripes(body, how):
    block, values = in_loop(body, SHAPE, **how)

    parts = [each for each in found_inside(block, limits()) if isinstance(each, Striped)]
    assert len(parts) >= 2  # forward and backward
    agree(block, values, limits())


@pytest.mark.parametrize(("how", "windows"), [("recompute", 3), ("store", 1)])
def test_hidden_columns_are_left_out_in_a_loop(how, windows):
    """Backward only where the probabilities are computed again, since nothing is known about recorded ones."""
    block, _ = in_loop(causal, SHAPE, memory=how)

    parts = [each for each in found_inside(block, limits()) if isinstance(each, Striped)]

    assert sum(each.window is not None for each in parts) == windows


def test_attention_in_a_loop_agrees_in_second_order():
    agree(*in_loop(attention, (2, 2, 5, 4), order=2, memory="store"), limits())


@pytest.mark.parametrize("body", [attention, causal])
def test_attention_in_a_branch_runs_in_stripes(body):
    block, values = in_branch(body, SHAPE)

    assert any(isinstance(each, Striped) for each in found_inside(block, limits()))
    for condition in (True, False):
        agree(block, [np.array(condition), *values[1:]], limits())


@pytest.mark.sampled(1)
@pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")
@pytest.mark.parametrize("make", [in_loop, in_branch])
def test_stripes_in_bodies_agree_on_a_device(make):
    block, values = make(causal, SHAPE)
    backend = EmulatedBackend(3, 32, target=device_target(), seed=3, rules=SCOPES[1])

    assert any(isinstance(i, Striped) for i in inside(plan_block(optimize(block), device_target()).body.instructions))
    agree_on_device(optimize(block), values, backend)


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(packed_gemm, "PACKED", 1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("make", [in_loop, in_branch])
def test_work_on_products_in_bodies_moves_into_them(make, threads, all_are_large, monkeypatch):
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(codegen_backend, "thread_count", lambda: threads)
    block, values = make(dense, (9, 9))
    backend = CpuBackend()

    products = [each for each in found_inside(block, backend) if isinstance(each, Gemm)]
    assert sum(each.then is not None for each in products) >= 2  # forward and backward
    agree(block, values, backend)


def test_bits_do_not_depend_on_the_number_of_threads(all_are_large, monkeypatch):
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    block, values = in_loop(dense, (9, 9))
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(codegen_backend, "thread_count", lambda threads=threads: threads)
        found.append(native_interpreter(optimize(block), CpuBackend())(Run(), *values))

    for each in zip(*found, strict=True):
        assert len({x.tobytes() for x in each}) == 1


def test_a_product_that_is_a_result_of_a_branch_is_stored(all_are_large):
    """Although only the epilogue reads it inside of the branch."""
    b, sides = BlockBuilder(), [BlockBuilder(), BlockBuilder()]
    square = TensorType((8, 8), "float64")
    blocks = []
    for side in sides:
        x, y = side.param(square), side.param(square)
        z = side.emit("matmul", x, y)
        blocks.append(side.build([z, side.emit("tanh", z + x)]))
    condition, x, y = b.param(TensorType((), "bool")), b.param(square), b.param(square)
    z, h = b.emit("if_else", condition, x, y, true_block=blocks[0], false_block=blocks[1])
    block, values = differentiated(b, [b.emit("matmul", z, h)])

    products = [each for each in found_inside(block, CpuBackend()) if isinstance(each, Gemm) and each.then is not None]

    assert products
    assert all(each.kept for each in products if each.c.root.name == z.name)
    agree(block, values, CpuBackend())


@pytest.mark.parametrize("terms", [40, packed_gemm.most_steps(pairs=False) + 8])
def test_a_result_that_only_an_epilogue_reads_has_no_memory(terms):
    """Unless the sums of a product are stored because it takes several blocks."""
    b = BlockBuilder()
    x, w, v = (b.param(TensorType(s, "float64")) for s in ((64, terms), (terms, 72), (64, 72)))
    block, values = b.build([b.emit("tanh", b.emit("matmul", x, w)) * v]), []
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(block.types[n].shape) for n in block.params]
    plan = plan_block(block, CPU_TARGET)

    (product,) = plan.body.instructions

    assert isinstance(product, Gemm)
    assert product.then is not None
    assert not product.kept
    assert arrange(plan).size == (0 if terms < packed_gemm.most_steps(pairs=False) else 64 * 72 * 8)
    agree(block, values, CpuBackend())


@pytest.mark.parametrize(("body", "shape"), [(attention, (2, 2, 96, 16)), (dense, (96, 96)), (causal, (2, 1, 150, 8))])
@pytest.mark.parametrize("memory", ["store", "recompute"])
def test_rewritten_bodies_take_no_more_memory(body, shape, memory, monkeypatch):
    block = optimize(in_loop(body, shape, "float32", memory=memory)[0])
    found = replace(CPU_TARGET, stripes=replace(CPU_TARGET.stripes, nbytes=0))

    after = arrange(plan_block(block, found)).size
    monkeypatch.setattr(refine, "_inside", lambda each, _: each)
    before = arrange(plan_block(block, found)).size

    assert after <= before


def test_rows_that_a_loop_gathers_and_scatters_reach_no_memory():
    i, b = BlockBuilder(), BlockBuilder()
    states, positions = TensorType((7, 4), "float64"), TensorType((30,), "int64")
    x, source, target = i.param(states), i.param(positions), i.param(positions)
    row = i.param(TensorType((4,), "float64"))
    made = i.emit("segment_sum", i.emit("gather", x, source, axis=0), target, num_segments=7)
    body = i.build([i.emit("tanh", made * row)])
    given = [b.param(each) for each in (states, positions, positions)]
    rows = b.emit("array_unstack", b.param(TensorType((3, 4), "float64")))
    out = b.emit("loop", *given, rows, sub_block=body, carried=1, captured=2, condition=False)
    block = vjp(b.build([out]), [given[0].name])
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((7, 4)), *(rng.integers(0, 7, 30) for _ in "st"), rng.standard_normal((3, 4)),
              rng.standard_normal((7, 4))]  # fmt: skip

    parts = found_inside(block, CpuBackend())

    assert any(isinstance(each, ScatterAdd) and each.rows is not None for each in parts)
    assert not any(isinstance(each, Gather) for each in parts)
    agree(block, values, CpuBackend())


def test_rows_that_are_a_result_of_a_branch_are_stored():
    b, sides = BlockBuilder(), [BlockBuilder(), BlockBuilder()]
    states, positions = TensorType((7, 4), "float64"), TensorType((7,), "int64")
    blocks = []
    for side in sides:
        x, source, target = side.param(states), side.param(positions), side.param(positions)
        rows = side.emit("gather", x, source, axis=0)
        blocks.append(side.build([rows, side.emit("segment_sum", rows, target, num_segments=7)]))
    given = [b.param(each) for each in (TensorType((), "bool"), states, positions, positions)]
    outs = b.emit("if_else", *given, true_block=blocks[0], false_block=blocks[1])
    block = b.build([b.emit("tanh", each) for each in outs])
    rng = np.random.default_rng(0)
    values = [np.array(True), rng.standard_normal((7, 4)), *(rng.integers(0, 7, 7) for _ in "st")]

    agree(block, values, CpuBackend())
