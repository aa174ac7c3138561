"""The memory that the analysis predicts for machine code equals the bytes that a first step allocates."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import workloads
from core.analysis import analyse
from core.analysis.compiled import machine_code
from core.analysis.records import record_bytes
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.runtime.executable import Executable
from core.runtime.region import NativeRegion
from core.runtime.run import Run
from core.wire import read
from tests.array_programs import array_program
from tests.core.passes.loops import POLICIES, tanh_loop
from tests.laws.random_programs import ALL, EXAMPLES, FIXED, leaves, second_order
from tests.programs import Sketch
from tests.strategies import programs

ARRAYS = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)

SMALL = {
    "mlp": lambda: workloads.mlp("mlp", 5, (7, 70, 3)),
    "mlp_large_results": lambda: workloads.mlp("mlp", 3, (90, 100, 3)),
    "rnn_none": lambda: workloads.rnn_while(1, 4, 5, 60),
    "rnn": lambda: workloads.rnn_while(9, 4, 5, 60),
    "rnn_long": lambda: workloads.rnn_while(130, 3, 2, 33),
    "transformer": lambda: workloads.transformer(1, 2, 16, 24, 2, 40, 30),
    "elementwise": lambda: workloads.elementwise(10_001),
    "convnet": lambda: workloads.convnet(2),
    "deep_graph": lambda: workloads.deep_graph(40),
    "branch": lambda: workloads.branch(7, 4, 12),
}


def allocated(executable: Executable, values: Mapping[str, Any]) -> int:
    """Bytes allocated after the first step of machine code, as counted by numpy and by the code itself."""
    tracemalloc.start()
    try:
        compiled = executable.compiled()
        outputs = compiled.step(values)
        arrays = sum(each.size for each in tracemalloc.take_snapshot().filter_traces([ARRAYS]).traces)
    finally:
        tracemalloc.stop()
    del outputs
    assert compiled.machine is not None
    regions = [each.call for each in compiled.machine.calls if isinstance(each.call, NativeRegion)]
    return arrays + sum(each.stack_bytes for each in regions)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SMALL)
def test_the_workloads_of_the_bench_allocate_the_predicted_bytes(name):
    workload = SMALL[name]()
    program, query = read(workload.program), GradientQuery(loss="loss")
    trips = int(workload.feeds.get("n", 7 if name == "branch" else 1))

    predicted = analyse(program, query, trips=trips)["machine_code"]

    assert predicted["interpreted"] == []
    used = allocated(compile_gradient(program, query), {**workload.feeds, **workload.parameters})
    assert used == predicted["peak_bytes"]


def nested(trips: int, size: int, depth: int = 2) -> Sketch:
    """Nested loops, each with the given number of trips."""
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, size))
    s.op("assign", "w", out="h")
    with contextlib.ExitStack() as loops:
        for _ in range(depth):
            loops.enter_context(s.repeat(trips))
            s.op("sin", s.op("mul", "h", "w"), out="h")
    s.total("h")
    return s


FEW = [("recompute", "store", "store"), ("store", "sqrt", "store"), ("binomial", "recompute", "store")]
"""Memory policies of three nested loops that are fast enough to test."""


def combined() -> Iterator[Any]:
    for policies in itertools.product(POLICIES, repeat=3):
        yield pytest.param(policies, marks=[] if policies in FEW else [pytest.mark.slow])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("trips", [1, 9])
@pytest.mark.parametrize("policies", list(combined()))
def test_nested_loops_record_the_predicted_bytes_under_any_combination_of_memory_policies(policies, trips):
    s = nested(trips, 40, depth=3)
    loops = (op for block in s.blocks for op in block["ops"] if op["type"] == "while")
    for loop, policy in zip(loops, policies, strict=True):
        loop["attrs"]["memory"] = policy
    program, query = read(s.document), GradientQuery(loss="loss")

    predicted = analyse(program, query, trips=trips)["machine_code"]["peak_bytes"]

    assert allocated(compile_gradient(program, query), s.values) == predicted


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 100, 600])
@pytest.mark.parametrize("trips", [0, 1, 3, 23])
def test_nested_loops_record_the_predicted_bytes(trips, size):
    s = nested(trips, size)
    program, query = read(s.document), GradientQuery(loss="loss")

    predicted = analyse(program, query, trips=trips)["machine_code"]["peak_bytes"]

    assert allocated(compile_gradient(program, query), s.values) == predicted


@pytest.mark.sampled(3)
@pytest.mark.parametrize("trips", [0, 1, 2, 5, 6, 16, 61])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_loop_under_a_memory_policy_allocates_the_predicted_bytes(policy, trips):
    s = tanh_loop(trips, 700)
    program, query = read(s.document), GradientQuery(loss="loss", loop_memory=policy)

    predicted = analyse(program, query, trips=trips)["machine_code"]["peak_bytes"]

    assert allocated(compile_gradient(program, query), s.values) == predicted


@settings(max_examples=EXAMPLES // 24, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16))
def test_no_random_program_allocates_more_than_predicted_for_its_longest_loop(document, seed):
    program, values = read(document), leaves(seed)
    longest = len(FIXED["xs"])
    for executable in (compile_gradient(program, GradientQuery(targets=("loss",), **ALL)), second_order(program)):
        predicted = machine_code(executable.interpreter.block, longest)
        if not predicted["interpreted"]:
            given = {v.name: values[v.name] for v in executable.inputs if v.role != "key"}
            assert allocated(executable, given) <= predicted["peak_bytes"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5])
def test_no_random_program_on_arrays_allocates_more_than_predicted(seed):
    sketch = array_program(seed, width=300, rooms=1 + seed % 2)
    program = read(sketch.document)
    for executable in (
        compile_gradient(program, GradientQuery(loss="loss")),
        second_order(program, inputs=("h0", "k0")),
    ):
        predicted = machine_code(executable.interpreter.block, trips=3)
        given = {v.name: sketch.values[v.name] for v in executable.inputs}

        assert predicted["interpreted"] == []
        assert allocated(executable, given) <= predicted["peak_bytes"]


def test_arrays_made_from_a_record_of_unknown_length_allocate_the_predicted_bytes():
    """Forty records of 3200 bytes, and the same in the array that gets one more element."""
    vector, integer = TensorType((400,), "float64"), TensorType((), "int64")
    b = BlockBuilder()
    x, n, zero = b.param(vector), b.param(integer), b.constant(0, "int64", ())
    inner = BlockBuilder()
    inner.param(TensorType((), "bool"))
    at, state, end = inner.param(integer), inner.param(vector), inner.param(integer)
    following, new = inner.emit("increment", at, step=1), inner.emit("sin", state)
    body = inner.build([inner.emit("less_than", following, end), following, new, new])
    go = b.emit("less_than", zero, n)
    numbers = {"carried": 3, "captured": 1, "condition": True}
    *_, record = b.append(b.make("loop", go, zero, x, n, sub_block=body, **numbers))
    array = b.emit("array_write", x, b.emit("array_length", record), record)
    plan = plan_block(optimize(b.build([b.emit("array_read", array, n)])), CPU_TARGET)
    region = CPU.compile(plan)
    value = np.linspace(0, 1, 400)

    (found,) = region(Run(), value, np.array(40))
    assert found.tolist() == value.tolist()
    assert region.stack_bytes == record_bytes(plan, 40)
