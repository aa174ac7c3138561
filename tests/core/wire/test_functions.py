"""Nets, functions and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ExecutionError, ProgramError
from core.wire import Limits, functions, read
from tests.core.wire.constructs import custom
from tests.programs import Sketch, check, close, grads, step


def test_a_net_runs_its_ops_in_place():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [1.0, 2.0])
    with s.block() as block:
        s.declare("t")
        s.op("mul", "x", "w", out="t")
        s.op("mul", "t", "w", out="y")
    s.construct("net", {}, {}, sub_block=block)
    s.total("y")

    close(check(s)["w"], 2 * np.array([0.5, 0.7]) * [1, 2])


def test_a_function_has_the_gradient_of_its_block_unless_it_names_another():
    w = np.array([0.5, 0.7])

    close(check(custom(0.0, gradient=False))["w"], 8 * w)
    close(check(custom(2.0))["w"], 8 * w)
    close(grads(custom(-1.0))["w"], -4 * w)


def calling(**bodies: str) -> Sketch:
    """A program that calls function `f` on w. bodies: of each function, the functions that it applies in turn.

    A name that is no function is an elementwise op.
    """
    s = Sketch()
    s.param("w", [0.5, 0.7])
    for name, body in bodies.items():
        inner, last = Sketch(), "x"
        inner.feed("x", [0.0, 0.0])
        for i, applied in enumerate(body.split()):
            if applied in bodies:
                inner.construct("call", {"x": last}, {"out": f"y{i}"}, function=applied)
            else:
                inner.op(applied, last, out=f"y{i}")
            last = f"y{i}"
        s.functions[name] = {"program": inner.document, "results": [last]}
    s.construct("call", {"x": "w"}, {"out": "y"}, function="f")
    s.total("y")
    return s


def test_functions_call_each_other():
    s = calling(f="g square g", g="h h", h="sin")
    flat = Sketch()
    flat.param("w", [0.5, 0.7])
    last = "w"
    for op in ("sin", "sin", "square", "sin", "sin"):
        last = flat.op(op, last)
    flat.total(last)

    close(check(s)["w"], grads(flat)["w"])


@pytest.mark.parametrize(
    ("bodies", "path"),
    [({"f": "f"}, "f -> f"), ({"f": "g", "g": "sin h", "h": "g"}, "g -> h -> g")],
    ids=["directly", "through others"],
)
def test_a_function_that_calls_itself_is_refused_with_the_path(bodies, path):
    with pytest.raises(ProgramError, match=f"cannot need itself.*{path}") as error:
        read(calling(**bodies).document)

    assert error.value.code == "bad_function"


def test_a_gradient_that_calls_its_function_is_refused():
    s = custom(2.0)
    s.functions["df"]["program"]["blocks"][0]["ops"].insert(
        0, {"type": "call", "inputs": {"x": ["x"]}, "outputs": {"out": ["again"]}, "attrs": {"function": "f"}}
    )

    with pytest.raises(ProgramError, match="for its gradient: f -> df -> f"):
        read(s.document)


def test_calls_of_functions_end_at_the_limits():
    chain = {"f": "f1"} | {f"f{i}": f"f{i + 1}" for i in range(1, 230)} | {"f230": "sin"}
    with pytest.raises(ProgramError, match="nested deeper than the limit") as error:
        read(calling(**chain).document)
    assert error.value.code == "limit_exceeded"

    doubling = {"f": "f1 f1"} | {f"f{i}": f"f{i + 1} f{i + 1}" for i in range(1, 40)} | {"f40": "sin"}
    with pytest.raises(ProgramError, match="takes too long to read"):
        read(calling(**doubling).document, Limits(max_ops=1000))


def test_a_function_read_before_still_counts_its_own_calls():
    first = {f"g{i}": f"g{i + 1}" for i in range(100)} | {"g100": "sin"}
    second = {f"h{i}": f"h{i + 1}" for i in range(150)} | {"h150": "g0"}
    assert read(calling(f="g0 g0", **first).document)

    with pytest.raises(ProgramError, match="nested deeper than the limit"):
        read(calling(f="g0 h0", **first, **second).document)


def test_a_function_is_read_once_for_all_calls_with_operands_of_one_type(monkeypatch):
    """Functions that call each other twice are read in a time that does not double with each."""
    names, read_body = [], functions._read_body

    def noted(r, at, calls, *more):
        names.append(calls[-1])
        return read_body(r, at, calls, *more)

    monkeypatch.setattr(functions, "_read_body", noted)
    doubling = {f"f{i}": f"f{i + 1} f{i + 1}" for i in range(1, 7)} | {"f7": "sin"}
    found = step(calling(f="f1 f1", **doubling))

    assert sorted(names) == ["f", *(f"f{i}" for i in range(1, 8))]
    w = np.array([0.5, 0.7])
    for _ in range(2**7):
        w = np.sin(w)
    close(found.loss, w.sum())


def test_errors_in_a_function_have_a_location():
    s = custom(2.0)
    s.functions["f"]["results"] = ["nothing"]
    s.functions["df"]["program"]["blocks"][0]["ops"][0]["type"] = "mull"
    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert error.value.code == "unknown_variable"

    s = custom(2.0)
    s.functions["df"]["program"]["blocks"][0]["ops"][0]["type"] = "mull"
    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert error.value.problems[0].pointer == "/functions/df/program/blocks/0/ops/0"

    s = custom(2.0)
    s.blocks[0]["ops"][1]["attrs"]["function"] = "g"
    with pytest.raises(ProgramError) as error:
        read(s.document)
    assert error.value.code == "unknown_function"


def test_a_failure_inside_a_function_has_a_location():
    f = Sketch()
    f.feed("x", [0.0, 0.0])
    f.op("gather", "x", f.const(7, (1,), "int64"), out="y")
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": "w"}, {"out": "y"}, function="f")
    s.total("y")

    with pytest.raises(ExecutionError) as error:
        grads(s)

    assert str(error.value).startswith("function 'f', block 0, op 1 (gather): ")
    assert error.value.problems[0].pointer == "/functions/f/program/blocks/0/ops/1"


def test_a_function_may_contain_a_branch_whose_results_nothing_reads():
    f = Sketch()
    f.feed("x", [0.0, 0.0])
    f.op("less_than", f.op("reduce_sum", "x"), f.const(1.0), out="c")
    with f.block() as yes:
        f.op("tanh", "x", out="inside")
    f.branch("c", yes, None)
    f.op("mul", "x", "x", out="y")
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": "w"}, {"out": "y"}, function="f")
    s.total("y")

    close(check(s)["w"], [1.0, 1.4])
