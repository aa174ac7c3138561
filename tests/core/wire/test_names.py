"""Names of variables: those of PyTorch and ONNX are legal, and no name can be taken for a place in a block."""

from __future__ import annotations

import pytest

from core.backward.query import GradientQuery
from core.compiler.compile import append_backward, compile_gradient
from core.ir.errors import InvalidProgram
from core.ir.names import inner_name
from core.wire import read, write
from tests.programs import Sketch

NAMES = [
    "0",
    "0.weight",
    "10.0.bias",
    "/encoder/Add_output_0",
    "/a",
    "_",
    "x:0",
    "model/dense/MatMul:0",
    "0.a:1",
    "a-b",
]


def square(name: str, out: str) -> Sketch:
    s = Sketch()
    s.param(name, [3.0], dtype="float64")
    s.op("mul", name, name, out=out)
    s.total(out)
    return s


@pytest.mark.parametrize("name", NAMES)
def test_names_of_other_frameworks_have_gradients(name):
    sketch = square(name, f"{name}/out")
    query = GradientQuery(loss="loss")

    found = compile_gradient(read(sketch.document), query, (), {}).step(sketch.values)

    assert found.gradients[name].tolist() == [6.0]


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_with_these_names_can_be_sent_back(name):
    backward = append_backward(read(square(name, f"{name}/out").document), "loss", None, GradientQuery(loss="loss"))

    assert read(write(backward.program)) == backward.program
    assert f"{name}@GRAD" in backward.grad_to_var


@pytest.mark.parametrize(
    "name", ["", "1:h", "0:x", "12:", ":x", ".x", "-x", "a b", "é", "١:h", "a\n", "w\0", "a\\b", "a%b"]
)
def test_other_names_are_refused(name):
    with pytest.raises(InvalidProgram) as error:
        read(square("w", name).document)

    assert "bad_name" in {each.code for each in error.value.problems}


@pytest.mark.parametrize("name", NAMES)
def test_no_legal_name_names_a_place_in_a_block(name):
    assert inner_name(name) == (0, name)
    assert inner_name(f"2:{name}") == (2, name)
