"""ONNX models in a few lines, and their values by other means, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import core
from core.onnx import ImportedModel, Loss, read_model

__all__ = ["imported", "model_of", "run"]


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Mapping[str, tuple[int, Sequence[Any] | None]] | Sequence[str],
    initialisers: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    **more: Any,
) -> ModelProto:
    """A model. inputs: name -> (element type, shape). outputs: the same, or names of floats of any shape."""
    given = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, (TensorProto.FLOAT, None))
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in given.items()],
        [numpy_helper.from_array(a, n) for n, a in (initialisers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **more)


def imported(model: ModelProto, loss: Loss | None = None) -> ImportedModel:
    return read_model(model.SerializeToString(), loss=loss)


def run(model: ImportedModel, feeds: Sequence[np.ndarray] | Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of the program, by the reference executor."""
    given = dict(feeds) if isinstance(feeds, Mapping) else dict(zip(model.inputs, feeds, strict=True))
    step = core.compile_forward(core.read(model.program), list(model.outputs), {n: a.shape for n, a in given.items()})
    fetched = step.step({**model.values, **given}).fetched
    return [np.asarray(fetched[name]) for name in model.outputs]
