"""Steps for a GPU agree with the reference executor on an emulated one, without races, in any order of threads."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.autodiff.adjoint import vjp
from core.compiler.compile import GradientQuery, compile_gradient, key_of, optimize
from core.device.gpu import DEVICE_TARGET
from core.device.ptx import cubin_of, has_linker, ptx_of
from core.device.rules import Rules
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.flow import Loop
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.device.barriers import races_without
from tests.device.emulator import Emulated, EmulatedBackend, EmulatorFault, compiler
from tests.laws.test_native import WIDTHS, cotangent, in_dtype, like, same, values_like
from tests.laws.test_ops import CASES, OPS, arrays, block_for, floats
from tests.laws.test_random_programs import EVERY, EXAMPLES, POLICIES, second_order
from tests.programs import Sketch
from tests.strategies import programs

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

SCOPES = (
    Rules(),
    Rules(launch=0.0, block_bandwidth=1.0, block_flops=1.0, sorted_apart=1),
    Rules(launch=1e30, grid_barrier=0.0, block_bandwidth=1.0, block_flops=1.0, sorted_apart=1 << 31),
    Rules(launch=1e30, grid_barrier=1e30, block_bandwidth=1.0, block_flops=1.0, cluster=2, sorted_apart=1 << 31),
)
"""Small work on one block; each instruction outside of loops in a launch of its own; one launch of all blocks; one of
two blocks.
"""

SHARE = 48
"""Of the first examples of ops, one of so many is not slow."""


def sampled() -> Iterator[object]:
    for name, i in CASES:
        for dtype in ("float32", "float64"):
            if in_dtype(name, i, dtype) is not None:
                fast = i == 0 and zlib.crc32(f"{name} {dtype}".encode()) % SHARE == 0
                yield pytest.param(name, i, dtype, marks=[] if fast else [pytest.mark.slow])


def agree(block: Block, values: list[Any], backend: EmulatedBackend) -> None:
    """The emulated step has the results, or the error, of the reference executor."""
    with np.errstate(all="ignore"):
        try:
            wanted = interpreter_of(block)(Run(), *values)
        except ExecutionError as refused:
            with pytest.raises(ExecutionError) as caught:
                native_interpreter(block, backend)(Run(), *values)
            assert (caught.value.code, caught.value.location) == (refused.code, refused.location)
            return
        found = native_interpreter(block, backend)(Run(), *values)
    for f, w in zip(found, wanted, strict=True):
        same(f, w)


def orders(name: str, i: int, dtype: str) -> Iterator[tuple[Block, list[Any]]]:
    """An op on an example, its gradient and the gradient of that, as far as it has them, and values of the operands."""
    example, spec = in_dtype(name, i, dtype), OPS[name]
    assert example is not None
    values = arrays(example)
    block = block_for(spec, example)
    wrt = [block.params[k] for k in floats(values)]
    yield optimize(block), values
    rng = np.random.default_rng(0)
    for _ in range(2 if spec.differentiable and wrt else 0):
        results = [n for n in block.results if block.types[n].is_float]
        with np.errstate(all="ignore"):
            found = dict(zip(block.results, execute(block, values), strict=True))
        values = values + [cotangent(rng, found[n]) for n in results]
        block = optimize(vjp(block, wrt))
        yield block, values


@pytest.mark.parametrize(("name", "i", "dtype"), list(sampled()))
def test_an_op_and_its_gradients_agree_with_the_reference_executor(name, i, dtype):
    seed = zlib.crc32(f"{name} {i}".encode())
    for block, values in orders(name, i, dtype):
        agree(block, values, EmulatedBackend(seed=seed, rules=SCOPES[seed % len(SCOPES)]))


def random_steps(document: Any, seed: int, width: int, dtype: str) -> Iterator[tuple[Block, list[Any], Rules]]:
    """The first and second gradient of a program, their operands, and a scope for each."""
    values = values_like(seed, dtype, width)
    program = read(like(document, dtype, width))
    draw = random.Random(seed)
    query = GradientQuery(targets=("loss",), loop_memory=draw.choice(POLICIES), **EVERY)
    memory = (draw.choice(POLICIES), draw.choice(POLICIES))
    for executable in (compile_gradient(program, query, fetch=["loss"]), second_order(program, memory=memory)):
        args = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]
        yield executable.interpreter.block, args, draw.choice(SCOPES)


def check_random_program(document: Any, seed: int, width: int, dtype: str) -> None:
    for block, args, rules in random_steps(document, seed, width, dtype):
        agree(block, args, EmulatedBackend(seed=seed, rules=rules))


DRAWN = {
    "document": programs(),
    "seed": st.integers(0, 2**16),
    "width": st.sampled_from(WIDTHS),
    "dtype": st.sampled_from(["float32", "float64"]),
}


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(**DRAWN)
def test_a_random_program_agrees_with_the_reference_executor(document, seed, width, dtype):
    check_random_program(document, seed, width, dtype)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(**DRAWN)
def test_many_random_programs_agree_with_the_reference_executor(document, seed, width, dtype):
    check_random_program(document, seed, width, dtype)


def training_step() -> tuple[Block, list[np.ndarray]]:
    """The gradient of a small network with a loop; rows fill several warps, and all sizes leave a rest."""
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((40, 9)))
    w = s.param("w", rng.standard_normal((9, 40)) / 3)
    v = s.param("v", rng.standard_normal((40, 5)) / 8)
    s.total(s.op("square", s.op("softmax", s.op("matmul", s.op("tanh", s.op("matmul", x, w)), v))))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]


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


def looping(trips: int) -> tuple[Block, list[np.ndarray]]:
    """The gradient of a while loop whose number of trips is a feed, and which records its states."""
    s = Sketch()
    s.param("h", [0.5, -0.25])
    s.feed("n", trips, dtype="int64")
    with s.repeat("n"):
        s.op("sin", "h", out="h")
    s.total("h")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]


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
