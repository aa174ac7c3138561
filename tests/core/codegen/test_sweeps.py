"""The sweep along a row that runs each instruction: a law for the row kernels of every op and its gradient."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.codegen.sweeps import EXPENSIVE, kept_values, sweeps
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import Unsupported, plan_block
from core.plan.flow import Branch, Loop
from core.plan.instructions import Instructions, Rows
from core.plan.row_kernels import RowInstruction, RowKernel
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.laws.examples import OPS, arrays, block_for, examples_of, floats


def kernels_of(body: Instructions) -> Iterator[RowKernel]:
    for each in body.instructions:
        if isinstance(each, Rows):
            yield each.kernel
        elif isinstance(each, Loop):
            yield from kernels_of(each.body)
        elif isinstance(each, Branch):
            yield from (*kernels_of(each.yes), *kernels_of(each.no))


def row_kernels(block: Block) -> list[RowKernel]:
    try:
        return list(kernels_of(plan_block(optimize(block), CPU_TARGET).body))
    except Unsupported:
        return []


def sweep_through(code: tuple[RowInstruction, ...]) -> None:
    """Run through the sweeps and check that each value is available at its use."""
    kept = kept_values(code, 8)
    there: set[int] = set()  # values that are constant along the row
    scratch: set[int] = set()
    done: list[int] = []
    computed: list[int] = []
    for sweep in sweeps(code, kept, pieces=8):
        for n in sweep.before:
            assert there.issuperset(code[n].args)
            there.add(n)
        done += sweep.before
        made: set[int] = set()
        for n in sweep.along:
            if n in sweep.read:
                assert n in scratch
            else:
                assert all(a in (made if code[a].full else there) for a in code[n].args)
            made.add(n)
        totals = {n for n in sweep.along if code[n].kind == "reduce"}
        there |= totals
        computed += [n for n in sweep.along if code[n].op in EXPENSIVE and n not in sweep.read]
        scratch |= made.intersection(kept)
        done += [n for n in sweep.along if n in totals or code[n].kind in ("store", "accumulate", "check")]
    ends = [n for n, i in enumerate(code) if i.kind in ("store", "accumulate", "check", "reduce") or not i.full]
    assert sorted(done) == ends  # each of them once
    assert len(computed) == len(set(computed))  # and no expensive value is computed twice


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OPS)
def test_every_value_of_a_sweep_is_computed_before_its_use(name):
    for example in examples_of(OPS[name]):
        values = arrays(example)
        block = block_for(OPS[name], example)
        wrt = [block.params[k] for k in floats(values)]
        blocks = [block, vjp(block, wrt)] if OPS[name].differentiable and wrt else [block]
        for kernel in (kernel for each in blocks for kernel in row_kernels(each)):
            sweep_through(kernel.code)


def test_a_chain_of_many_sums_is_written_in_a_time_that_grows_with_its_length():
    """Later sweeps read what earlier ones computed, although no single op takes long."""

    def instructions(links: int) -> int:
        b = BlockBuilder()
        x = b.param(TensorType((64, 512), "float32"))
        for _ in range(links):
            x = b.emit("sub", x, b.emit("reduce_mean", x, axes=(1,), keepdims=True))
            x = b.emit("mul", x, b.emit("scale", x, scale=0.1, bias=1.0))
        (kernel,) = row_kernels(b.build([x]))
        return sum(len(each.along) for each in sweeps(kernel.code, kept_values(kernel.code, 512), 4))

    assert instructions(40) < 2.5 * instructions(20)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("width", [40, 67, 300])
def test_a_mask_with_a_long_way_is_read_by_later_sweeps(dtype, width):
    b = BlockBuilder()
    x, y = (b.param(TensorType((7, width), dtype)) for _ in "xy")
    mask = b.emit("less_than", x, y)
    for i in range(9):
        other = b.emit("maximum", x, b.emit("neg", y)) if i % 2 else y
        mask = b.emit("logical_xor", mask, b.emit("less_than", other, b.emit("add", x, y)))
    top = b.emit("reduce_max", b.emit("where", mask, x, y), axes=(1,), keepdims=True)
    z = b.emit("where", mask, b.emit("sub", x, top), y)
    top = b.emit("reduce_max", z, axes=(1,), keepdims=True)
    block = b.build([b.emit("where", mask, b.emit("sub", z, top), x)])
    given = [np.random.default_rng(i).integers(-3, 4, (7, width)).astype(as_dtype(dtype)) for i in range(2)]

    (kernel,) = row_kernels(block)
    assert "bool" in {kernel.code[n].dtype for n in kept_values(kernel.code, width)}
    found, wanted = native_interpreter(block, CPU)(Run(), *given), interpreter_of(block)(Run(), *given)
    np.testing.assert_array_equal(found[0], wanted[0])
