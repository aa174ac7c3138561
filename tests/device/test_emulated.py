"""Steps for a GPU agree with the reference executor on an emulated one, without races, in any order of threads."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from core.compiler.compile import GradientQuery, compile_gradient
from core.device.gpu import DEVICE_TARGET
from core.device.ptx import cubin_of, has_linker, ptx_of
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.flow import Loop
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.device.agreement import DRAWN, SCOPES, agree, looping, orders, random_steps, training_step
from tests.device.barriers import races_without
from tests.device.emulator import Emulated, EmulatedBackend, EmulatorFault, compiler
from tests.laws.agreement import in_dtype, same
from tests.laws.examples import CASES
from tests.laws.random_programs import EXAMPLES
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


SHARE = 48
"""Of the first examples of ops, one of so many is not slow."""


def sampled() -> Iterator[object]:
    for name, i in CASES:
        for dtype in ("float32", "float64"):
            if in_dtype(name, i, dtype) is not None:
                fast = i == 0 and zlib.crc32(f"{name} {dtype}".encode()) % SHARE == 0
                yield pytest.param(name, i, dtype, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "i", "dtype"), list(sampled()))
def test_an_op_and_its_gradients_agree_with_the_reference_executor(name, i, dtype):
    seed = zlib.crc32(f"{name} {i}".encode())
    for block, values in orders(name, i, dtype):
        agree(block, values, EmulatedBackend(seed=seed, rules=SCOPES[seed % len(SCOPES)]))


def check_random_program(document: Any, seed: int, width: int, dtype: str) -> None:
    for block, args, rules in random_steps(document, seed, width, dtype):
        agree(block, args, EmulatedBackend(seed=seed, rules=rules))


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(**DRAWN)
def test_a_random_program_agrees_with_the_reference_executor(document, seed, width, dtype):
    check_random_program(document, seed, width, dtype)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(**DRAWN)
def test_many_random_programs_agree_with_the_reference_executor(document, seed, width, dtype):
    check_random_program(document, seed, width, dtype)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("blocks", "block", "rules"), [(1, 128, SCOPES[0]), *((3, 64, each) for each in SCOPES[1:])])
def test_a_step_agrees_in_any_launch_and_repeats_to_the_bit_in_any_order_of_threads(blocks, block, rules):
    step, values = training_step()
    wanted = interpreter_of(step)(Run(), *values)

    backends = [EmulatedBackend(blocks, block, seed=seed, rules=rules) for seed in (1, 2, 3)]
    found = [native_interpreter(step, each)(Run(), *values) for each in backends]

    for one, two, three, want in zip(*found, wanted, strict=True):
        same(one, want)
        assert one.tobytes() == two.tobytes() == three.tobytes()


def test_a_barrier_that_is_taken_out_is_a_race():
    """Not every one: a kernel that meets inside orders some of its accesses before those of the next one. Barriers
    inside of products have a test in `test_products`."""
    step, values = training_step()

    races = races_without("(?:block_)?barrier", step, values, EmulatedBackend(blocks=1))

    assert len(races) > 4 and sum(races) >= 0.6 * len(races)


def recurrent(trips: int) -> tuple[Block, list[np.ndarray]]:
    """The gradient of a recurrent network: products with rows of an input, states that change places, records."""
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((trips, 3, 4)))
    w, u = s.param("w", rng.standard_normal((4, 5))), s.param("u", rng.standard_normal((5, 5)) / 3)
    s.param("h", rng.standard_normal((3, 5)))
    with s.repeat(trips):
        now = s.op("gather", x, "i1", axis=0)
        s.op("tanh", s.op("add", s.op("matmul", now, w), s.op("matmul", "h", u)), out="h")
    s.total(s.op("square", "h"))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]


def test_loops_wait_where_dependence_demands_it_and_seldom_elsewhere():
    block, values = recurrent(20)
    rules = SCOPES[2]
    plan = plan_block(block, DEVICE_TARGET)
    wanted = interpreter_of(block)(Run(), *values)
    code = write_device_step(plan, 2, 64, rules)
    barriers = [m.span() for m in re.finditer(r"  call void @dev_barrier\(i32 \d+\)", code.text)]
    assert sum(isinstance(each, Loop) for each in plan.body.instructions) == 2

    backend = EmulatedBackend(2, 64, rules=rules)
    native = native_interpreter(block, backend)
    (region,) = backend.compiled
    found = {"right": 0, "wrong": 0, "reported": 0}
    for start, end in barriers:
        region.emulated = Emulated(replace(code, text=code.text[:start] + code.text[end:]), watches=True)
        try:
            results = native(Run(), *values)
        except (EmulatorFault, ExecutionError):
            found["reported"] += 1
        else:
            same_bits = all(np.allclose(one, want) for one, want in zip(results, wanted, strict=True))
            found["right" if same_bits else "wrong"] += 1

    assert found["wrong"] == 0
    assert found["reported"] >= 6  # in each trip, before the loops, and behind the last one
    assert len(barriers) <= 22  # with those inside, between and behind products for several trips


def test_an_index_out_of_range_and_too_many_trips_have_the_errors_of_the_reference_executor():
    b = BlockBuilder()
    block = b.build([b.emit("gather", b.param(TensorType((4, 3), "float32")), b.param(TensorType((2,), "int64")))])
    x = np.ones((4, 3), "float32")
    agree(block, [x, np.array([-4, 3])], EmulatedBackend())
    agree(block, [x, np.array([0, 4])], EmulatedBackend())

    block, values = looping(trips=9)
    native = native_interpreter(block, EmulatedBackend())
    with pytest.raises(ExecutionError) as caught:
        native(Run(limits=RunLimits(max_trips=5)), *values)
    assert caught.value.code == "too_many_trips"


def test_a_stack_that_is_too_small_grows_and_the_step_runs_again():
    block, values = looping(trips=700)
    backend = EmulatedBackend(blocks=1, block=32, watches=False)

    agree(block, values, backend)

    (region,) = backend.compiled
    assert region.launches > 1


@pytest.mark.parametrize(
    "architecture",
    ["sm_80", pytest.param("sm_90", marks=pytest.mark.slow), pytest.param("sm_100", marks=pytest.mark.slow)],
)
def test_a_step_becomes_ptx_and_machine_code(architecture):
    step, _ = training_step()
    (plan,) = plan_parts(step, DEVICE_TARGET).regions
    code = write_device_step(plan, 4, 256)

    ptx = ptx_of(code, architecture)

    assert ".entry run_step" in ptx and f".target {architecture}" in ptx
    if not has_linker():
        pytest.skip("no nvJitLink: the PTX was not linked")
    assert cubin_of(ptx, architecture).code.startswith(b"\x7fELF")
