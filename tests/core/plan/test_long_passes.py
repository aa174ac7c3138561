"""Passes with many reductions along the row: their number is limited, because LLVM's time for one pass grows faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.codegen.backend import CpuBackend, write_plan
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.plan import plan_block
from core.plan.instructions import Rows
from core.plan.target import Target
from core.wire import read
from tests.programs import Sketch


def softmaxes(count: int) -> Sketch:
    """So many softmaxes, each of the result of the one before."""
    s = Sketch()
    s.param("w", np.random.default_rng(0).standard_normal((32, 32)), "float32")
    s.op("assign", "w", out="h")
    for _ in range(count):
        s.op("add", s.op("scale", s.op("softmax", "h"), scale=5.0), "w", out="h")
    s.total(s.op("mul", "h", "h"))
    return s


class Limited(CpuBackend):
    """The CPU with at most ten reductions in one pass."""

    target = replace(CPU_TARGET, rows=replace(CPU_TARGET.rows, sums=10))


def sums_of_passes(sketch: Sketch, target: Target) -> list[int]:
    """The reductions along the row in each pass."""
    block = compile_gradient(read(sketch.document), GradientQuery(loss="loss")).interpreter.block
    passes = [each.kernel for each in plan_block(block, target).body.instructions if isinstance(each, Rows)]
    return [sum(instr.kind == "reduce" for instr in kernel.code) for kernel in passes]


def test_a_pass_has_a_limited_number_of_reductions_along_the_row():
    chain = softmaxes(20)

    (whole,) = [n for n in sums_of_passes(chain, CPU_TARGET) if n > 1]
    parts = sums_of_passes(chain, Limited.target)

    assert whole == sum(parts) == 60
    assert max(parts) <= 12  # reductions of values that the pass has computed are in it, too


def test_a_chain_of_softmaxes_is_right_in_several_passes():
    chain = softmaxes(12)
    executable = compile_gradient(read(chain.document), GradientQuery(loss="loss")).on(Limited())

    found, wanted = executable.compiled().step(chain.values), executable.step(chain.values)

    np.testing.assert_allclose(found.gradients["w"], wanted.gradients["w"], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)


def test_the_longest_function_does_not_grow_with_the_chain():
    def characters(count: int) -> int:
        block = compile_gradient(read(softmaxes(count).document), GradientQuery(loss="loss")).interpreter.block
        module, _ = write_plan(plan_block(block, Limited.target))
        return max(len(f.text()) for f in module.functions)

    assert characters(40) < 1.2 * characters(20)
