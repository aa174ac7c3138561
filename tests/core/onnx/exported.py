"""Programs written as ONNX models and run by onnxruntime, for comparison with the reference executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from core.ir import Block, Program, Variable
from core.onnx import write_model
from core.onnx.reading.subgraphs import subgraphs
from core.passes import optimize
from core.runtime.reference import execute

__all__ = ["compare", "names_of", "of_block", "run", "same"]

onnxruntime.set_default_logger_severity(4)


def run(data: bytes, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of a model. Feeds that the model does not take are left out."""
    assert _omitted_at_the_end(onnx.load_from_string(data)) == []  # onnxruntime may end the process at such a node
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(_without_bfloat16(data), options, providers=["CPUExecutionProvider"])
    given = {each.name: _fed(np.asarray(feeds[each.name.removesuffix(".float32")])) for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def _omitted_at_the_end(model: onnx.ModelProto) -> list[str]:
    """The names of nodes whose last input is an empty name."""
    graphs = [model.graph, *subgraphs(iter(model.graph.node))]
    return [node.name for graph in graphs for node in graph.node if node.input and not node.input[-1]]


def _fed(array: np.ndarray) -> np.ndarray:
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def _without_bfloat16(data: bytes) -> bytes:
    """The model with casts where bfloat16 enters or leaves it: onnxruntime's Python functions take none."""
    model = onnx.load_from_string(data)
    if not _has_bfloat16(model):
        return data
    graph = model.graph
    before = []
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            name, value.name = value.name, f"{value.name}.float32"
            before.append(helper.make_node("Cast", [value.name], [name], to=TensorProto.BFLOAT16))
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            name, value.name = value.name, f"{value.name}.float32"
            graph.node.append(helper.make_node("Cast", [name], [value.name], to=TensorProto.FLOAT))
    nodes = [*before, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model.SerializeToString()


def _has_bfloat16(model: onnx.ModelProto) -> bool:
    values = (*model.graph.input, *model.graph.output)
    return any(v.type.tensor_type.elem_type == TensorProto.BFLOAT16 for v in values)


def of_block(block: Block) -> Program:
    """The program that consists of `block`, whose parameters are feeds."""
    return Program(block, tuple(Variable(p, block.types[p], "feed") for p in block.params))  # type: ignore[arg-type]


def compare(
    program: Program, outputs: Mapping[str, str], values: Mapping[str, Any], tolerance: float, **more: Any
) -> bytes:
    """Check that onnxruntime computes what the reference executor computes. Returns the model.

    outputs: output name -> variable.
    """
    data = write_model(program, outputs=outputs, **more)
    block = optimize(replace(program.block, results=tuple(outputs.values())))
    wanted = execute(block, [np.asarray(values[p]) for p in block.params])
    same(run(data, values), dict(zip(outputs, wanted, strict=True)), tolerance)
    return data


def same(found: Mapping[str, np.ndarray], wanted: Mapping[str, Any], tolerance: float) -> None:
    """Check that two results are equal up to `tolerance`, relative to the largest element of each array."""
    for name, array in wanted.items():
        array, other = np.asarray(array), found.get(name, found.get(f"{name}.float32"))
        assert other is not None, name
        assert other.dtype == array.dtype or array.dtype.name == "bfloat16", f"{name}: {other.dtype}, {array.dtype}"
        assert other.shape == array.shape, f"{name}: {other.shape}, not {array.shape}"
        if array.dtype.kind not in "fV":
            np.testing.assert_array_equal(other, array, err_msg=name)
            continue
        wide = array.astype("float64")
        largest = np.abs(wide[np.isfinite(wide)]).max(initial=1.0)
        np.testing.assert_allclose(
            other.astype("float64"), wide, rtol=tolerance, atol=tolerance * largest, err_msg=name
        )


def names_of(results: Sequence[str]) -> dict[str, str]:
    """Output names ``out0``, ``out1``, ... for `results`."""
    return {f"out{i}": name for i, name in enumerate(results)}
