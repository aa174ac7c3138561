"""Programs written as ONNX models: names, values, open sizes, refusals, and errors of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import core
from core.backward.append_backward import Options, append_backward, gradients
from core.ir.errors import ProgramError
from core.onnx import write_model
from core.onnx.writing import NEWEST, OLDEST
from core.wire import read
from tests.core.onnx.exported import compare, run
from tests.laws.random_programs import INPUTS, POLICIES, leaves
from tests.programs import Sketch
from tests.strategies import written

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "programs").glob("*.json"))


def graph_of(data: bytes) -> onnx.GraphProto:
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    return model.graph


def operators(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


def dense(batch: int = -1) -> core.Program:
    """``mean((tanh(x @ w + b) - y)^2)`` for x [batch, 3] and y [batch, 2]."""
    s = Sketch()
    s.blocks[0]["vars"] += [
        {"name": "x", "dtype": "float32", "shape": [batch, 3], "role": "feed"},
        {"name": "y", "dtype": "float32", "shape": [batch, 2], "role": "feed"},
    ]
    s.param("layer/w", np.ones((3, 2)), "float32")
    s.param("layer/b", np.ones(2), "float32")
    s.op("matmul", "x", "layer/w", out="product")
    s.op("add", "product", "layer/b", out="sum")
    s.op("tanh", "sum", out="prediction")
    s.op("sub", "prediction", "y", out="difference")
    s.op("square", "difference", out="squared")
    s.op("reduce_mean", "squared", out="loss")
    return core.read(s.document)


def values_of(program: core.Program, sizes: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    given = {}
    for v in program.variables:
        shape = tuple(sizes if n == -1 else n for n in v.type.shape)
        integer = v.type.dtype.startswith(("int", "uint", "bool"))
        given[v.name] = (r.integers(0, 2, shape) if integer else r.uniform(-1, 1, shape)).astype(v.type.dtype)
    return given


def test_inputs_outputs_and_variables_keep_their_names():
    graph = graph_of(write_model(dense(), outputs=["prediction", "loss"]))

    assert [i.name for i in graph.input] == ["x", "y", "layer/w", "layer/b"]
    assert [o.name for o in graph.output] == ["prediction", "loss"]
    assert {"product", "sum"} <= {name for node in graph.node for name in node.output}


def test_values_become_initialisers_and_unread_inputs_are_left_out():
    program = dense()
    values = values_of(program)

    data = write_model(program, values={n: values[n] for n in ("layer/w", "layer/b")}, outputs=["prediction"])

    graph = graph_of(data)
    assert [i.name for i in graph.input] == ["x"]
    assert [i.name for i in graph.initializer] == ["layer/w", "layer/b"]
    wanted = np.tanh(values["x"] @ values["layer/w"] + values["layer/b"])
    np.testing.assert_allclose(run(data, values)["prediction"], wanted, rtol=1e-6)


def test_open_sizes_have_names_and_any_size_runs():
    program = dense()
    data = write_model(program, outputs=["loss"])

    shapes = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph_of(data).input}

    assert shapes["x"] == ["batch", 3]
    assert shapes["y"] == ["batch", 2]
    for batch in (1, 5):
        v = values_of(program, batch)
        wanted = np.mean((np.tanh(v["x"] @ v["layer/w"] + v["layer/b"]) - v["y"]) ** 2)
        np.testing.assert_allclose(run(data, v)["loss"], wanted, rtol=1e-6)


def test_the_default_outputs_are_the_variables_that_no_op_reads():
    assert [o.name for o in graph_of(write_model(dense())).output] == ["loss"]


@pytest.mark.parametrize("opset", [OLDEST, NEWEST])
def test_the_model_has_the_wanted_operator_set(opset):
    model = onnx.load_from_string(write_model(dense(), opset=opset))

    assert [(each.domain, each.version) for each in model.opset_import] == [("", opset)]


def test_a_node_has_no_empty_names_at_the_end_of_its_inputs():
    feeds = {"x": np.ones((2, 3), "float32"), "scale": np.ones(3, "float32")}

    [node] = graph_of(one_op("layer_norm", "x", "scale", feeds=feeds, begin_norm_axis=1)).node

    assert list(node.input) == ["x", "scale"]


def test_an_opset_that_cannot_be_written_is_refused():
    with pytest.raises(ProgramError, match="opset must be from"):
        write_model(dense(), opset=7)


def test_all_refused_ops_are_reported_with_their_places():
    s = Sketch()
    s.param("m", np.eye(3))
    s.op("qr", "m", out=["q", "r"])
    s.op("svd", "m", out=["u", "s", "v"])
    s.op("matmul", "q", "u", out="product")

    with pytest.raises(ProgramError) as error:
        write_model(core.read(s.document), outputs=["product"])

    problems = error.value.problems
    assert [(p.code, p.op, p.op_type) for p in problems] == [
        ("onnx_unsupported", 0, "qr"),
        ("onnx_unsupported", 1, "svd"),
    ]
    assert "qr_factor cannot be written as ONNX" in problems[0].message


def test_random_ops_are_refused_only_where_an_output_needs_them():
    s = Sketch()
    s.param("w", np.ones(3))
    s.op("dropout", "w", out="dropped", p=0.5)
    s.op("square", "w", out="squared")
    program = core.read(s.document)

    with pytest.raises(ProgramError, match="draw other numbers"):
        write_model(program, outputs=["dropped"])
    assert operators(graph_of(write_model(program, outputs=["squared"]))) == ["Mul"]


def test_an_unknown_output_is_an_error_with_a_suggestion():
    with pytest.raises(ProgramError) as error:
        write_model(dense(), outputs=["los"])
    assert "loss" in (error.value.suggestion or "")


def test_a_value_of_another_shape_is_refused():
    with pytest.raises(ProgramError, match="its value has the shape"):
        write_model(dense(), values={"layer/b": np.zeros(3, "float32")}, outputs=["loss"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_run(dtype):
    s = Sketch()
    s.blocks[0]["vars"] += [{"name": "x", "dtype": dtype, "shape": [2, 3], "role": "feed"}]
    s.op("softmax", "x", out="p")
    s.op("matmul", "x", "p", out="product", transpose_y=True)
    s.op("reduce_sum", "product", out="loss", axes=[0])
    program = core.read(s.document)
    x = np.linspace(-1, 1, 6).reshape(2, 3)
    if dtype == "bfloat16":
        import ml_dtypes

        x = x.astype(ml_dtypes.bfloat16)

    compare(program, {"loss": "loss"}, {"x": x.astype("float16") if dtype == "float16" else x}, 2e-2)


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_first_and_second_gradients_of_the_examples_agree(path):
    program = core.read(json.loads(path.read_text())["program"])
    loss = next(n for n in ("loss", "cost", "L") if n in program.block.types or n in program.latest)
    first = append_backward(program, loss)
    wrt = [n for n, g in first.params_grads if g is not None]
    second = gradients(first.program, list(first.gradients.values()), wrt, options=Options(unconnected="zeros"))
    values = values_of(second.program, 3)

    compare(first.program, {n: n for n in (loss, *first.gradients.values())}, values, 1e-4)
    compare(second.program, {f"second/{n}": g for n, g in second.gradients.items()}, values, 1e-3)


def agree(seed: int, depth: int) -> list[str]:
    """Compare a random program and its gradients of both orders. Returns the reasons of refusals."""
    program, values, refused = core.read(written(seed, depth)), leaves(seed), []
    targets: tuple[str, ...] = (program.latest.get("loss", "loss"),)
    for order in range(3):
        if order:
            policy = POLICIES[(seed + order) % len(POLICIES)]
            back = gradients(program, targets, list(INPUTS), options=Options(unconnected="zeros", loop_memory=policy))
            program, targets = back.program, tuple(back.gradients.values())
        try:
            compare(program, {f"out{i}": name for i, name in enumerate(targets)}, values, 1e-8)
        except ProgramError as error:
            refused += [each.message for each in error.problems]
    return refused


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6, 18))
def test_random_programs_and_their_gradients_agree(seed):
    for reason in agree(seed, 3):
        assert "draw other numbers" in reason


def test_the_cotangent_of_a_stack_of_stacks_may_lack_elements():
    """In the second order of this program some inner stacks of a cotangent are shorter than those of its array."""
    assert agree(1067, 4) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(30))
def test_many_random_programs_and_their_gradients_agree(part):
    for seed in range(1000 + 10 * part, 1010 + 10 * part):
        for reason in agree(seed, 4):
            assert "draw other numbers" in reason or "deeper than a file can be" in reason, seed


# --- control flow -----------------------------------------------------------------------------------------------------


def halving() -> tuple[core.Program, dict[str, str]]:
    """h = tanh(h * w) while sum(h^2) > limit; the loss is sum(h). The program with its gradients."""
    s = Sketch()
    s.param("w", np.array([0.7, -0.4]))
    s.param("h0", np.array([2.0, -1.5]))
    s.feed("limit", np.asarray(0.05))
    s.op("assign", "h0", out="h")
    s.op("square", "h", out="size")
    s.op("reduce_sum", "size", out="total")
    s.op("greater_than", "total", "limit", out="go")
    with s.block() as body:
        s.op("mul", "h", "w", out="next")
        s.op("tanh", "next", out="h")
        s.op("square", "h", out="inner")
        s.op("reduce_sum", "inner", out="sum")
        s.op("greater_than", "sum", "limit", out="go")
    s.raw({"type": "while", "inputs": {"condition": ["go"]}, "outputs": {}, "attrs": {"sub_block": body}})
    s.op("reduce_sum", "h", out="loss")
    back = append_backward(core.read(s.document), "loss")
    return back.program, back.gradients


def by_hand(w: np.ndarray, h: np.ndarray, limit: float) -> np.ndarray:
    while (h**2).sum() > limit:
        h = np.tanh(h * w)
    return h.sum()


@pytest.mark.parametrize("limit", [0.05, 0.5, 100.0])
def test_a_loop_runs_as_often_as_the_data_says(limit):
    derived, grads = halving()
    w, h = np.array([0.7, -0.4]), np.array([2.0, -1.5])
    values = {"w": w, "h0": h, "limit": np.asarray(limit)}
    data = write_model(derived, outputs=["loss", *grads.values()])

    found = run(data, values)

    assert "Loop" in operators(graph_of(data))
    np.testing.assert_allclose(found["loss"], by_hand(w, h, limit), rtol=1e-12)
    for name in ("w", "h0"):
        for i in range(2):
            step = np.eye(2)[i] * 1e-6
            moved = ({"w": w, "h0": h} | {name: {"w": w, "h0": h}[name] + s * step} for s in (1, -1))
            ends = [by_hand(v["w"], v["h0"], limit) for v in moved]
            difference = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(found[grads[name]][i], difference, rtol=1e-6, atol=1e-8)


# --- errors of the run ------------------------------------------------------------------------------------------------


def one_op(type: str, *inputs: str, feeds: dict[str, Any], **attrs: Any) -> bytes:
    s = Sketch()
    for name, value in feeds.items():
        s.feed(name, value, str(np.asarray(value).dtype))
    s.op(type, *inputs, out="out", **attrs)
    return write_model(core.read(s.document), outputs=["out"])


@pytest.mark.parametrize(
    ("type", "feeds", "bad"),
    [
        ("gather", {"x": np.ones(3), "index": np.array([2])}, {"index": np.array([3])}),
        ("assert", {"x": np.ones(2), "c": np.array(True)}, {"c": np.array(False)}),
        ("check_finite", {"x": np.ones(2)}, {"x": np.array([1.0, np.inf])}),
        ("mod", {"x": np.array([5]), "y": np.array([3])}, {"y": np.array([0])}),
        ("segment_sum", {"x": np.ones((2, 1)), "ids": np.array([0, 1])}, {"ids": np.array([0, -1])}),
    ],
)
def test_a_run_with_bad_data_ends_with_an_error(type, feeds, bad):
    attrs = {"num_segments": 2} if type == "segment_sum" else {}
    data = one_op(type, *feeds, feeds=feeds, **attrs)

    assert run(data, feeds)["out"] is not None
    with pytest.raises(Exception, match=r"(?i)index|indices|out of"):
        run(data, {**feeds, **bad})


@pytest.mark.parametrize("cast", [False, True])
def test_a_float64_convolution_is_refused_with_the_way_out_which_works(cast):
    x, w = np.arange(18.0).reshape(1, 2, 3, 3), np.arange(8.0).reshape(1, 2, 2, 2)
    s = Sketch()
    s.param("x", x)
    s.param("w", w)
    operands = ["x", "w"]
    if cast:
        operands = [s.op("cast", name, out=f"{name}32", dtype="float32") or f"{name}32" for name in operands]
    s.op("conv2d", *operands, out="y")
    program = core.read(s.document)

    if cast:
        wanted = [(x[0, :, i : i + 2, j : j + 2] * w[0]).sum() for i in range(2) for j in range(2)]
        np.testing.assert_allclose(run(write_model(program), {"x": x, "w": w})["y"].reshape(-1), wanted)
    else:
        with pytest.raises(
            ProgramError, match=r"conv2d.*float64 kernel.* Conv; .* cast the inputs of this op to float32"
        ):
            write_model(program)


@pytest.mark.parametrize("same", [False, True])
def test_a_choice_between_bools_is_written(same):
    c, x, y = (np.array(row, bool) for row in ([1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 0]))
    s = Sketch()
    for name in ("c", "x", "y"):
        s.blocks[0]["vars"].append({"name": name, "dtype": "bool", "shape": [4], "role": "feed"})
    s.op("where", "c", "c" if same else "x", "y", out="z")

    found = run(write_model(core.read(s.document)), {"c": c, "x": x, "y": y})["z"]

    assert found.tolist() == ([True, True, True, False] if same else [True, False, True, False])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth, is_written", [(30, True), (31, False), (40, False)])
def test_branches_that_a_file_cannot_hold_are_refused_with_their_place(depth, is_written):
    s = Sketch()
    s.param("w", [0.5, 0.7], dtype="float32")
    s.feed("c", True, dtype="bool")
    s.op("assign", "w", out="y")

    def nested(left: int) -> None:
        s.op("sin", "y", out="y")
        if left:
            with s.block() as yes:
                nested(left - 1)
            s.branch("c", yes, None)

    nested(depth)
    s.total("y")
    program = read(s.document)
    if is_written:
        assert write_model(program, values={"w": s.values["w"]}, outputs=["loss"])
        return
    with pytest.raises(ProgramError) as error:
        write_model(program, values={"w": s.values["w"]}, outputs=["loss"])
    assert error.value.code == "onnx_unsupported" and "inside 30 others" in error.value.message
