"""Loops with memory policies over sequences of open sizes are machine code, as those that store all states are."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import Executable, GradientQuery, compile_gradient
from core.compiler.room import room_for
from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder
from core.plan.partition import plan_parts
from tests.core.compiler.test_room_programs import assert_close, poisoned
from tests.mixtures import POLICIES
from tests.programs import whole

BATCH, TIME, WIDTH = 7, 13, 4
SIZES = ((7, 13), (3, 5), (16, 1), (1, 16), (5, 0), (0, 4))
"""(sequences, their length)"""


def recurrence(policy: str, opened: str, reverse: bool, records: bool) -> Program:
    """The loss of a recurrent cell over x [time, batch, WIDTH], about its last state, or about its states too."""
    batch, time = (-1 if axis in opened else n for axis, n in (("batch", BATCH), ("time", TIME)))
    b, body = BlockBuilder(), BlockBuilder()
    x, w = (
        b.param(TensorType((time, batch, WIDTH), "float64"), "x"),
        b.param(TensorType((WIDTH, WIDTH), "float64"), "w"),
    )
    state, weight = body.param(TensorType((batch, WIDTH), "float64")), body.param(w.type)
    row = body.param(state.type)
    new = body.emit("tanh", body.emit("matmul", state, weight) + row)
    block = body.build([new, new * 2.0] if records else [new])
    outs = b.emit(
        "loop", b.emit("reduce_sum", x, axes=(0,)), w, b.emit("array_unstack", x), sub_block=block, carried=1,
        captured=1, condition=False, reverse=reverse, memory=policy,
    )  # fmt: skip
    loss = b.emit("reduce_sum", b.emit("square", outs[0] if records else outs))
    if records:
        loss = loss + b.emit("reduce_sum", b.emit("sin", b.emit("array_stack", outs[1])))
    b.emit("assign", loss)
    names = (Variable("x", x.type, "feed"), Variable("w", w.type, "parameter"))
    return Program(b.build([]), names)


@pytest.mark.sampled(3, each="policy")
@pytest.mark.parametrize("records", [False, True], ids=["last", "all"])
@pytest.mark.parametrize("reverse", [False, True], ids=["ahead", "reverse"])
@pytest.mark.parametrize("opened", ["batch", "time", "batch and time"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_loop_with_a_memory_policy_is_machine_code_for_all_sizes(policy, opened, reverse, records):
    program = recurrence(policy, opened, reverse, records)
    query = GradientQuery(targets=(program.block.ops[-1].outputs[0],), inputs=("x", "w"))
    w = np.random.default_rng(1).standard_normal((WIDTH, WIDTH)) / 2

    def compiled(**sized: object) -> Executable:
        return compile_gradient(program, query, query.targets, **sized)

    room = room_for(program, {"x": (TIME, BATCH, WIDTH)})
    code = compiled(room=room)
    parts = plan_parts(code.interpreter.block, CPU_TARGET)
    assert [*parts.refused.values(), *(each.reason for plan in parts.regions for each in plan.interpreted)] == []
    code = code.compiled()
    assert code.packs is not None
    for batch, time in SIZES:
        shape = (time if "time" in opened else TIME, batch if "batch" in opened else BATCH, WIDTH)
        values = {"x": np.random.default_rng(shape).standard_normal(shape), "w": w}
        wanted = compiled(shapes={"x": shape}).step(values)
        found = code.step(poisoned(room, dict(code.packs(values)), {"x": values["x"]}))
        for place in ("fetched", "gradients"):
            others = whole(getattr(found, place))
            for name, value in whole(getattr(wanted, place)).items():
                assert_close(others[name], value, f"{place} {name} of {shape}")
