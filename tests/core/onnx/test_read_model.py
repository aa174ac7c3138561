"""A model becomes a program with feeds, parameters, outputs and a loss under their own names."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.external_data_helper import set_external_data

import core
from core.ir.errors import ProgramError
from core.onnx import Loss, read_model
from tests.core.onnx.models import imported, model_of, run

X = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], "float32")
W = np.array([0.5, 1.0, 2.0], "float32")


def product(**more):
    return model_of(
        [helper.make_node("Mul", ["x", "fc.w"], ["y"], name="times")],
        {"x": (TensorProto.FLOAT, ["batch", 3])},
        ["y"],
        {"fc.w": W},
        **more,
    )


def test_names_and_values_are_those_of_the_model():
    found = imported(product())

    assert (found.inputs, found.outputs, list(found.values)) == (("x",), ("y",), ["fc.w"])
    np.testing.assert_array_equal(found.values["fc.w"], W)
    np.testing.assert_array_equal(run(found, [X])[0], X * W)


def test_an_appended_loss_gives_the_gradient_of_its_formula():
    found = imported(product(), Loss("mse", label="target"))
    step = core.compile_gradient(core.read(found.program), core.GradientQuery(loss=found.loss))

    gradient = step.step({**found.values, "x": X, "target": np.zeros_like(X)}).gradients["fc.w"]

    assert found.inputs == ("x", "target")
    np.testing.assert_allclose(gradient, 2 * (X * X * W).sum(0) / X.size, rtol=1e-6)


def test_all_refused_nodes_are_reported_at_once():
    nodes = [
        helper.make_node("Sin", ["x"], ["a"], name="ok"),
        helper.make_node("StringNormalizer", ["x"], ["b"], name="text"),
        helper.make_node("Add", ["x", "w"], ["c"], name="dtypes"),
        helper.make_node("Exp", ["c"], ["d"], name="after"),
    ]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, [2])}, ["a", "b", "d"], {"w": np.ones(2, "float64")})

    with pytest.raises(ProgramError) as error:
        imported(model)

    messages = [each.message for each in error.value.problems]
    assert len(messages) == 2
    assert messages[0].startswith("node 'text' (StringNormalizer): ")
    assert messages[1].startswith("node 'dtypes' (Add): ")


@pytest.mark.parametrize(
    ("domain", "way"),
    [
        ("com.microsoft", "as it was before onnxruntime optimized or quantized it"),
        ("com.microsoft.nchwc", "as it was before onnxruntime optimized or quantized it"),
        ("my.domain", "give the model a function of this name and domain"),
    ],
)
def test_an_operator_of_another_domain_is_refused_with_the_way_out(domain, way):
    model = model_of([helper.make_node("Gelu", ["x"], ["y"], domain=domain)], {"x": (TensorProto.FLOAT, [2])}, ["y"])
    model.opset_import.append(helper.make_opsetid(domain, 1))

    with pytest.raises(ProgramError, match=f"the operator {domain}.Gelu is not part of ONNX: .*{way}"):
        imported(model)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x08\x07"])
def test_other_bytes_are_refused(data):
    with pytest.raises(ProgramError) as error:
        read_model(data)

    assert error.value.code == "malformed_model"


def test_external_data_come_from_the_given_files():
    model = product()
    tensor = model.graph.initializer[0]
    data = b"skipped!" + tensor.raw_data
    set_external_data(tensor, "weights.bin", offset=8, length=12)
    tensor.ClearField("raw_data")

    found = read_model(model.SerializeToString(), files={"weights.bin": data})

    np.testing.assert_array_equal(found.values["fc.w"], W)
    for files, message in (({}, "which was not given"), ({"weights.bin": data[:9]}, "which has 9 bytes")):
        with pytest.raises(ProgramError, match=message):
            read_model(model.SerializeToString(), files=files)


def test_only_the_named_initialisers_train_and_the_others_keep_their_names():
    found = read_model(product().SerializeToString(), parameters=())

    (weight,) = [each for each in found.program["blocks"][0]["vars"] if each["name"] == "fc.w"]
    assert weight["role"] == "state"
    np.testing.assert_array_equal(found.values["fc.w"], W)
    np.testing.assert_array_equal(run(found, [X])[0], X * W)


def test_constants_keep_their_values_whatever_their_size_and_elements():
    constants = {
        "large": np.arange(3000, dtype="int64").reshape(1000, 3),
        "huge": np.array([2**62 + 1, -(2**63), 5]),
        "special": np.array([np.nan, np.inf, -0.0], "float32"),
        "scalar": np.array(np.nan, "float32"),
        "truths": np.array([True, False, True]),
        "none": np.zeros((0, 3), "int64"),
        "half": np.array([0.1, 65504, -np.inf], "float16"),
    }
    nodes = [helper.make_node("Where", ["c", name, name], [f"{name}.out"]) for name in constants]
    types = {f"{n}.out": (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in constants.items()}
    model = model_of(nodes, {"c": (TensorProto.BOOL, [])}, types, constants)

    found = read_model(model.SerializeToString(), parameters=())

    for result, (name, array) in zip(run(found, [np.array(True)]), constants.items(), strict=True):
        assert result.dtype == array.dtype, name
        np.testing.assert_array_equal(result, array)
    assert {each.removesuffix(".1") for each in found.values} == {"large", "huge", "special", "scalar", "half"}


def test_functions_of_the_model_are_read_in_place_of_their_calls():
    text = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g (float[2] x) => (float[2] y) { h = mine.twice <factor = 3.0> (x)  y = mine.twice (h) }
        <domain: "mine", opset_import: ["" : 21]>
        twice <factor: float = 2.0> (a) => (b) {
            f = Constant <value_float: float = @factor> ()
            b = Mul (a, f)
        }"""

    found = imported(parser.parse_model(text))

    np.testing.assert_array_equal(run(found, [X[0, :2]])[0], 6 * X[0, :2])


def test_a_function_that_calls_itself_is_refused():
    text = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g (float[2] x) => (float[2] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["" : 21, "mine" : 1]>
        f (a) => (b) { b = mine.f (a) }"""

    with pytest.raises(ProgramError, match=r"nested more than|not valid"):
        imported(parser.parse_model(text))


def test_functions_that_double_at_each_level_end_at_a_limit(monkeypatch):
    monkeypatch.setattr("core.onnx.reading.graph.MOST_NODES", 2000)
    levels = "".join(
        f"""<domain: "mine", opset_import: ["" : 21, "mine" : 1]>
        f{i} (a) => (c) {{ b = mine.f{i + 1} (a)  c = mine.f{i + 1} (b) }}\n"""
        for i in range(40)
    )
    text = f"""<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g (float[2] x) => (float[2] y) {{ y = mine.f0 (x) }}
        {levels}
        <domain: "mine", opset_import: ["" : 21]>
        f40 (a) => (b) {{ b = Identity (a) }}"""

    with pytest.raises(ProgramError, match="more than 2000 nodes") as error:
        imported(parser.parse_model(text))

    assert error.value.code == "limit_exceeded"


def test_outputs_that_are_inputs_parameters_or_constants_have_their_own_names():
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["w"], ["weight"]),
        helper.make_node("Identity", ["n"], ["number"]),
        helper.make_node("Identity", ["same"], ["again"]),
    ]
    shapes = {"same": (1, [2, 3]), "weight": (1, [3]), "number": (7, []), "again": (1, [2, 3]), "x": (1, [2, 3])}
    model = model_of(nodes, {"x": (1, [2, 3])}, shapes, {"w": W, "n": np.array(7)})

    found = imported(model)

    assert found.outputs == ("same", "weight", "number", "again", "x")
    for result, wanted in zip(run(found, [X]), (X, W, np.array(7), X, X), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_names_that_a_program_cannot_have_are_replaced_and_reported():
    model = model_of(
        [helper.make_node("Mul", ["in put", "w@1"], ["grad/y"]), helper.make_node("Neg", ["grad/y"], ["in_put"])],
        {"in put": (1, [3])},
        {"in_put": (1, [3])},
        {"w@1": W},
    )

    found = imported(model)

    assert set(found.names.values()) == {"in put", "w@1", "in_put"}
    assert len({*found.inputs, *found.outputs, *found.values}) == 3
    np.testing.assert_array_equal(run(found, [X[0]])[0], -X[0] * W)


@pytest.mark.parametrize("kind", ["cross_entropy", "nll"])
def test_losses_of_classes_pick_the_class_of_each_label(kind):
    made = model_of(
        [helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (1, ["batch", 3])}, {"y": (1, ["batch", 3])}, {"w": W}
    )
    found = imported(made, Loss(kind, label="class"))
    label = np.array([2, 0])
    step = core.compile_gradient(core.read(found.program), core.GradientQuery(loss=found.loss))

    loss = step.step({**found.values, "x": X, "class": label}).loss

    scores = X * W
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True)) if kind == "cross_entropy" else scores
    np.testing.assert_allclose(loss, -logs[np.arange(2), label].mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Loss("output"), "a loss has one element"),
        (Loss("mse", output="z"), "no output 'z'"),
        (Loss("mse", label="x"), "already has an input 'x'"),
        (Loss("guess"), "is not one of"),
        (Loss("cross_entropy", axis=4), "it has no axis 4"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(loss, message):
    with pytest.raises(ProgramError, match=message):
        imported(product(), loss)


def test_a_constant_that_is_too_large_is_refused():
    sizes = np.array([1 << 20, 1 << 20])
    model = model_of([helper.make_node("ConstantOfShape", ["n"], ["y"])], {}, {"y": (1, [None, None])}, {"n": sizes})

    with pytest.raises(ProgramError, match="more than 67108864 elements"):
        imported(model)


@pytest.mark.parametrize("order", ["mask, none, p", "kept, p, none"])
def test_a_softmax_row_that_a_selection_drops_has_no_gradient(order):
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 3] x) => (float[2, 3] y) {{
            none = Constant <value = float {{0}}> ()
            mask = IsInf (lowest)
            kept = Not (mask)
            s = Add (x, lowest)
            p = Softmax <axis = 1> (s)
            y = Where ({order})
        }}"""
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array([[0], [-np.inf]], "float32"), "lowest"))
    found = read_model(model.SerializeToString(), parameters=())
    query = core.GradientQuery(targets=("y",), inputs=("x",), target_gradients=(True,))
    seed = np.array([[1.0, 2, 4], [1, 2, 4]], "float32")

    gradient = core.compile_gradient(core.read(found.program), query).step(
        {**found.values, "x": X, "target_gradients/0": seed}
    )

    p = np.exp(X[0]) / np.exp(X[0]).sum()
    expected = [p * (seed[0] - (p * seed[0]).sum()), np.zeros(3)]
    np.testing.assert_allclose(gradient.gradients["x"], expected, rtol=1e-5)


def test_nodes_in_any_order_give_the_same_program():
    chain = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="1"),
        helper.make_node("Tanh", ["a"], ["b"], name="2"),
        helper.make_node("ReduceSum", ["b"], ["c"], name="3", keepdims=0),
        helper.make_node("Greater", ["c", "zero"], ["d"], name="4"),
        helper.make_node(
            "If",
            ["d"],
            ["y"],
            name="5",
            then_branch=helper.make_graph(
                [helper.make_node("Neg", ["e"], ["f"], name="7"), helper.make_node("Exp", ["b"], ["e"], name="6")],
                "then",
                [],
                [helper.make_tensor_value_info("f", TensorProto.FLOAT, None)],
            ),
            else_branch=helper.make_graph(
                [helper.make_node("Identity", ["a"], ["g"], name="8")],
                "else",
                [],
                [helper.make_tensor_value_info("g", TensorProto.FLOAT, None)],
            ),
        ),
    ]
    inputs = {"x": (TensorProto.FLOAT, [2, 3])}
    values = {"w": W, "zero": np.zeros((), "float32")}
    draw = np.random.default_rng(0)

    programs = [
        imported(model_of([chain[i] for i in order], inputs, ["y"], values)).program
        for order in [draw.permutation(5) for _ in range(6)]
    ]

    assert all(program == programs[0] for program in programs)
    product = np.tanh(X * W)
    expected = -np.exp(product) if product.sum() > 0 else X * W
    found = imported(model_of(chain[::-1], inputs, ["y"], values))
    np.testing.assert_allclose(run(found, [X])[0], expected, rtol=1e-6)


def test_nodes_in_a_circle_are_refused():
    circle = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]

    with pytest.raises(ProgramError, match="topologically sorted"):
        imported(model_of(circle, {"x": (TensorProto.FLOAT, [3])}, ["a"]))
