"""Models with training information: new values of initialisers, and the names of those to train."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import core
from core.ir.errors import ProgramError
from core.onnx import read_model
from tests.core.onnx.models import model_of

FLOAT = TensorProto.FLOAT
X = np.array([[1.0, 2.0], [3.0, 6.0]], "f")


def scaled(bindings: dict[str, str], **initialisers: Any) -> ModelProto:
    """y = x * w, with training information that computes half of y and its sum over the batch."""
    model = model_of([helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (FLOAT, [2, 2])}, ["y"],
                     {"w": np.array([2.0, -1.0], "f"), **initialisers})  # fmt: skip
    info = model.training_info.add()
    info.algorithm.CopyFrom(
        helper.make_graph(
            [
                helper.make_node("Mul", ["y", "half"], ["halved"]),
                helper.make_node("ReduceSum", ["halved", "axes"], ["total"], keepdims=0),
            ],
            "update",
            [],
            [helper.make_tensor_value_info("total", FLOAT, [2])],
            [
                helper.make_tensor("half", FLOAT, [], [0.5]),
                helper.make_tensor("axes", TensorProto.INT64, [1], [0]),
            ],
        )
    )
    for key, value in bindings.items():
        info.update_binding.add(key=key, value=value)
    return model


def states_after_step(model: ModelProto, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    read = read_model(model.SerializeToString())
    return core.compile_forward(core.read(read.program), [*read.outputs]).step({**read.values, **feeds}).states


def test_a_step_writes_the_value_that_training_information_binds_to_an_initialiser():
    model = scaled({"mean": "total"}, mean=np.zeros(2, "f"))

    states = states_after_step(model, x=X)

    assert {name: list(value) for name, value in states.items()} == {"mean": [4.0, -4.0]}


def test_a_bound_initialiser_is_read_before_it_is_written():
    model = scaled({"mean": "total"}, mean=np.array([10.0, 20.0], "f"))
    model.graph.node.append(helper.make_node("Add", ["y", "mean"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", FLOAT, None))

    read = read_model(model.SerializeToString())
    out = core.compile_forward(core.read(read.program), ["z"]).step({**read.values, "x": X})

    assert out.fetched["z"].tolist() == [[12.0, 18.0], [16.0, 14.0]]
    assert out.states["mean"].tolist() == [4.0, -4.0]


def test_training_information_replaces_the_update_of_batch_normalisation():
    statistics = {"mean": np.zeros(2, "f"), "var": np.ones(2, "f")}
    model = scaled({"mean": "total"}, b=np.zeros(2, "f"), **statistics)
    node = helper.make_node("BatchNormalization", ["x", "w", "b", "mean", "var"], ["n", "m", "v"], training_mode=1)
    model.graph.node.insert(0, node)
    model.graph.output.append(helper.make_tensor_value_info("n", FLOAT, None))

    states = states_after_step(model, x=X)

    assert states["mean"].tolist() == [4.0, -4.0]
    np.testing.assert_allclose(states["var"], 0.9 + 0.1 * np.array([1.0, 4.0]), rtol=1e-6)


def test_metadata_names_the_initialisers_to_train():
    model = scaled({}, unused=np.ones(3, "f"))
    model.graph.initializer.append(helper.make_tensor("s", FLOAT, [], [2.0]))
    model.graph.node.append(helper.make_node("Mul", ["y", "s"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", FLOAT, None))
    model.metadata_props.add(key="backpass.trainable", value=json.dumps(["s"]))

    read = read_model(model.SerializeToString())

    roles = {each["name"]: each["role"] for each in read.program["blocks"][0]["vars"]}
    assert roles == {"x": "feed", "s": "parameter", "w": "state"}


@pytest.mark.parametrize(
    ("bindings", "told"),
    [
        ({"other": "total"}, "there is no initializer 'other'"),
        ({"x": "total"}, "there is no initializer 'x'"),
        ({"mean": "nothing"}, "there is no array 'nothing'"),
        ({"mean": "y"}, "float32[2, 2] cannot be written to float32[2]"),
    ],
)
def test_a_binding_that_does_not_fit_is_refused(bindings: dict[str, str], told: str):
    model = scaled(bindings, mean=np.zeros(2, "f"))

    with pytest.raises(ProgramError) as error:
        read_model(model.SerializeToString())

    assert told in str(error.value)


def test_an_unknown_initialiser_to_train_is_refused_with_a_suggestion():
    with pytest.raises(ProgramError, match="there is no initializer 'weigth' to train") as error:
        read_model(scaled({}, weight=np.ones(2, "f")).SerializeToString(), parameters=["weigth"])

    assert error.value.suggestion == "did you mean weight?"


@pytest.mark.parametrize(("opset", "told"), [(5, "older than 6"), (999, "newer than")])
def test_an_unsupported_opset_is_refused(opset: int, told: str):
    model = scaled({})
    model.opset_import[0].version = opset

    with pytest.raises(ProgramError, match=told):
        read_model(model.SerializeToString())


@pytest.mark.parametrize("text", ["w", '{"w": 1}', "[1]", "[" * 5000])
def test_metadata_that_is_no_list_of_names_is_refused(text: str):
    model = scaled({})
    model.metadata_props.add(key="backpass.trainable", value=text)

    with pytest.raises(ProgramError, match="must be a JSON list of names"):
        read_model(model.SerializeToString())
