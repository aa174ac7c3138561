"""Every op example, its gradient and the steps of the bench become machine code of GPUs that spills no registers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.peers.backpass import planned
from bench.workloads import WORKLOADS
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.device.gpu import DEVICE_TARGET
from core.device.launches import DeviceCode
from core.device.ptx import has_linker, machine_code_of
from core.device.rules import RULES, Rules, rules_of
from core.device.spread import FRUGAL
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan.partition import plan_parts
from core.wire import read
from tests.array_programs import array_program
from tests.core.plan.test_tensor_arrays import recurrence
from tests.device.joined import joined
from tests.laws.agreement import in_dtype, step_of
from tests.laws.examples import CASES, OPS, block_for

pytestmark = pytest.mark.skipif(not has_linker(), reason="no nvJitLink")

PARTS = 8
APART = Rules(launch=0.0, block_bandwidth=1.0, block_flops=1.0)
"""Each instruction in a launch of its own on all blocks."""

SAVED = 68
"""Bytes of registers of its caller that a called function may save: 17 registers. It does so once a call, which is no
spill, but nvJitLink reports it as one.
"""

QUICK = ("mlp_small", "branch", "elementwise", "rnn_while_10")


ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def codes_of(block: Block, label: str, rules: Rules = RULES) -> Iterator[tuple[str, DeviceCode]]:
    for i, plan in enumerate(plan_parts(block, DEVICE_TARGET).regions):
        yield f"{label} {i}", write_device_step(plan, 132, 256, rules)


def check(code: DeviceCode, architecture: str) -> dict[str, int]:
    """Functions that spill, and how many bytes."""
    made = machine_code_of(code, architecture)
    assert made.code.startswith(b"\x7fELF")
    for each in code.launches:
        assert 0 < made.registers[each.entry] * each.block <= 65536
    kernels = {each.entry for each in code.launches}
    return {name: nbytes for name, nbytes in made.spills.items() if name in kernels or nbytes > SAVED}


def check_ops(part: int, architecture: str, dtypes: tuple[str, ...], first: bool, rules: Rules) -> None:
    codes: dict[str, DeviceCode] = {}
    for name, i in CASES:
        if zlib.crc32(name.encode()) % PARTS != part or (first and i):
            continue
        for dtype in dtypes:
            example = in_dtype(name, i, dtype)
            if example is not None:
                label = f"{name} {i} {dtype}"
                codes |= codes_of(step_of(name, i, dtype)[0], f"{label} gradient", rules)
                if not first:
                    codes |= codes_of(optimize(block_for(OPS[name], example)), label, rules)
    code, labels = joined(codes)
    spilled = check(code, architecture)
    assert not spilled, {labels.get(name.removeprefix("run_"), name): spilled[name] for name in spilled}


def test_a_kernel_that_spills_is_found():
    """The registers of a product are too many for four times as many threads."""
    b = BlockBuilder()
    x, y = b.param(TensorType((2048, 2048), "float32")), b.param(TensorType((2048, 2048), "float32"))
    ((_, code),) = codes_of(b.build([b.emit("matmul", x, y)]), "matmul")
    (launch,) = code.launches

    assert not check(code, "sm_90")
    assert check(replace(code, work=(replace(launch, block=1024),)), "sm_90")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_gradient_of_an_op_becomes_machine_code_that_spills_nothing(part):
    check_ops(part, "sm_90", ("float32",), True, rules_of("sm_90"))


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("part", range(PARTS))
def test_an_op_becomes_machine_code_of_every_architecture(part, architecture, apart):
    check_ops(part, architecture, ("float32", "float64"), False, APART if apart else rules_of(architecture))


def steps() -> Iterator[object]:
    for name in WORKLOADS:
        for architecture in ARCHITECTURES:
            fast = name in QUICK and architecture == "sm_90"
            yield pytest.param(name, architecture, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "architecture"), list(steps()))
def test_a_step_of_the_bench_becomes_machine_code_that_spills_nothing(name, architecture):
    block = planned(WORKLOADS[name]()).interpreter.block
    for label, code in codes_of(block, name, rules_of(architecture)):
        assert not check(code, architecture), label


@pytest.mark.sampled(6)
@pytest.mark.parametrize("values", [1, 16, 24, 31])
@pytest.mark.parametrize("name", sorted(FRUGAL - {"div"}))
def test_all_blocks_of_a_long_row_kernel_are_resident_without_spills(name, values):
    """Else some of them run alone, when the others have ended. values: that a thread needs to the end."""
    b = BlockBuilder()
    x = b.param(TensorType((1_000_000,), "float32"))
    made = [b.emit(name, x)]
    for i in range(35):
        made.append(b.emit("mul", b.emit(name if i % 5 == 0 else "abs", made[-1]), x))
    total = made[-1]
    for each in reversed(made[-values:]):
        total = b.emit("div", b.emit("sub", total, each), each)
    ((_, code),) = codes_of(optimize(b.build([total])), name)

    assert not check(code, "sm_90")
    long = [each for each in code.launches if each.resident > 1]
    assert long
    used = machine_code_of(code, "sm_90").registers
    for each in long:
        registers = -(-used[each.entry] // 8) * 8
        assert 132 < each.grid <= 65536 // (registers * each.block) * 132


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_on_tensor_arrays_becomes_machine_code_that_spills_nothing(architecture):
    for name, sketch in (("recurrence", recurrence(9, "float32")), ("random", array_program(3, "float32", 17))):
        block = compile_gradient(read(sketch.document), GradientQuery(loss="loss")).interpreter.block
        for label, code in codes_of(block, name):
            assert not check(code, architecture), label
