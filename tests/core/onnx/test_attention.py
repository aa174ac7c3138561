"""Attention as one op: values and gradients beside those of the function body of the standard."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx
import pytest

import core
from core.onnx.reading import registry
from tests.core.onnx.beside_runtime import one_node
from tests.core.onnx.models import imported

RNG = np.random.default_rng(5)
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}


def some(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


Q, K, V = some(2, 2, 3, 4), some(2, 2, 5, 4), some(2, 2, 5, 6)
FLAT = {"q": some(2, 3, 8), "k": some(2, 5, 8), "v": some(2, 5, 12)}
SPLIT = {"q": Q, "k": K, "v": V}
BOOLS = RNG.random((3, 5)) > 0.4
BOOLS[:, 1] = True
ADDED = np.where(RNG.random((2, 1, 3, 5)) > 0.3, some(2, 1, 3, 5), -np.inf).astype("float32")
ADDED[..., 2] = 0.5

CASES = {
    "heads apart": (SPLIT, {}),
    "heads together": (FLAT, HEADS),
    "causal": (SPLIT, {"is_causal": 1}),
    "scaled": (FLAT, {**HEADS, "scale": 0.3}),
    "bool mask": (SPLIT | {"mask": BOOLS}, {}),
    "float mask": (FLAT | {"mask": ADDED}, HEADS),
    "mask and causal": (SPLIT | {"mask": BOOLS}, {"is_causal": 1}),
    "one head of a mask": (FLAT | {"mask": some(1, 2, 1, 5)}, HEADS),
}
BY_BODY = {
    "softcap": (SPLIT, {"softcap": 2.0}, 1),
    "shared keys": ({"q": some(2, 4, 3, 4), "k": K, "v": V}, {}, 1),
    "shared keys together": ({"q": some(2, 3, 16), "k": FLAT["k"], "v": FLAT["v"]}, HEADS | {"q_num_heads": 4}, 1),
    "window": (SPLIT, {"left_window_size": 1}, 1),
    "scores": (SPLIT, {}, ["float32", "", "", "float32"]),
    "precision": (SPLIT, {"softmax_precision": 11}, 1),
    "mask of whole numbers": (SPLIT | {"mask": np.arange(15).reshape(3, 5) % 3}, {}, 1),
    "past": (SPLIT | {"mask": None, "past_k": some(2, 2, 1, 4), "past_v": some(2, 2, 1, 6)}, {}, 3),
}
OPEN = {
    "q": {-4: "batch", -2: "time"},
    "k": {-4: "batch", -2: "keys"},
    "v": {-4: "batch", -2: "keys"},
    "mask": {-4: "batch", -2: "time", -1: "keys"},
}
"""Name of each open size, by axis."""
NEWEST = onnx.defs.onnx_opset_version()


def gradients(model: onnx.ModelProto, inputs: dict[str, np.ndarray], by_body: bool) -> tuple[dict, set[str]]:
    """The output and the gradients of a projection of it, and the types of the ops that compute it."""
    found = registry.find

    def without(domain: str, name: str, opset: int):
        return None if name == "Attention" else found(domain, name, opset)

    with mock.patch("core.onnx.reading.graph.find", without if by_body else found):
        model = imported(model)
    feeds = {name: value for name, value in inputs.items() if value is not None}
    wrt = tuple(name for name, value in feeds.items() if value.dtype.kind == "f" and name != "mask")
    query = core.GradientQuery(targets=("y0",), inputs=wrt, target_gradients=(True,))
    shapes = {name: value.shape for name, value in feeds.items()}
    program = core.read(model.program)
    out = core.compile_forward(program, ["y0"], shapes).step({**model.values, **feeds}).fetched["y0"]
    seed = np.cos(np.arange(out.size, dtype="float32")).reshape(out.shape)
    step = core.compile_gradient(program, query, shapes=shapes)
    back = step.step({**model.values, **feeds, "target_gradients/0": seed}).gradients
    return {"y0": out, **back}, {op["type"] for op in model.program["blocks"][0]["ops"]}


def close(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, 2e-5, 2e-6, err_msg=name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize(("inputs", "how"), CASES.values(), ids=CASES)
def test_attention_is_one_op_with_the_gradients_of_the_function_body(inputs, how, open_sizes):
    model = one_node("Attention", inputs, opset=23, **how)
    for each in model.graph.input if open_sizes else ():
        sizes = each.type.tensor_type.shape.dim
        for i in range(-len(sizes), 0):
            name = OPEN[each.name].get(i)
            if name is not None and sizes[i].dim_value > 1:
                sizes[i].dim_param = name
    found, ops = gradients(model, inputs, by_body=False)
    wanted, body = gradients(model, inputs, by_body=True)

    close(found, wanted)
    assert ("scaled_dot_product_attention" in ops, "scaled_dot_product_attention" in body) == (True, False)


@pytest.mark.parametrize(("inputs", "how", "outputs"), BY_BODY.values(), ids=BY_BODY)
def test_other_attention_is_the_function_body(inputs, how, outputs):
    model = one_node("Attention", inputs, outputs=3 if outputs == 3 else 1, opset=NEWEST, **how)
    if isinstance(outputs, list):
        model.graph.node[0].output[:] = ["y0", "", "", "y3"]

    found, ops = gradients(model, inputs, by_body=False)

    close(found, gradients(model, inputs, by_body=True)[0])
    assert "scaled_dot_product_attention" not in ops


def test_a_mask_that_is_shorter_than_the_keys_is_filled_up():
    mask = BOOLS[:, :3]
    inputs = SPLIT | {"mask": mask}
    found, _ = gradients(one_node("Attention", inputs, opset=NEWEST), inputs, by_body=False)

    whole = SPLIT | {"mask": np.concatenate([mask, np.zeros((3, 2), bool)], 1)}
    close(found, gradients(one_node("Attention", whole, opset=23), whole, by_body=False)[0])


def test_a_query_that_sees_no_key_has_no_gradient():
    hidden = SPLIT | {"mask": np.zeros((3, 5), bool)}

    found, _ = gradients(one_node("Attention", hidden, opset=NEWEST), hidden, by_body=False)

    assert all(not np.asarray(each).any() for each in found.values())
