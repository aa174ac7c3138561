"""The node and model tests of the `onnx` package, run as programs.

`outcome` imports one test's model, runs it with the reference executor and compares the results with the expected ones.
`gradient_outcome` compares gradients with central differences of the same program in float64.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from onnx.reference.ops import op_pool_common

import core
from core.ir.errors import CoreError
from core.onnx import ImportedModel, read_model
from core.onnx.reading.arrays import dtype_name

__all__ = ["Case", "Outcome", "cases", "gradient_outcome", "outcome"]


RANDOM = ("test_bernoulli", "test_training_dropout")
"""Tests whose expected elements come from another generator: shape and dtype are compared."""

TRANSFORMS = ("DFT", "STFT")
"""Operators whose rounding errors are relative to the largest element of the result."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: a model, its inputs and expected outputs. op: the operator that it tests."""

    name: str
    op: str
    model: ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """status: "untyped" if the model has inputs or outputs that no array of a program can be.

    fixed: the inputs that were made constants of the model, because a node needs their values at import.
    """

    status: Literal["pass", "refused", "wrong", "untyped"]
    reason: str = ""
    fixed: tuple[str, ...] = ()
    imported: ImportedModel | None = None
    feeds: dict[str, np.ndarray] | None = None


@cache
def cases() -> tuple[Case, ...]:
    """All tests that the installed `onnx` package ships with their data."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(op_pool_common, "pool", partial(_pooled, op_pool_common.pool))
        nodes = collect_testcases(None)
    found = []
    for each in nodes:
        inputs, outputs = ([_array(v) for v in values] for values in each.data_sets[0])
        op = _operator(each.model, each.name)
        found.append(Case(each.name, op, each.model, inputs, outputs, each.rtol, each.atol))
    return (*found, *_stored())


def _pooled(pool: Any, *given: Any, **more: Any) -> Any:
    """What `pool` of `onnx` computes. It takes two seconds for some tests, because it visits the windows in Python."""
    padded, _, kernel, strides, _, kind, *pads = given
    if pads or more.keys() - {"p"}:
        return pool(*given, **more)
    axes = tuple(range(2, padded.ndim))
    every = (..., *(slice(None, None, step) for step in strides or [1] * len(kernel)), *(slice(None) for _ in kernel))
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), axes)[every]
    inside = tuple(range(-len(kernel), 0))
    if kind == "MAX":
        return windows.max(inside)
    if kind == "AVG":
        return windows.mean(inside)
    p = more.get("p", 1)
    return (np.abs(windows) ** p).sum(inside) ** (1.0 / p)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _operator(model: ModelProto, name: str) -> str:
    """The operator of the test: that of its only node, or of an expanded function the one in its name."""
    nodes = model.graph.node
    if len(nodes) == 1:
        domain = nodes[0].domain
        return f"{domain}.{nodes[0].op_type}" if domain not in ("", "ai.onnx") else nodes[0].op_type
    return "(expanded functions)" if "_expanded" in name else "(models)"


def _stored() -> Iterator[Case]:
    """The tests in the package's data folders. The data of `real` and `light` is not in the package."""
    root = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data")
    for kind in ("pytorch-operator", "pytorch-converted", "simple"):
        for name in sorted(os.listdir(os.path.join(root, kind))):
            folder = os.path.join(root, kind, name)
            model = onnx.load(os.path.join(folder, "model.onnx"))
            data = os.path.join(folder, "test_data_set_0")
            inputs = [_read(data, f"input_{i}.pb", v.type) for i, v in enumerate(model.graph.input[: _count(data)])]
            outputs = [_read(data, f"output_{i}.pb", v.type) for i, v in enumerate(model.graph.output)]
            yield Case(f"{kind}/{name}", "(models)", model, inputs, outputs, 1e-3, 1e-7)


def _count(folder: str) -> int:
    return sum(name.startswith("input_") for name in os.listdir(folder))


def _read(folder: str, name: str, type: onnx.TypeProto) -> Any:
    with open(os.path.join(folder, name), "rb") as file:
        data = file.read()
    if type.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(data)
        return numpy_helper.to_list(sequence)
    if type.HasField("optional_type"):
        optional = onnx.OptionalProto()
        optional.ParseFromString(data)
        return numpy_helper.to_optional(optional)
    tensor = onnx.TensorProto()
    tensor.ParseFromString(data)
    return numpy_helper.to_array(tensor)


def outcome(case: Case) -> Outcome:
    """The result of one test."""
    graph = case.model.graph
    initialised = {each.name for each in graph.initializer}
    infos = [each for each in graph.input if each.name not in initialised or len(graph.input) == len(case.inputs)]
    infos = infos[: len(case.inputs)]
    for info in [*infos, *graph.output]:
        if reason := _unsayable(info.type):
            return Outcome("untyped", f"{info.name}: {reason}")
    if any(isinstance(value, list) for value in case.inputs):
        return Outcome("untyped", "a feed is an array, not a sequence")
    given = {i.name: v for i, v in zip(infos, case.inputs, strict=True) if v is not None}
    fixed: set[str] = set()
    while True:
        try:
            model = read_model(_with_constants(case.model, {n: given[n] for n in fixed}).SerializeToString())
        except CoreError as error:
            text = "; ".join(each.message for each in error.problems)
            wanted = {n for n in given if f"{n!r}) must be a constant" in text} - fixed
            # a function body names its own values: give it all integers
            wanted = (
                wanted or {n for n, v in given.items() if "must be a constant" in text and v.dtype.kind == "i"} - fixed
            )
            if not wanted:
                return Outcome("refused", text)
            fixed |= wanted
            continue
        break
    names = dict(model.names)
    feeds = {n: np.asarray(given[names.get(n, n)]) for n in model.inputs if names.get(n, n) in given}
    constants = tuple(sorted(fixed))
    if len(feeds) < len(model.inputs):
        return Outcome("refused", "an optional input is empty", constants)
    try:
        results = _run(model.program, model, feeds)
    except CoreError as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}", constants)
    expected = [each for out in case.outputs for each in (out if isinstance(out, list) else [out])]
    if len(results) != len(expected):
        return Outcome("wrong", f"{len(results)} results, not {len(expected)}", constants)
    for name, result, wanted in zip(model.outputs, results, expected, strict=True):
        if mistake := _mistake(result, np.asarray(wanted), case):
            return Outcome("wrong", f"{name}: {mistake}", constants)
    return Outcome("pass", "", constants, model, feeds)


def _unsayable(type: onnx.TypeProto) -> str:
    kind = type.WhichOneof("value")
    if kind == "optional_type":
        return _unsayable(type.optional_type.elem_type)
    if kind == "sequence_type":
        return _unsayable(type.sequence_type.elem_type)
    if kind != "tensor_type":
        return str(kind)
    try:
        dtype_name(type.tensor_type.elem_type)
    except CoreError as error:
        return error.message
    return ""


def _with_constants(model: ModelProto, values: dict[str, Any]) -> ModelProto:
    """`model` with these inputs as initialisers."""
    if not values:
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    kept = [each for each in copy.graph.input if each.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in values.items())
    return copy


def _run(program: dict[str, Any], model: ImportedModel, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    shapes = {n: a.shape for n, a in feeds.items()}
    step = core.compile_forward(core.read(program), list(model.outputs), shapes)
    fetched = step.step({**model.values, **feeds}).fetched
    return [np.asarray(fetched[name]) for name in model.outputs]


def _mistake(result: np.ndarray, wanted: np.ndarray, case: Case) -> str:
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return f"{result.dtype}{list(result.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    kind = result.dtype.kind
    if kind not in "fV":
        return "" if np.array_equal(result, wanted) or _is_random(case) else "elements differ"
    a, b = result.astype("float64"), wanted.astype("float64")
    rounding = {"float16": 2**-9, "bfloat16": 2**-6}.get(result.dtype.name, 0.0)  # two units in the last place
    atol = max(case.atol, 2**-24 * np.abs(b).max(initial=0.0)) if case.op in TRANSFORMS else case.atol
    if _is_random(case) or np.allclose(a, b, max(case.rtol, rounding), atol, equal_nan=True):
        return ""
    return f"elements differ by up to {np.nanmax(np.abs(a - b)):.3g}"


def _is_random(case: Case) -> bool:
    return case.name.startswith(RANDOM) and "zero_ratio" not in case.name


# --- gradients -----------------------------------------------------------------------------------------------------


def gradient_outcome(case: Case, found: Outcome) -> tuple[Literal["right", "wrong", "refused", "none"], str]:
    """Compare the gradients of a random projection of all float outputs, for all float inputs, with differences."""
    model, feeds = found.imported, found.feeds
    assert model is not None and feeds is not None
    program = json.loads(_in_float64(json.dumps(model.program)))
    rng = np.random.default_rng(len(case.name))
    values = {n: _double(a) for n, a in model.values.items()}
    given = {n: _double(a) for n, a in feeds.items()}
    wrt = [n for n, a in given.items() if a.dtype == np.float64 and a.size]
    for n in wrt:  # off the kinks at integers
        given[n] = given[n] + rng.uniform(1e-3, 2e-3, given[n].shape) * rng.choice([-1, 1], given[n].shape)
    try:
        read = core.read(program)
    except CoreError as error:
        return "none", f"cannot be said in float64: {error}"
    shapes = {n: a.shape for n, a in given.items()}
    evaluate = core.compile_forward(read, list(model.outputs), shapes)

    def results(at: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        fetched = evaluate.step({**values, **at}).fetched
        return {n: np.asarray(fetched[n]) for n in model.outputs}

    try:
        out = results(given)
    except CoreError as error:
        return "none", f"not evaluated off the given point: {error}"
    targets = [n for n in dict.fromkeys(model.outputs) if out[n].dtype == np.float64 and out[n].size]
    if not wrt or not targets or not all(np.isfinite(out[n]).all() for n in targets):
        return "none", ""
    seeds = {n: rng.normal(size=out[n].shape) for n in targets}
    try:
        query = core.GradientQuery(
            targets=tuple(targets), inputs=tuple(wrt), target_gradients=(True,) * len(targets), unconnected="zeros"
        )
        step = core.compile_gradient(read, query, shapes=shapes)
        fed = {f"target_gradients/{i}": seeds[n] for i, n in enumerate(targets)}
        gradients = step.step({**values, **given, **fed}).gradients
    except CoreError as error:
        return "refused", f"{error}"
    for n in wrt:
        for _ in range(2):
            direction = rng.normal(size=given[n].shape)
            slope = [
                sum(
                    float((results({**given, n: given[n] + s * 1e-6 * direction})[t] * seeds[t]).sum()) for t in targets
                )
                for s in (1, -1)
            ]
            difference = (slope[0] - slope[1]) / 2e-6
            product = float((np.asarray(gradients[n]) * direction).sum())
            scale = max(abs(difference), abs(product), max(map(abs, slope)) * 1e-4, 1e-3)
            if not abs(difference - product) <= 2e-4 * scale:
                return "wrong", f"{n}: {product:.6g}, differences give {difference:.6g}"
    return "right", ""


def _in_float64(text: str) -> str:
    for narrow in ("bfloat16", "float16", "float32"):
        text = text.replace(f'"{narrow}"', '"float64"')
    return text


def _double(array: np.ndarray) -> np.ndarray:
    return array.astype("float64") if array.dtype.kind in "fV" else array
