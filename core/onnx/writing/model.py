"""A program as the bytes of an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from core.ir import Program, TensorType
from core.ir.errors import InternalError, InvalidProgram, Problem, ProgramError, pointing_to
from core.ir.names import root_array
from core.ir.recursion import headroom
from core.onnx.writing import rules  # noqa: F401  (declares every rule)
from core.onnx.writing.blocks import Val, Writer
from core.onnx.writing.graph import Graph, Model, Tensor, fill, value_info
from core.onnx.writing.prepare import prepared
from core.onnx.writing.sizes import open_sizes

__all__ = ["NEWEST", "OLDEST", "default_outputs", "write_model"]

OLDEST, NEWEST = 21, 28
"""The operator sets that can be written: all rules use operators of the oldest, and onnxruntime runs the newest."""

MOST_BYTES = 2**31 - 1
"""The largest protobuf message."""


def write_model(
    program: Program,
    *,
    values: Mapping[str, np.ndarray] | None = None,
    outputs: Mapping[str, str] | Sequence[str] | None = None,
    opset: int = NEWEST,
) -> bytes:
    """An ONNX model that computes variables of `program`.

    values:  variable of the program -> array. These become initialisers; every other variable that the outputs depend
             on becomes an input of the model. Inputs, initialisers and outputs have the aliases of their variables.
    outputs: names of variables of block 0, or output name -> variable; by default the variables that no op reads.
    opset:   the version of ONNX's default operator set.

    Raises ProgramError: onnx_unsupported with all ops that ONNX cannot express, each with its place; unknown_variable;
    bad_query for an opset that is not supported.
    """
    if not OLDEST <= opset <= NEWEST:
        raise ProgramError(f"the opset must be from {OLDEST} to {NEWEST}, not {opset}", "bad_query")
    names = default_outputs(program) if outputs is None else outputs
    wanted = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    if not wanted:
        raise ProgramError("the program has no variable to return", "bad_query")
    with headroom():
        own = [name for name, variable in wanted.items() if name == variable]
        found = {}
        for i, (name, variable) in enumerate(wanted.items()):
            with pointing_to(f"/outputs/{i}"):
                found[name] = root_array(program, variable)
        return _written(program, found, own, values or {}, opset)


def default_outputs(program: Program) -> list[str]:
    """The client's names of the variables of block 0 that no op reads and that are arrays."""
    read = {name for op in program.block.ops for name in op.inputs}
    states = {program.latest[v.name] for v in program.states if v.name in program.latest}
    found = []
    for op in program.block.ops:
        for name in op.outputs:
            client = name.split("@VER@")[0]
            if "@" in client or name in read or name in states:
                continue
            if isinstance(program.block.types[name], TensorType):
                found.append(client)
    return list(dict.fromkeys(found))


def _written(
    program: Program, wanted: Mapping[str, str], own: Sequence[str], values: Mapping[str, np.ndarray], opset: int
) -> bytes:
    """own: the outputs that have the names of their variables."""
    variables = tuple(dict.fromkeys(wanted.values()))
    block = prepared(program, variables)
    sizes, uniform = open_sizes(block, program.sizes)
    said = _aliases(program, [*block.params, *own], wanted)
    model = Model(opset)
    graph = Graph(model)
    writer = Writer(uniform)
    read = {n for op in block.ops for n in op.inputs} | set(block.results)
    operands: list[Val] = []
    inputs = []
    for name, type in zip(block.params, block.param_types, strict=True):
        assert isinstance(type, TensorType)
        if name not in read:
            operands.append(Tensor(name, type.dtype, type.shape))
            continue
        model.claim(said.get(name, name))
        if name in values:
            operands.append(model.weight(_fitting(name, values[name], type), type.dtype, said.get(name, name)))
        else:
            inputs.append(value_info(said.get(name, name), type, sizes.get(name)))
            operands.append(Tensor(said.get(name, name), type.dtype, type.shape))
    taken = {said.get(name, name) for name in block.params if name in read}
    wanted = {said.get(name, name): variable for name, variable in wanted.items()}
    for name in wanted:  # reserved, so that no other value has the name of an output
        model.claim(name)
    found = dict(zip(variables, writer.block(graph, block, operands), strict=True))
    if writer.problems:
        raise InvalidProgram(writer.problems) if len(writer.problems) > 1 else _single(writer.problems[0])
    results = []
    for name, variable in wanted.items():
        value = found[variable]
        assert isinstance(value, Tensor)
        if value.name != name and name in taken:
            raise ProgramError(f"an output cannot have the name {name!r} of an input", "bad_query")
        graph.add("Identity", [value.name], [name], {}) if value.name != name else None
        results.append(value_info(name, value.type, sizes.get(variable)))
    return _serialized(graph, inputs, results, opset)


def _aliases(program: Program, variables: Sequence[str], outputs: Iterable[str]) -> dict[str, str]:
    """Variable -> its alias, for inputs and outputs that have one.

    An alias that is the name of another input or output is not used.
    """
    said = {name: program.aliases[name] for name in variables if name in program.aliases}
    while True:
        plain = {*variables, *outputs} - said.keys()
        clashing = [name for name, alias in said.items() if alias in plain]
        if not clashing:
            return said
        for name in clashing:
            del said[name]


def _fitting(name: str, value: np.ndarray, type: TensorType) -> np.ndarray:
    if value.ndim != type.rank or any(m not in (-1, n) for m, n in zip(type.shape, value.shape, strict=True)):
        raise ProgramError(f"{name!r} is {type}, but its value has the shape {list(value.shape)}", "feed_shape")
    return value


def _single(problem: Problem) -> ProgramError:
    return ProgramError(problem.message, problem.code, location=problem.location, pointer=problem.pointer)


def _serialized(graph: Graph, inputs: list[onnx.ValueInfoProto], results: list[Any], opset: int) -> bytes:
    """The bytes of the model. It is checked first, with the weights as inputs, because the check copies constants."""
    weights = graph.model.weights
    declared = [value_info(name, TensorType(array.shape, dtype)) for name, dtype, array in weights]
    proto = graph.proto("program", [*inputs, *declared], results)
    _without_copies(proto)
    read = _read(proto)
    proto.initializer.extend(each for each in graph.model.initializers if each.name in read)
    opsets = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(opsets)
    model = helper.make_model(proto, opset_imports=opsets, producer_name="backpass", ir_version=version)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InternalError(f"the written ONNX model is not valid: {error}") from error
    del model.graph.input[len(inputs) :]
    size = model.ByteSize() + sum(array.nbytes + 1024 for _, _, array in weights)
    if size > MOST_BYTES:
        raise ProgramError(f"the model has {size} bytes, more than {MOST_BYTES}", "limit_exceeded")
    for name, dtype, array in weights:
        fill(model.graph.initializer.add(), array, dtype, name)
    data: bytes = model.SerializeToString()
    return data


def _without_copies(graph: onnx.GraphProto) -> None:
    """Let nodes compute the outputs of the graph under their names, instead of an Identity that copies them."""
    results = {each.name for each in graph.output}
    kept = {each.name for each in graph.input} | results
    produced = {name for node in graph.node for name in node.output}
    names: dict[str, str] = {}
    copies = []
    for node in graph.node:
        if node.op_type != "Identity" or node.output[0] not in results:
            continue
        source = node.input[0]
        if source in produced and source not in kept:
            names[source] = node.output[0]
            kept |= {source}
            copies.append(node)
    for node in copies:
        graph.node.remove(node)
    declared = [each for each in graph.value_info if names.get(each.name, each.name) not in results]
    del graph.value_info[:]
    graph.value_info.extend(declared)
    if names:
        _rename(graph, names)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for values in (node.input, node.output):
            for i, each in enumerate(values):
                if each in names:
                    values[i] = names[each]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)


def _read(graph: onnx.GraphProto) -> set[str]:
    found = {name for node in graph.node for name in node.input} | {o.name for o in graph.output}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _read(attribute.g)
    return found
