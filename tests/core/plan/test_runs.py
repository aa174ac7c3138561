"""Loops under a memory policy run over arrays of runs; they have only machine code, as loops without a policy have."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from core.analysis.report import analyse
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import StackType, TensorType, Type
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.plan.plan import NOT_COVERED
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.wire import read
from tests.array_programs import array_program
from tests.laws.agreement import both
from tests.laws.random_programs import second_order
from tests.laws.test_predicted_memory import allocated
from tests.programs import Sketch, check

CHUNKED = ("sqrt", "binomial")


def scan(trips: int, memory: str, around: int = 0, reverse: bool = False, width: int = 3) -> Sketch:
    """A scan over `trips` elements that returns its states, inside loops of three trips whose policy is the same.

    Two arrays are scanned; one of them is made in the body of the loops.
    """
    rng = np.random.default_rng(trips + around)
    s = Sketch()
    x = s.param("x", rng.standard_normal((trips, 2, width)))
    h, w = s.param("h", rng.standard_normal((2, width))), s.param("w", rng.standard_normal((width, width)) / width)
    s.op("assign", h, out="state")
    with contextlib.ExitStack() as loops:
        for _ in range(around):
            loops.enter_context(s.repeat(3))
        y = s.op("mul", x, "state")
        with s.block() as body:
            mixed = s.op("tanh", s.op("add", s.op("matmul", "now", w), s.op("mul", "element", "other")), out="now")
            s.op("mul", mixed, "other", out="each")
        names = {"states": ["now"], "elements": ["element", "other"], "outputs": ["each"]}
        slots = {"initial": ["state"], "sequences": [x, y]}, {"final": ["state"], "stacked": ["every"]}
        s.construct("scan", *slots, **names, sub_block=body, memory=memory, reverse=reverse)
        s.op("add", "state", s.op("reduce_mean", s.op("sin", "every")), out="state")
    for block in s.blocks:
        for op in block["ops"]:
            if op["type"] == "while":
                op["attrs"]["memory"] = memory
    s.total(s.op("square", "state"))
    return s


@pytest.mark.sampled(16, each="memory")
@pytest.mark.parametrize("memory", CHUNKED)
@pytest.mark.parametrize("trips", [1, 2, 6, 19])
@pytest.mark.parametrize("around", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_under_a_memory_policy_has_machine_code(memory, trips, around, reverse):
    s = scan(trips, memory, around, reverse)
    program = read(s.document)

    for executable in (compile_gradient(program, GradientQuery(loss="loss")), second_order(program, inputs=("x", "h"))):
        assert not plan_parts(executable.interpreter.block, CPU_TARGET).refused
        both(executable.interpreter.block, [s.values[v.name] for v in executable.inputs])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", CHUNKED)
def test_the_gradients_under_a_memory_policy_agree_with_differences(memory):
    check(scan(7, memory, around=1))


@pytest.mark.sampled(2, each="memory")
@pytest.mark.parametrize("memory", CHUNKED)
@pytest.mark.parametrize("trips", [1, 9, 50, 333])
def test_a_scan_under_a_memory_policy_allocates_the_predicted_bytes(memory, trips):
    s = scan(trips, memory, width=100)
    program, query = read(s.document), GradientQuery(loss="loss")

    predicted = analyse(program, query)["machine_code"]

    assert predicted["interpreted"] == []
    assert allocated(compile_gradient(program, query), s.values) == predicted["peak_bytes"]


def test_a_long_scan_needs_less_memory_under_a_memory_policy():
    peaks = {}
    for memory in ("store", *CHUNKED):
        s = scan(2000, memory, width=40)
        peaks[memory] = analyse(read(s.document), GradientQuery(loss="loss"))["machine_code"]["peak_bytes"]

    assert peaks["sqrt"] < 0.8 * peaks["store"]
    assert peaks["binomial"] < 0.8 * peaks["store"]


VECTOR = TensorType((2,), "float64")
OVER = {"carried": 1, "captured": 0, "condition": False, "reverse": False}


def stacked(type: Type, depth: int) -> Type:
    return type if depth == 0 else StackType(stacked(type, depth - 1))


def total(b: BlockBuilder, zero: Value, *arrays: Value, depth: int) -> Value:
    """Arrays nested `depth` times are run over; the sum starts at `zero`, which each element is added to twice."""
    inner = BlockBuilder()
    before = inner.param(VECTOR)
    parts = [inner.param(stacked(VECTOR, depth - 1)) for _ in arrays]
    out = total(inner, before, *parts, depth=depth - 1) if depth > 1 else before * 2.0 + parts[0] * parts[-1]
    (found,) = b.append(b.make("loop", zero, *arrays, sub_block=inner.build([out]), **OVER))
    return found


def zeros(b: BlockBuilder) -> Value:
    return b.constant(0.0, "float64", (2,))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rows", "others"), [(6, 6), (6, 5), (6, 3), (3, 6)])
def test_runs_of_different_lengths_cannot_be_run_over_together(rows, others):
    """6 elements are in 3 runs, 5 as well, but the last one is shorter; 3 are in 2 runs."""
    b = BlockBuilder()
    given = [b.param(TensorType((n, 2), "float64")) for n in (rows, others)]
    runs = [b.emit("array_chunks", b.emit("array_unstack", each), order=1) for each in given]
    block = optimize(b.build([total(b, zeros(b), *runs, depth=2)]))
    arrays = [np.arange(2.0 * n).reshape(n, 2) for n in (rows, others)]

    assert not plan_parts(block, CPU_TARGET).refused
    if rows == others:
        both(block, arrays)
        return
    with pytest.raises(ExecutionError) as caught:
        native_interpreter(block, CPU)(Run(), *arrays)
    assert caught.value.code == "shape_mismatch"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("loops", [1, 2])
@pytest.mark.parametrize("twice", [False, True])
def test_loops_record_runs_of_arrays_that_their_bodies_make(loops, twice):
    """The arrays of all trips are read after the last one. `twice`: each trip records the runs of its array in a loop
    over one element, too.
    """
    b, bodies = BlockBuilder(), [BlockBuilder() for _ in range(loops + twice)]
    x = b.param(TensorType((3,) * loops + (1,) * twice + (6, 2), "float64"))
    rows = [x, *(body.param(TensorType(x.shape[i + 1 :], "float64")) for i, body in enumerate(bodies))]
    runs = bodies[-1].emit("array_chunks", bodies[-1].emit("array_unstack", rows[-1] * 3.0), order=1)
    over = OVER | {"carried": 0}
    for outer, body, array in reversed(list(zip([b, *bodies], bodies, rows, strict=False))):
        stack = outer.emit("array_unstack", array)
        (runs,) = outer.append(outer.make("loop", stack, sub_block=body.build([runs]), **over))
    block = optimize(b.build([total(b, zeros(b), runs, depth=2 + len(bodies))]))

    both(block, [np.random.default_rng(0).standard_normal(x.shape)])
    if loops + twice == 1:
        assert not plan_parts(block, CPU_TARGET).refused


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [3, 5, 8])
def test_elements_beyond_the_last_run_are_left_out(rows):
    """An array is divided as another one with 5 elements; a cotangent may have fewer or more."""
    b = BlockBuilder()
    x, like = b.param(TensorType((rows, 2), "float64")), b.param(TensorType((5, 2), "float64"))
    runs = b.emit("array_chunks", b.emit("array_unstack", like), order=1)
    divided = b.emit("array_regroup", b.emit("array_unstack", x * 2.0), runs, partial=True)
    flat = b.emit("array_flatten", divided)
    joined = b.emit("array_join", flat, shape=(2,), dtype="float64", count=9)
    block = optimize(b.build([joined, b.emit("array_length", flat), total(b, zeros(b), divided, depth=2)]))

    assert not plan_parts(block, CPU_TARGET).refused
    if rows >= 5:  # zeros of missing elements cannot be run over
        both(block, [np.arange(2.0 * rows).reshape(rows, 2), np.ones((5, 2))])
    else:
        part = optimize(b.build([joined]))
        both(part, [np.arange(2.0 * rows).reshape(rows, 2), np.ones((5, 2))])


def test_a_loop_in_a_trip_records_runs_that_the_trip_makes():
    """The runs are an operand of the inner loop, which returns them in each of its trips."""
    b, body, inner = (BlockBuilder() for _ in range(3))
    x = b.param(TensorType((3, 6, 2), "float64"))
    array = body.param(TensorType((6, 2), "float64"))
    runs = body.emit("array_chunks", body.emit("array_unstack", array * 3.0), order=1)
    own, _ = inner.param(stacked(VECTOR, 2)), inner.param(TensorType((), "float64"))
    over, once = OVER | {"carried": 0}, body.emit("array_unstack", body.constant(0.0, "float64", (2,)))
    (twice,) = body.append(body.make("loop", runs, once, sub_block=inner.build([own]), **over | {"captured": 1}))
    (every,) = b.append(b.make("loop", b.emit("array_unstack", x), sub_block=body.build([twice]), **over))
    block = optimize(b.build([total(b, zeros(b), every, depth=4)]))

    both(block, [np.random.default_rng(0).standard_normal(x.shape)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs_on_runs_agree_with_the_reference_executor(seed):
    sketch = array_program(seed, rooms=1 + seed % 2, runs=True)
    program = read(sketch.document)
    for executable in (
        compile_gradient(program, GradientQuery(loss="loss")),
        second_order(program, inputs=("h0", "x0")),
    ):
        both(executable.interpreter.block, [sketch.values[v.name] for v in executable.inputs])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_deep_random_programs_on_runs_agree_with_the_reference_executor(seed):
    sketch = array_program(seed, runs=True)
    block = compile_gradient(read(sketch.document), GradientQuery(loss="loss")).interpreter.block
    both(block, [sketch.values[name] for name in block.params])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rows", "others"), [(6, 6), (6, 5), (1, 6)])
def test_the_reference_executor_adds_runs_of_different_lengths(rows, others):
    """The code covers equal lengths only. A message of a run that the reference executor repeats appears once."""
    b = BlockBuilder()
    x, y = (b.param(TensorType((n, 2), "float64")) for n in (rows, others))
    said = b.emit("print", x, message="once")
    runs = [b.emit("array_chunks", b.emit("array_unstack", each), order=1) for each in (said, y)]
    total = b.emit("array_flatten", b.emit("sum", *runs), order=1)
    out = b.emit("array_join", total, shape=(2,), dtype="float64", count=8, partial=True)
    block = optimize(b.build([out]))
    (code,) = plan_parts(block, CPU_TARGET).regions
    native = native_interpreter(block, CPU)
    run, given = Run(), (np.ones((rows, 2)), np.full((others, 2), 3.0))

    (found,) = native(run, *given)

    assert not plan_parts(block, CPU_TARGET).refused
    assert NOT_COVERED in [check.code for check in code.checks]
    wanted = np.zeros((8, 2))
    wanted[:rows] += given[0]
    wanted[:others] += given[1]
    np.testing.assert_array_equal(found, wanted)
    assert [each.text for each in run.messages] == ["once"]
    assert native.region is not None
    results = native.region.results()
    native.region.run(native.region.bind([*given, *results]), Run())  # as sessions run it, on arrays that are bound
    np.testing.assert_array_equal(results[0], wanted)
