"""Deeply nested programs: their steps stay small, compile within a budget, and agree with the unrolled program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.analysis.compiled import machine_code
from core.compiler.compile import Executable, GradientQuery, compile_forward, compile_gradient
from core.ir import size
from core.ir.errors import ProgramError
from core.ir.size import expanded_ops
from core.plan import code_size
from core.wire import read
from tests.policy_nests import LOOP_MEMORY, NESTS, nest
from tests.programs import Sketch

LOOPS = ("while", "scan", "recurrent")
ALL = [(construct, memory) for construct in LOOPS for memory in LOOP_MEMORY]
ALL += [("if_else", "store"), ("if_else", "recompute")]
ALL += [(construct, "store") for construct in NESTS if construct not in (*LOOPS, "if_else")]


def deep(work: Callable[[], Any]) -> Any:
    """The result of `work`, in a thread with the stack of a compilation thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    before = threading.stack_size(64 * 2**20)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def compiled(sketch: Sketch) -> Executable:
    return compile_gradient(read(sketch.document), GradientQuery(loss="loss"), ("loss",))


def unrolled(construct: str, depth: int) -> tuple[float, np.ndarray]:
    """The loss of a nest whose loops make one trip, and its gradient by a complex step."""

    def loss(w: np.ndarray) -> Any:
        def level(h: Any, left: int) -> Any:
            h = np.tanh(h * w)
            if not left:
                return h
            h = level(h, left - 1)
            if construct == "recurrent":
                h = h + np.array([0.1, 0.2])
            return h * w

        return level(w, depth).sum()

    w = np.array([1.01, 0.99])
    moved = [np.where(np.arange(2) == i, w + 1e-30j, w) for i in range(2)]
    return float(loss(w)), np.array([np.imag(loss(each)) / 1e-30 for each in moved])


@pytest.mark.sampled(1, each="construct")
@pytest.mark.parametrize(("construct", "memory"), ALL)
def test_the_gradient_of_a_nest_is_that_of_the_unrolled_program(construct: str, memory: str):
    depth = 24 if memory in ("store", "recompute") else 6
    sketch = nest(construct, depth, memory)
    wanted, gradient = unrolled(construct, depth)

    out = deep(lambda: compiled(sketch).step(sketch.values))

    np.testing.assert_allclose(out.fetched["loss"], wanted, rtol=1e-12)
    np.testing.assert_allclose(out.gradients["w"], gradient, rtol=1e-9)


@pytest.mark.sampled(1, each="construct")
@pytest.mark.parametrize(("construct", "memory"), ALL)
def test_the_ops_of_a_nest_grow_at_most_with_the_square_of_its_depth(construct: str, memory: str):
    def ops(depth: int) -> int:
        return deep(lambda: expanded_ops(compiled(nest(construct, depth, memory)).interpreter.block))

    once = 4 if memory in ("sqrt", "binomial") else 10
    assert ops(2 * once) < 4.2 * ops(once)


@pytest.mark.parametrize(("construct", "memory"), [("while", "store"), ("while", "sqrt"), ("scan", "recompute")])
def test_machine_code_of_a_nest_deeper_than_one_function_agrees_with_the_reference_executor(construct, memory):
    sketch = nest(construct, 7 if memory == "store" else 4, memory, trips=2)
    step = compiled(sketch)

    out, wanted = step.compiled().step(sketch.values), step.step(sketch.values)

    np.testing.assert_allclose(out.gradients["w"], wanted.gradients["w"], rtol=1e-12)
    assert machine_code(step.interpreter.block, 2)["ops"]["interpreted"] == 0


@pytest.mark.parametrize(("construct", "memory"), [("while", "store"), ("while", "recompute"), ("if_else", "store")])
def test_nests_too_large_for_machine_code_run_in_the_reference_executor(construct, memory, monkeypatch):
    monkeypatch.setattr(code_size, "NESTED_TEXT", 30_000)
    sketch = nest(construct, 10, memory)
    step = compiled(sketch)

    out = step.compiled().step(sketch.values)

    np.testing.assert_allclose(out.gradients["w"], step.step(sketch.values).gradients["w"], rtol=1e-12)
    reasons = [each["reason"] for each in machine_code(step.interpreter.block, 1)["interpreted"]]
    assert any("too large for machine code" in reason for reason in reasons)


def test_the_predicted_text_is_near_the_real_one():
    from core.codegen.backend import write_plan
    from core.codegen.cpu_target import CPU_TARGET
    from core.plan import plan_block

    for construct, depth, memory in (("while", 8, "store"), ("while", 8, "recompute"), ("if_else", 20, "store")):
        block = compiled(nest(construct, depth, memory)).interpreter.block
        predicted = sum(code_size.predicted_text(op, block) for op in block.ops)
        real = len(write_plan(plan_block(block, CPU_TARGET))[0].text())
        assert real / 2 < predicted < 2 * real


def test_a_nest_of_150_loops_is_compiled_without_an_error():
    sketch = nest("while", 150)

    out = deep(lambda: compiled(sketch).compiled().step(sketch.values))

    np.testing.assert_allclose(out.gradients["w"], unrolled("while", 150)[1], rtol=1e-9)


def test_a_program_too_large_after_expansion_is_refused_with_its_place(monkeypatch):
    monkeypatch.setattr(size, "EXPANDED_OPS", 1000)
    sketch = nest("while", 20, "recompute")

    with pytest.raises(ProgramError) as refused:
        compiled(sketch)

    assert refused.value.code == "limit_exceeded"
    assert "too large after expansion" in refused.value.message
    assert refused.value.location is not None


def test_calls_of_a_function_count_its_ops(monkeypatch):
    monkeypatch.setattr(size, "EXPANDED_OPS", 1000)
    s = Sketch()
    s.param("w", [0.5, 0.7])
    ops = [
        {"type": "tanh", "inputs": {"x": ["x" if i == 0 else f"y{i - 1}"]}, "outputs": {"out": [f"y{i}"]}}
        for i in range(40)
    ]
    feed = {"name": "x", "dtype": "float64", "shape": [2], "role": "feed"}
    s.functions["f"] = {"program": {"blocks": [{"idx": 0, "vars": [feed], "ops": ops}]}, "results": ["y39"]}
    s.op("assign", "w", out="h")
    for _ in range(40):
        s.construct("call", {"x": ["h"]}, {"out": ["h"]}, function="f")
    s.total("h")

    with pytest.raises(ProgramError) as refused:
        compile_forward(read(s.document), ["loss"])

    assert refused.value.code == "limit_exceeded"
    assert refused.value.location is not None and refused.value.location.type == "call"


def test_a_switch_with_one_branch_does_not_double_its_block():
    sketch = nest("switch_case", 12)

    assert deep(lambda: expanded_ops(read(sketch.document).block)) < 12 * 15
