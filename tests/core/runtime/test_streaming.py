"""Case 90 of docs/semantics.md: the step streams each gradient as soon as it is final, the last layer first."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.compiler.compile import Executable, GradientQuery, append_backward, compile_gradient
from core.ir.errors import ExecutionError
from core.runtime.run import RunLimits
from core.wire import read
from tests.laws.random_programs import ALL, leaves
from tests.programs import Sketch
from tests.strategies import LEAVES, written


def layers(count: int = 4) -> Sketch:
    s = Sketch()
    s.feed("x", np.linspace(-1, 1, 6).reshape(2, 3))
    h = "x"
    for i in range(count):
        s.param(f"w{i}", np.eye(3) + i / 10)
        s.param(f"b{i}", np.full(3, i / 7))
        h = s.op("tanh", s.op("add", s.op("matmul", h, f"w{i}"), f"b{i}"))
    s.total(h)
    return s


def watched(executable: Executable, ran: list[tuple[str, ...]]) -> Executable:
    """`executable`, which appends the outputs of each op of block 0 to `ran` after the op runs."""

    def noted(each: Any) -> Any:
        def call(*args: Any, **attrs: Any) -> Any:
            result = each.call(*args, **attrs)
            ran.append(each.op.outputs)
            return result

        return replace(each, call=partial(call))

    calls = tuple(noted(each) for each in executable.interpreter.calls)
    interpreter = replace(executable.interpreter)
    vars(interpreter)["calls"] = calls  # in place of those that the property makes
    return replace(executable, interpreter=interpreter)


def told(program: Any, query: GradientQuery, values: Any) -> list[tuple[str, int]]:
    """The streamed gradients in order, each with the number of ops that ran before it.

    Each equals the final gradient and arrives once, before any op after its `ready_at` runs.
    """
    if query.loss is not None:
        backward = append_backward(program, query.loss, query.parameter_list, query)
    else:
        from core.backward.append_backward import gradients

        backward = gradients(program, query.targets, query.inputs, None, query)
    at = {name: i for i, op in enumerate(backward.program.block.ops) for name in op.outputs}
    ran: list[tuple[str, ...]] = []
    found: dict[str, tuple[Any, list[tuple[str, ...]]]] = {}

    def note(name: str, value: Any) -> None:
        assert name not in found
        found[name] = (np.array(value), list(ran))

    executable = watched(compile_gradient(program, query), ran)
    out = executable.step(values, when_final=note)

    assert found.keys() == out.gradients.keys()
    assert executable.ready_at == backward.ready_at
    for name, (value, before) in found.items():
        assert value.tobytes() == np.asarray(out.gradients[name]).tobytes()
        # a loop that a later one was merged into ran where the earlier one stands
        places = [min(at.get(output, -1) for output in outputs) for outputs in before]
        assert max(places, default=-1) <= backward.ready_at[name]
    return [(name, len(before)) for name, (_, before) in found.items()]


def test_90_the_gradients_of_the_last_layer_come_first_and_long_before_the_end():
    s = layers()
    program, ran = read(s.document), []
    watched(compile_gradient(program, GradientQuery(loss="loss")), ran).step(s.values, when_final=lambda *_: None)

    order = told(program, GradientQuery(loss="loss"), s.values)

    assert [name[1:] for name, _ in order] == ["3", "3", "2", "2", "1", "1", "0", "0"]
    assert order[0][1] < 0.6 * len(ran)
    ready_at = append_backward(program, "loss").ready_at
    assert [name for name, _ in order] == sorted(ready_at, key=ready_at.__getitem__)


def test_90_gradients_of_random_programs_arrive_by_their_ready_at():
    count = 0
    for seed in range(150):
        count += len(told(read(written(seed)), GradientQuery(targets=("loss",), **ALL), leaves(seed)))
    assert count == 150 * len(LEAVES)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("checkpoints", [(), "auto"])
@pytest.mark.parametrize("memory", ["store", "binomial"])
def test_90_gradients_arrive_by_their_ready_at_under_recomputation(checkpoints, memory):
    for seed in range(20):
        query = GradientQuery(targets=("loss",), checkpoints=checkpoints, loop_memory=memory, **ALL)
        told(read(written(seed)), query, leaves(seed))


def test_90_a_streamed_gradient_is_final_even_if_the_step_fails_later():
    s = layers()
    s.values["w0"] = np.full((3, 3), 1e200)
    s.values["x"] = np.zeros((2, 3))
    s.values["x"][0, 0] = np.inf
    hooks = (Hook.read({"match": {"variable": "w0"}, "do": "check_finite"}),)
    exe = compile_gradient(read(s.document), GradientQuery(loss="loss", hooks=hooks))
    found = []

    with pytest.raises(ExecutionError) as error:
        exe.step(s.values, when_final=lambda name, value: found.append(name))

    assert error.value.code == "not_finite"
    assert {"w3", "b3", "w2"} <= set(found)
    assert "w0" not in found


def test_90_a_gradient_that_equals_an_input_of_the_step_is_streamed_too():
    s = Sketch()
    s.param("w", [1.0, 2.0])
    query = GradientQuery(targets=("w",), inputs=("w",), target_gradients=(True,))
    found = {}

    compile_gradient(read(s.document), query).step(
        s.values | {"target_gradients/0": np.array([3.0, 4.0])}, when_final=found.__setitem__
    )

    assert found["w"].tolist() == [3.0, 4.0]


def test_an_exception_of_a_listener_ends_the_run():
    s = layers()
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return False

    def refuse(name: str, value: Any) -> None:
        raise KeyError(name)

    exe = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    with pytest.raises(KeyError):
        exe.step(s.values, limits=RunLimits(should_stop=stop), when_final=refuse)
    assert steps < len(exe.interpreter.calls)
