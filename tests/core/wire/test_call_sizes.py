"""Functions that declare the sizes of their operands, called with values whose sizes are known only at run time."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ExecutionError, ProgramError
from core.wire import read
from tests.programs import Sketch, close


def called(declared: list[int], rule: bool = False) -> Sketch:
    """loss = f(x) for a feed x of open size, where f(p) = (sum of p)^2, and p is declared with that shape."""
    f = Sketch()
    f.feed("p", np.zeros(max(declared[0], 0)))
    f.op("square", f.op("reduce_sum", "p", axes=[0], keepdims=True, out="total"), out="y")
    s = Sketch()
    s.feed("x", [0.0])
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    if rule:
        df = Sketch()
        for name in ("p", "y", "dy"):
            df.feed(name, [0.0])
        df.op("scale", df.op("reduce_sum", "p", axes=[0], keepdims=True), out="slope", scale=2.0)
        df.op("expand_as", df.op("mul", "slope", "dy"), "p", out="dp")
        df.blocks[0]["vars"][0]["shape"] = declared
        s.functions["f"]["gradient"] = "df"
        s.functions["df"] = {"program": df.document, "results": ["dp"]}
    for block in (f.blocks[0], s.blocks[0]):
        block["vars"][0]["shape"] = declared if block is f.blocks[0] else [-1]
    s.construct("call", {"x": "x"}, {"out": "y"}, function="f")
    s.total("y")
    return s


QUERY = GradientQuery(targets=("loss",), inputs=("x",))


@pytest.mark.parametrize("rule", [False, True])
@pytest.mark.parametrize("declared", [[1], [2]])
def test_a_value_whose_size_differs_from_the_declared_one_is_refused(declared, rule):
    program, x = read(called(declared, rule).document), np.arange(1.0, 4.0)

    with pytest.raises(ExecutionError) as in_the_run:
        compile_gradient(program, QUERY).step({"x": x})
    with pytest.raises(ProgramError) as before:
        compile_gradient(program, QUERY, shapes={"x": [3]})

    assert in_the_run.value.code == before.value.code == "shape_mismatch"
    assert in_the_run.value.location is not None and in_the_run.value.location.type == "call"


@pytest.mark.parametrize("rule", [False, True])
@pytest.mark.parametrize("declared", [[-1], [3]])
@pytest.mark.parametrize("shapes", [None, {"x": [3]}])
def test_a_value_of_the_declared_size_has_its_gradient(declared, rule, shapes):
    program, x = read(called(declared, rule).document), np.arange(1.0, 4.0)

    found = compile_gradient(program, QUERY, ["loss"], shapes).step({"x": x})

    close(found.fetched["loss"], 36.0, 0)
    close(found.gradients["x"], [12.0, 12.0, 12.0], 0)


def test_the_check_of_a_known_size_is_removed():
    executable = compile_gradient(read(called([3]).document), QUERY, shapes={"x": [3]})

    assert all(op.type != "check_shape" for op in executable.interpreter.block.ops)


@pytest.mark.parametrize("shape", [[-2], [2, 3]])
def test_a_check_of_an_invalid_shape_is_refused(shape):
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.total(s.op("check_shape", "w", shape=shape))

    with pytest.raises(ProgramError):
        read(s.document)
