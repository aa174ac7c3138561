"""Segments of a step: what runs together, on how many blocks, and what its machine code needs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.device.gpu import DEVICE_TARGET
from core.device.ptx import cubin_of, has_linker, machine_code_of, ptx_of
from core.device.row_waits import row_waits
from core.device.rows import in_order
from core.device.rules import RULES, Rules
from core.device.segments import segments_of
from core.device.step import write_device_step
from core.device.threads import Threads
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import InternalError
from core.ir.precision import HALVES
from core.plan import Plan, plan_block
from core.plan.flow import Loop
from core.plan.instructions import Rows
from core.wire import read
from tests.programs import Sketch

APART = Rules(launch=0.0, block_bandwidth=1.0, block_flops=1.0)


def chain(size: int) -> Plan:
    """A product between two passes over its operands."""
    b = BlockBuilder()
    x, y = b.param(TensorType((size, size), "float32")), b.param(TensorType((size, size), "float32"))
    made = b.emit("matmul", b.emit("tanh", x), y)
    return plan_block(b.build([b.emit("exp", made)]), DEVICE_TARGET)


def recording() -> Plan:
    """The gradient of a loop that records its states on a stack, with work of other kinds around it."""
    s = Sketch()
    s.param("h", [0.5, -0.25])
    s.feed("n", 3, dtype="int64")
    with s.repeat("n"):
        s.op("sin", "h", out="h")
    s.total(s.op("exp", "h"))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return plan_block(executable.interpreter.block, DEVICE_TARGET)


def test_small_work_shares_a_launch_of_one_block_and_large_work_does_not():
    small = segments_of(chain(16), 132, Rules())
    large = segments_of(chain(2048), 132, Rules())

    assert [(each.kind, each.blocks) for each in small] == [("together", 1)]
    assert [each.kind for each in large] == ["wide", "product", "wide"]
    assert {each.blocks for each in large} == {132}


@pytest.mark.parametrize("rules", [Rules(), APART, replace(APART, launch=1e30, grid_barrier=0.0)])
def test_segments_hold_all_instructions_in_order(rules):
    for plan in (chain(64), recording()):
        found = segments_of(plan, 4, rules)

        assert tuple(one for each in found for one in each.instructions) == plan.body.instructions


def loss(rows: int, columns: int) -> Plan:
    """The sum of the normalised numbers of all rows, each over the maximum of its row."""
    b = BlockBuilder()
    x = b.param(TensorType((rows, columns), "float32"))
    return plan_block(optimize(b.build([b.emit("reduce_sum", b.emit("logsumexp", x, axes=(1,)))])), DEVICE_TARGET)


@pytest.mark.parametrize("columns", [10, 64, 300])
def test_many_rows_that_one_block_reduces_one_after_the_other_are_spread_over_all_blocks(columns):
    few, many = segments_of(loss(16, columns), 132, Rules()), segments_of(loss(1024, columns), 132, Rules())

    assert {each.blocks for each in few} == {1}
    assert many[0].blocks == 132
    assert segments_of(loss(1024, columns), 132, Rules(row_wait=0.0, load_wait=0.0)) != many or columns > 10


@pytest.mark.parametrize("columns", [3, 10, 64, 300, 5000])
def test_the_waits_of_a_row_kernel_grow_with_its_rows_and_shrink_with_its_threads(columns):
    for make in (loss, lambda rows, columns: chain_of_rows(rows, columns)):
        waits = {
            (rows, blocks): sum(row_waits(each, Threads(blocks, 256), Rules()) for each in rows_of(make(rows, columns)))
            for rows in (1, 100, 10_000)
            for blocks in (1, 12, 144)
        }
        for (rows, blocks), seconds in waits.items():
            assert seconds > 0
            assert seconds <= waits.get((100 * rows, blocks), seconds)
            assert seconds <= waits.get((rows, blocks // 12), seconds)


def chain_of_rows(rows: int, columns: int) -> Plan:
    """An elementwise kernel."""
    b = BlockBuilder()
    return plan_block(b.build([b.emit("exp", b.param(TensorType((rows, columns), "float32")))]), DEVICE_TARGET)


def rows_of(plan: Plan) -> list[Rows]:
    return [each for each in plan.body.instructions if isinstance(each, Rows)]


def test_loops_that_share_a_stack_share_a_launch():
    """Positions in a stack are in registers."""
    plan = recording()
    assert sum(isinstance(each, Loop) for each in plan.body.instructions) == 2

    holding = [each for each in segments_of(plan, 4, APART) if any(isinstance(i, Loop) for i in each.instructions)]

    assert len(holding) == 1


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
@pytest.mark.parametrize("rules", [APART, replace(APART, launch=1e30, grid_barrier=0.0)])
def test_a_launch_is_cooperative_or_a_cluster_exactly_if_its_blocks_wait_for_each_other(rules, cluster):
    for plan in (chain(64), recording()):
        code = write_device_step(plan, 4, 64, replace(rules, cluster=cluster))

        for each in code.launches:
            waits = each.grid > 1 and "@dev_barrier(" in reached(code.text, each.kernel)
            assert (each.cooperative, each.cluster > 1) == (
                waits and each.grid > cluster,
                waits and each.grid <= cluster,
            )
            assert each.cluster in (1, each.grid)


def test_a_loop_runs_on_the_scope_whose_barriers_and_work_take_least_time():
    plan = recording()
    slow = replace(RULES, block_bandwidth=1e6, block_flops=1e6, bandwidth=1e12, flops=1e12)
    for rules, wanted in (
        (replace(slow, cluster=2, cluster_barrier=0.0, grid_barrier=1.0), 2),
        (replace(slow, cluster=2, cluster_barrier=1e-9, grid_barrier=1e-9), 4),
        (replace(slow, cluster=2, cluster_barrier=1.0, grid_barrier=1.0), 1),
        (replace(slow, cluster=1, cluster_barrier=0.0, grid_barrier=1.0), 1),
    ):
        found = [each for each in segments_of(plan, 4, rules) if any(isinstance(i, Loop) for i in each.instructions)]
        assert [each.blocks for each in found] == [wanted]


@pytest.mark.skipif(not has_linker(), reason="no nvJitLink")
def test_the_blocks_of_a_cluster_have_a_barrier_of_their_own_where_there_are_clusters():
    code = write_device_step(recording(), 4, 64, replace(APART, launch=1e30, grid_barrier=1e30, cluster=4))
    assert [each.cluster for each in code.launches] == [4]

    ptx = ptx_of(code, "sm_90")

    assert ".reqnctapercluster 4" in ptx and "barrier.cluster.wait" in ptx
    assert machine_code_of(code, "sm_90").code.startswith(b"\x7fELF")
    with pytest.raises(InternalError, match="sm_80 has no clusters"):
        ptx_of(code, "sm_80")


def reached(text: str, name: str) -> str:
    """The text of a function and of those that it calls."""
    body = next((part for part in text.split("\ndefine ") if f"@{name}(" in part.split("\n")[0]), "")
    return body + "".join(reached(text, other) for other in set(re.findall(r"call void @(?!dev_)(\w+)\(", body)))


@pytest.mark.sampled(1)
@pytest.mark.skipif(not has_linker(), reason="no nvJitLink")
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    "architecture",
    ["sm_80", pytest.param("sm_90", marks=pytest.mark.slow), pytest.param("sm_100", marks=pytest.mark.slow)],
)
def test_products_of_all_forms_become_machine_code_that_spills_nothing(architecture, tf32):
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        for m, k, n in ((2048, 2048, 2048), (256, 784, 1024), (17, 19, 5)):
            b = BlockBuilder()
            x, y = b.param(TensorType((m, k), dtype)), b.param(TensorType((k, n), dtype))
            plan = plan_block(b.build([b.emit("matmul", x, y)]), DEVICE_TARGET)
            code = write_device_step(plan, 132, 256, Rules(tf32=tf32))

            ptx = ptx_of(code, architecture)
            made = cubin_of(ptx, architecture)

            assert made.spilled == 0
            assert 0 < max(made.registers.values()) <= 255
            assert ("mma.sync" in ptx) == (dtype in HALVES or (tf32 and dtype == "float32"))


def test_no_pass_needs_more_values_at_a_time_than_the_target_has_registers_for():
    """The gradient of a long chain needs values of all of it, and ops that share many arrays need all of those."""
    limit = DEVICE_TARGET.rows.live
    assert limit is not None
    s = Sketch()
    h = s.param("h", np.linspace(0.1, 0.9, 7))
    for i in range(200):
        h = s.op(("tanh", "sin")[i % 2], h)
    s.total(h)
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    body = plan_block(executable.interpreter.block, DEVICE_TARGET).body
    assert max(needed(each) for each in body.instructions if isinstance(each, Rows)) <= limit + 8  # last op, constants


def needed(each: Rows) -> int:
    """The most values of a pass that are needed later at one place, by comparing all lifetimes."""
    code = each.kernel.code
    place = {n: at for at, n in enumerate(in_order(each, range(len(code))))}
    assert sorted(place) == list(range(len(code)))
    assert all(place[arg] < place[n] for n, instr in enumerate(code) for arg in instr.args)
    last = {arg: max(place[n] for n, i in enumerate(code) if arg in i.args) for i in code for arg in i.args}
    return max(sum(place[arg] < at <= end for arg, end in last.items()) for at in range(len(code)))
