"""Names of a model survive: a model that becomes a program and leaves again has the names that it came with."""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import core
import core.wire
from core.backward.append_backward import Options, append_backward
from core.backward.forward_only import clone
from core.ir.errors import InvalidProgram
from core.onnx import Loss, read_model, write_model
from tests.core.onnx.exported import run
from tests.programs import Sketch

PLAIN = ["x", "w", "b", "inner", "y", "z", "flag", "else"]
HOSTILE = [
    ["x", "x.1", "x.2", "x_1", "X", "x.1.1", "x.0", "x@1"],
    ["/a/b", "/a/b:0", "a/b:0", ":", "/", "//", "::", "/a b"],
    ["größe", "grö_e", "gr__e", "重み", "__", "_", "\N{PILE OF POO}", "n__"],
    ["0", "1:h", "0:", "-", "grad/x", "x@GRAD", "@", "constant.1"],
    ["a b", "a_b", "a\tb", "a\nb", 'a"b', "a\\b", "a'b", "a%sb"],
    ["n" * 128, "n" * 129, "n" * 300, "m" * 1024, "m" * 1023, "é" * 200, "é" * 130, "n" * 127],
    ["loss", "batch", "MatMul", "then", "If", "g", "cond", "main"],
]


def model(names: list[str]) -> onnx.ModelProto:
    """``z = max(flag ? y : -y, 0)`` with ``y = x w + b``; nodes and inner values have names of outer values too."""
    x, w, b, inner, y, z, flag, other = names

    def branch(operator: str, own: str) -> onnx.GraphProto:
        node = helper.make_node(operator, [y], [own], name=x)
        return helper.make_graph([node], b, [], [helper.make_tensor_value_info(own, TensorProto.FLOAT, None)])

    chosen = f"{inner}+"
    nodes = [
        helper.make_node("MatMul", [x, w], [inner], name=w),
        helper.make_node("Add", [inner, b], [y], name=w + "/"),
        helper.make_node(
            "If",
            [flag],
            [chosen],
            name=y,
            then_branch=branch("Identity", other),
            else_branch=branch("Neg", other + "-"),
        ),
        helper.make_node("Clip", [chosen, "", ""], [chosen + "!"], name=""),
        helper.make_node("Relu", [chosen + "!"], [z], name=z),
    ]
    graph = helper.make_graph(
        nodes,
        x,
        [
            helper.make_tensor_value_info(x, TensorProto.FLOAT, ["größe N", 3]),
            helper.make_tensor_value_info(flag, TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(y, TensorProto.FLOAT, ["größe N", 2]),
            helper.make_tensor_value_info(z, TensorProto.FLOAT, None),
        ],
        [
            numpy_helper.from_array(np.arange(6, dtype="float32").reshape(3, 2) - 2, w),
            numpy_helper.from_array(np.float32([0.5, -0.25]), b),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def shuffled(seed: int) -> list[str]:
    return random.Random(seed).sample(list(itertools.chain(*HOSTILE)), 8)


def interface(graph: onnx.GraphProto) -> tuple[list[str], list[str], set[str]]:
    weights = {each.name for each in graph.initializer if each.dims}
    return [each.name for each in graph.input], [each.name for each in graph.output], weights


@pytest.mark.sampled(1)
@pytest.mark.parametrize("names", [PLAIN, *HOSTILE, *map(shuffled, range(6))], ids=lambda names: ascii(names[0])[:12])
@pytest.mark.parametrize("loss", [None, Loss("mse", label="target", name="the loss")], ids=["model", "with-loss"])
def test_a_model_leaves_with_the_names_that_it_came_with(names, loss):
    given = model(names)
    imported = read_model(given.SerializeToString(), loss=loss)
    program = clone(core.read(core.wire.write(core.read(imported.program))), for_test=True)

    written = write_model(program, values=imported.values, outputs=imported.outputs)

    graph = onnx.load_from_string(written).graph
    found, wanted = interface(graph), interface(given.graph)
    assert (sorted(found[0]), found[1], wanted[2] <= found[2]) == (sorted(wanted[0]), wanted[1], True)
    assert graph.input[found[0].index(names[0])].type.tensor_type.shape.dim[0].dim_param == "größe N"
    for flag in (True, False):
        feeds = {names[0]: np.float32([[1, 2, 3], [4, 5, -6]]), names[6]: np.array(flag)}
        expected = ort.InferenceSession(given.SerializeToString()).run(None, feeds)
        for each, name in zip(expected, wanted[1], strict=True):
            np.testing.assert_array_equal(run(written, feeds)[name], each)


def test_the_feed_of_labels_has_the_size_names_of_its_output():
    imported = read_model(model(PLAIN).SerializeToString(), loss=Loss("mse"))

    graph = onnx.load_from_string(write_model(core.read(imported.program), outputs=["loss"])).graph

    shapes = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph.input}
    assert (shapes["x"], shapes["label"]) == (["größe N", 3], ["größe N", 2])


def test_the_inputs_of_a_backward_pass_have_the_names_of_the_model():
    names = HOSTILE[2]
    imported = read_model(model(names).SerializeToString(), loss=Loss("mse", output=names[5]))
    weights = sorted(each["name"] for each in imported.program["blocks"][0]["vars"] if each["role"] == "parameter")
    found = append_backward(core.read(imported.program), imported.loss, weights, Options())

    graph = onnx.load_from_string(write_model(found.program, outputs=list(found.gradients.values()))).graph

    assert {each.name for each in graph.input} == {names[0], names[1], names[2], names[6], "label"}
    assert [each.name for each in graph.output] == list(found.gradients.values())


def test_an_alias_that_another_input_or_output_has_is_not_used():
    s = Sketch()
    for name in ("x", "y"):
        s.param(name, [1.0, 2.0])
    s.op("add", "x", "y", out="sum")
    s.op("exp", "sum", out="result")
    program = core.read(s.document | {"aliases": {"x": "y", "sum": "inner", "result": "sum"}})

    def names(**outputs):
        graph = onnx.load_from_string(write_model(program, **outputs)).graph
        return [each.name for each in graph.input], [each.name for each in graph.output]

    assert names() == (["x", "y"], ["sum"])
    assert names(outputs=["sum", "result"]) == (["x", "y"], ["inner", "sum"])
    assert names(outputs={"r": "result"}) == (["x", "y"], ["r"])


SIZES = {
    "all open": ({"x": ["batch", "time"]}, ["batch", "time"]),
    "one name": ({"x": [None, "time"]}, ["x.0", "time"]),
    "no name": ({}, ["x.0", "x.1"]),
}


@pytest.mark.parametrize(("sizes", "wanted"), SIZES.values(), ids=SIZES)
def test_declared_sizes_are_symbolic_dimensions(sizes, wanted):
    s = Sketch()
    s.blocks[0]["vars"].append({"name": "x", "dtype": "float32", "shape": [-1, -1], "role": "feed"})
    s.op("transpose", "x", out="y", axes=[1, 0])
    program = core.read(s.document | {"sizes": sizes})

    graph = onnx.load_from_string(write_model(program)).graph

    assert core.wire.write(program).get("sizes", {}) == sizes
    shapes = [[d.dim_param for d in each.type.tensor_type.shape.dim] for each in (*graph.input, *graph.output)]
    assert shapes == [wanted, wanted[::-1]]


BAD = {
    "aliases are no object": ({"aliases": []}, "/aliases", "bad_program"),
    "an empty alias": ({"aliases": {"x": ""}}, "/aliases/x", "bad_program"),
    "a long alias": ({"aliases": {"x": "a" * 1025}}, "/aliases/x", "bad_program"),
    "an alias that is no text": ({"aliases": {"x": 1}}, "/aliases/x", "bad_program"),
    "an alias of two variables": ({"aliases": {"x": "a", "y": "a"}}, "/aliases/y", "bad_program"),
    "an unknown variable": ({"aliases": {"z/": "a"}}, "/aliases/z~1", "unknown_variable"),
    "sizes are no object": ({"sizes": 1}, "/sizes", "bad_program"),
    "sizes of an unknown feed": ({"sizes": {"y": ["n"]}}, "/sizes/y", "unknown_variable"),
    "too many sizes": ({"sizes": {"x": ["n", None]}}, "/sizes/x", "bad_program"),
    "a name of a known size": ({"sizes": {"x": ["n", None, "m"]}}, "/sizes/x", "bad_program"),
    "an empty size": ({"sizes": {"x": ["", None, None]}}, "/sizes/x", "bad_program"),
    "a size that is no text": ({"sizes": {"x": [5, None, None]}}, "/sizes/x", "bad_program"),
}


@pytest.mark.parametrize(("members", "pointer", "code"), BAD.values(), ids=BAD)
def test_bad_names_are_reported_with_their_places(members, pointer, code):
    s = Sketch()
    s.blocks[0]["vars"].append({"name": "x", "dtype": "float32", "shape": [-1, -1, 2], "role": "feed"})
    s.op("exp", "x", out="y")

    with pytest.raises(InvalidProgram) as error:
        core.read(s.document | members)

    assert [(each.pointer, each.code) for each in error.value.problems] == [(pointer, code)]
