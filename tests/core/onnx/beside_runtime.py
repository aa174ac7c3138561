"""A node as a program, beside onnxruntime: values, and gradients beside differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

import core
from tests.core.onnx.models import imported, run

__all__ = ["by_runtime", "check_gradient", "check_node", "one_node"]


def one_node(
    op: str,
    inputs: Mapping[str, np.ndarray | None],
    outputs: int | Sequence[str] = 1,
    opset: int = 22,
    constants: Sequence[str] = (),
    open_sizes: bool = False,
    domain: str = "",
    domain_opset: int = 3,
    **attributes: Any,
) -> Any:
    """A model of one node.

    inputs: None for an omitted one. outputs: their dtypes, or the number of float32 ones. constants: the inputs that
    are initialisers.
    """
    dtypes = ["float32"] * outputs if isinstance(outputs, int) else list(outputs)
    names = [name if value is not None else "" for name, value in inputs.items()]
    while names and not names[-1]:
        names.pop()  # onnxruntime fails on a trailing omitted input
    given = {n: np.asarray(a) for n, a in inputs.items() if a is not None}
    node = helper.make_node(op, names, [f"y{i}" for i in range(len(dtypes))], name="node", domain=domain, **attributes)
    fed = [
        helper.make_tensor_value_info(
            n,
            helper.np_dtype_to_tensor_dtype(a.dtype),
            [f"{n}.{i}" for i in range(a.ndim)] if open_sizes else a.shape,
        )
        for n, a in given.items()
        if n not in constants
    ]
    results = [
        helper.make_tensor_value_info(f"y{i}", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
        for i, dtype in enumerate(dtypes)
    ]
    held = [numpy_helper.from_array(given[n], n) for n in constants]
    graph = helper.make_graph([node], "graph", fed, results, held)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, domain_opset)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def by_runtime(model: Any, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, dict(feeds))]


def check_node(
    op: str,
    inputs: Mapping[str, np.ndarray | None],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    constants: Sequence[str] = (),
    gradient: bool = True,
    **how: Any,
) -> None:
    """Compare values with onnxruntime, and gradients of all float feeds with differences."""
    model = one_node(op, inputs, constants=constants, **how)
    feeds = {n: np.asarray(a) for n, a in inputs.items() if a is not None and n not in constants}
    found = imported(model)
    for result, expected in zip(run(found, feeds), by_runtime(model, feeds), strict=True):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(result, expected, rtol, atol)
    if gradient:
        check_gradient(found, feeds)


def check_gradient(found: Any, feeds: Mapping[str, np.ndarray]) -> None:
    """Compare the gradient of a random projection along a random direction with differences, in float64."""
    import json

    from tests.core.onnx.backend import _double, _in_float64

    program = core.read(json.loads(_in_float64(json.dumps(found.program))))
    values = {n: _double(a) for n, a in found.values.items()}
    given = {n: _double(a) for n, a in feeds.items()}
    wrt = [n for n, a in given.items() if a.dtype == np.float64]
    shapes = {n: a.shape for n, a in given.items()}
    forward = core.compile_forward(program, list(found.outputs), shapes)

    def outputs(at: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        fetched = forward.step({**values, **at}).fetched
        return {n: np.asarray(fetched[n]) for n in found.outputs}

    rng = np.random.default_rng(0)
    seeds = {n: rng.normal(size=a.shape) for n, a in outputs(given).items() if a.dtype == np.float64}
    query = core.GradientQuery(
        targets=tuple(seeds), inputs=tuple(wrt), target_gradients=(True,) * len(seeds), unconnected="zeros"
    )
    step = core.compile_gradient(program, query, shapes=shapes)
    fed = {f"target_gradients/{i}": seed for i, seed in enumerate(seeds.values())}
    gradients = step.step({**values, **given, **fed}).gradients
    moves = {n: rng.normal(size=given[n].shape) for n in wrt}
    sums = []
    for sign in (1, -1):
        at = outputs({**given, **{n: given[n] + sign * 1e-6 * moves[n] for n in wrt}})
        sums.append(sum(float((at[n] * seed).sum()) for n, seed in seeds.items()))
    expected = (sums[0] - sums[1]) / 2e-6
    product = sum(float((np.asarray(gradients[n]) * moves[n]).sum()) for n in wrt)
    np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-5)
