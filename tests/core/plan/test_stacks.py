"""Nets over whole sequences have only machine code: stacks of known length are arrays."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.plan import plan_block
from core.plan.flow import Elements, Loop
from core.plan.partition import plan_parts
from core.wire import read
from tests.laws.agreement import both
from tests.laws.examples import OPS, arrays, block_for, examples_of, floats
from tests.laws.random_programs import second_order
from tests.programs import Sketch


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_a_recurrent_net_and_its_gradient_have_machine_code(name):
    example = examples_of(OPS[name])[0]
    block = block_for(OPS[name], example)
    block = optimize(vjp(block, [block.params[i] for i in floats(arrays(example))]))

    assert not plan_parts(block, CPU_TARGET).refused
    loops = [each for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Loop)]
    assert len(loops) == 2
    for each in loops:
        assert each.over
        assert all(isinstance(stack, Elements) for stack, _ in (*each.over, *each.records))
    assert loops[1].hoisted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("around", [1, 2])
def test_a_recurrent_net_inside_loops_equals_the_reference_executor(trips, around):
    """Stacks of known length inside `around` stacks whose length is known only at run time."""
    rng = np.random.default_rng(trips)
    s = Sketch()
    x = s.param("x", rng.standard_normal((4, 2, 3)))
    h = s.param("h", rng.standard_normal((2, 2)))
    w, u = (s.param(name, 0.5 * rng.standard_normal(shape)) for name, shape in (("w", (2, 3)), ("u", (2, 2))))
    s.op("assign", h, out="state")
    with contextlib.ExitStack() as loops:
        for _ in range(around):
            loops.enter_context(s.repeat(trips))
        s.op("rnn", x, "state", w, u, out=["every", "state"])
        s.op("add", "state", s.op("reduce_mean", "every"), out="state")
    s.total(s.op("square", "state"))
    program = read(s.document)

    for executable in (compile_gradient(program, GradientQuery(loss="loss")), second_order(program, inputs=("x", "u"))):
        assert not plan_parts(executable.interpreter.block, CPU_TARGET).refused
        both(executable.interpreter.block, [s.values[v.name] for v in executable.inputs])


def test_records_of_inner_loops_reuse_their_memory_on_each_trip_of_the_outer_loop():
    s = Sketch()
    s.feed("outer", 1, "int64")
    w = s.param("w", [0.5, 0.25])
    s.op("assign", w, out="h")
    with s.repeat("outer"), s.repeat(3), s.repeat(3):
        s.op("tanh", s.op("mul", "h", w), out="h")
    s.total("h")
    s.blocks[0]["ops"][-2]["attrs"]["memory"] = "recompute"
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    compiled = executable.compiled()
    assert compiled.machine is not None
    region = compiled.machine.region
    assert region is not None
    room = []

    for trips in (1, 60):
        values = s.values | {"outer": np.array(trips)}
        found, wanted = (each.step(values).gradients["w"] for each in (compiled, executable))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        room.append(region.stack_bytes)

    assert room[0] == room[1]  # a page holds the carried values of 60 trips and the records of 9 inner trips
