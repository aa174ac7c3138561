"""Products of 16-bit floats: a device multiplies them as they are and rounds sums where it stores them, a CPU not."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.device.gpu import DEVICE_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.flow import Loop
from core.plan.instructions import Gemm, Rows
from core.plan.target import Target
from core.wire import read
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_emulated_programs import agree
from tests.programs import Sketch

HALVES = ("float16", "bfloat16")
TURNS = [(False, False), (True, False), (False, True), (True, True)]
SHAPES = [((12, 20), (20, 8)), ((3, 12, 20), (20, 8)), ((3, 12, 20), (3, 20, 8)), ((2, 3, 12, 20), (3, 20, 8))]
ROUNDING = {("load", ""), ("apply", "cast"), ("store", "")}


def gradients(x: tuple[int, ...], y: tuple[int, ...], dtype: str, turns: tuple[bool, bool]) -> Block:
    """A product and the gradients of both operands."""
    b = BlockBuilder()
    x, y = ((*s[:-2], s[-1], s[-2]) if turn else s for s, turn in zip((x, y), turns, strict=True))
    one, other = (b.param(TensorType(s, dtype)) for s in (x, y))
    made = b.emit("matmul", one, other, transpose_x=turns[0], transpose_y=turns[1])
    block = b.build([made])
    return optimize(vjp(block, list(block.params)))


def products(block: Block, target: Target) -> list[Gemm]:
    return [each for each in plan_block(block, target).body.instructions if isinstance(each, Gemm)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("turns", TURNS, ids=["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize(("x", "y"), SHAPES)
def test_a_device_multiplies_16_bit_operands_of_any_layout_and_stores_16_bit_results(x, y, dtype, turns):
    instructions = plan_block(gradients(x, y, dtype, turns), DEVICE_TARGET).body.instructions

    found = [each for each in instructions if isinstance(each, Gemm)]
    assert found
    assert {view.dtype for each in found for view in (each.a, each.b, each.c)} == {dtype}
    assert not any(each.accumulate for each in found)
    results = {each.c.root for each in found}
    readers = [each for each in instructions if isinstance(each, Rows) and not results.isdisjoint(each.reads())]
    assert not [each for each in readers if {(i.kind, i.op) for i in each.kernel.code} <= ROUNDING]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("turns", TURNS, ids=["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize(("x", "y"), SHAPES)
def test_sums_are_float32_numbers_in_the_memory_of_a_cpu(x, y, dtype, turns):
    found = products(gradients(x, y, dtype, turns), CPU_TARGET)

    assert found
    assert {each.c.dtype for each in found} == {"float32"}


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_is_stored_in_the_layout_of_its_transposition(dtype):
    b = BlockBuilder()
    x, y = b.param(TensorType((2, 3, 16, 20), dtype)), b.param(TensorType((2, 3, 20, 8), dtype))
    block = b.build([b.emit("transpose", b.emit("matmul", x, y), axes=(0, 2, 1, 3))])

    (found,) = plan_block(block, DEVICE_TARGET).body.instructions

    assert isinstance(found, Gemm)
    assert (found.c.dtype, found.c.strides) == (dtype, (16 * 3 * 8, 8, 3 * 8, 1))


@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,jk->k", "ijl,jk->ik"])
def test_an_einsum_that_computes_more_than_one_product_rounds_its_result_alone(equation):
    terms, _ = equation.split("->")
    b = BlockBuilder()
    operands = [b.param(TensorType((16,) * len(term), "bfloat16")) for term in terms.split(",")]
    block = b.build([b.emit("einsum", *operands, equation=equation)])

    assert {each.c.dtype for each in products(block, DEVICE_TARGET)} <= {"float32"}


def sums_in_a_loop(dtype: str, equation: str = "") -> Sketch:
    """A state of a loop to which each trip adds a product."""
    rng = np.random.default_rng(1)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((5, 24, 16)), dtype)
    w = s.param("w", rng.standard_normal((16, 8)), dtype)
    total = s.const(0.0, [24, 8], dtype, out="total")
    t = s.const(0, dtype="int64", out="t")
    with s.repeat(5):
        now = s.op("gather", x, t)
        made = s.op("einsum", [now, w], equation=equation) if equation else s.op("matmul", now, w)
        s.op("add", total, made, out="total")
        s.op("increment", t, step=1, out="t")
    s.op("reduce_sum", s.op("square", total), out="loss")
    return s


@pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("equation", ["", "ij,jk->ik"])
def test_a_16_bit_product_is_rounded_before_a_loop_adds_it_to_a_16_bit_state(dtype, equation):
    s = sums_in_a_loop(dtype, equation)
    executable = compile_gradient(read({"blocks": s.blocks}), GradientQuery(loss="loss"))
    block, values = executable.interpreter.block, [s.values[v.name] for v in executable.inputs]
    loop = next(each for each in plan_block(block, DEVICE_TARGET).body.instructions if isinstance(each, Loop))

    found = [each for each in loop.body.instructions if isinstance(each, Gemm)]
    found += [each.many for each in loop.joint]

    assert [(each.c.dtype, each.accumulate) for each in found] == [(dtype, False)]
    agree(block, values, [EmulatedBackend(2, 64)], {"bfloat16": 0.01, "float16": 0.002}[dtype])
