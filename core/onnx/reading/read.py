"""`read_model`: from the bytes of an ONNX model to a program with its first values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto

import core.ops  # noqa: F401  (fills the registry)
from core.ir import TensorType
from core.ir.errors import InvalidProgram, ProgramError
from core.ir.recursion import headroom
from core.onnx.reading.arrays import dtype_name
from core.onnx.reading.document import document
from core.onnx.reading.draft import Draft
from core.onnx.reading.graph import GraphReader
from core.onnx.reading.losses import Loss, append_loss
from core.onnx.reading.model import NEWEST, OLDEST, parse
from core.onnx.reading.subgraphs import subgraphs
from core.onnx.reading.training import bound, chosen, read_updates, trainable
from core.onnx.reading.values import Env, Label, List, Maybe, Poison, Tensor, Value
from core.wire.document import LONGEST_ALIAS, Limits

__all__ = ["ImportedModel", "read_model"]

_LONGEST = Limits().max_name


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A program made from an ONNX model.

    program: the JSON form of the program.
    values:  first values of its parameters and states.
    inputs:  names of the feeds, in the order of the graph's inputs. A feed of labels comes last.
    outputs: names of the program's variables for the graph's outputs, in order.
    loss:    name of the variable of the loss, or None.
    names:   program variable -> name in the model, for feeds, parameters, states and outputs whose names differ.
    """

    program: dict[str, Any]
    values: dict[str, np.ndarray]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    loss: str | None
    names: dict[str, str]


def read_model(
    data: bytes,
    *,
    files: Mapping[str, bytes] | None = None,
    loss: Loss | None = None,
    parameters: Collection[str] | None = None,
) -> ImportedModel:
    """The program of an ONNX model.

    data:       the protobuf.
    files:      external data, by the location that the tensors of the model name.
    loss:       a loss to name or to append.
    parameters: the initializers that training may change; an empty name is none. The default is the list that the model
                names in its metadata under `backpass.trainable`; without it, every initializer of floats with at least
                one axis, except running statistics.

    An initializer that the model's training information binds to a value is a state, and each step writes that value
    to it.
    Raises ProgramError with one problem for each refused node, input or initializer.
    """
    model = parse(data, files or {})
    with headroom():
        return _read(model, loss, parameters)


def _read(model: ModelProto, loss: Loss | None, parameters: Collection[str] | None) -> ImportedModel:
    opsets = {("" if each.domain == "ai.onnx" else each.domain): each.version for each in model.opset_import}
    if opsets.get("", OLDEST) < OLDEST:
        raise ProgramError(f"opset {opsets['']} is older than {OLDEST}, the oldest one supported", "malformed_model")
    if opsets.get("", OLDEST) > NEWEST:
        raise ProgramError(f"opset {opsets['']} is newer than {NEWEST}, the newest one supported", "malformed_model")
    draft = Draft()
    parameters = trainable(model) if parameters is None else chosen(model, parameters)
    states = _statistics(model.graph) | bound(model)
    reader = GraphReader(draft, opsets, model.functions, states, parameters)
    env: Env = {}
    graph = model.graph
    reader.initialisers(graph, env)
    for each in graph.input:
        if each.name not in env:
            env[each.name] = _feed(draft, reader, each)
    reader.nodes(graph.node, env)
    if model.training_info:
        read_updates(model, reader, env)
    if reader.problems:
        raise InvalidProgram(reader.problems)
    listed = [pair for each in graph.output for pair in _tensors(each.name, env.get(each.name), reader)]
    outputs = dict(listed)
    if reader.problems:
        raise InvalidProgram(reader.problems)
    found = None if loss is None else append_loss(draft, loss, outputs)
    labels = [_output_label(draft, name, value) for name, value in _numbered(listed)]
    loss_label = None if found is None else draft.use(found)
    for value, target in draft.at_end:
        draft.assign(value, draft.use(target))
    kept = labels if loss_label is None else [*labels, loss_label]
    program, values, names = document(draft, kept)
    feeds = [names.of(label) for label, _ in draft.feeds]
    wished = [*(label for label, _ in draft.feeds), *(label for label, _ in draft.initials), *labels]
    changed = {names.of(label): label.hint for label in wished if names.of(label) != label.hint}
    program |= _names(changed, dict(zip(feeds, draft.size_names, strict=True)))
    return ImportedModel(
        program,
        values,
        tuple(feeds),
        tuple(names.of(label) for label in labels),
        None if loss_label is None else names.of(loss_label),
        changed,
    )


def _names(changed: Mapping[str, str], sizes: Mapping[str, Sequence[str | None]]) -> dict[str, Any]:
    """The members of the program with names of the model. Names that a program cannot hold are left out."""
    aliases: dict[str, str] = {}
    for name, alias in changed.items():
        if 0 < len(alias) <= LONGEST_ALIAS and alias not in aliases.values():
            aliases[name] = alias
    named = {feed: [None if n is None or len(n) > _LONGEST else n for n in names] for feed, names in sizes.items()}
    named = {feed: names for feed, names in named.items() if any(names)}
    return {member: held for member, held in (("aliases", aliases), ("sizes", named)) if held}


def _feed(draft: Draft, reader: GraphReader, info: ValueInfoProto) -> Value:
    """The value of a graph input. One that no array can be is reported and gives Poison."""
    place = f"input {info.name!r}"
    type = info.type
    optional = type.HasField("optional_type")
    if optional:
        type = type.optional_type.elem_type
    try:
        if not type.HasField("tensor_type"):
            kind = (type.WhichOneof("value") or "unknown").removesuffix("_type").replace("_", " ")
            raise ProgramError(f"it is a {kind}: only arrays can be fed", "unsupported_type")
        tensor = type.tensor_type
        dtype = dtype_name(tensor.elem_type)
        if not tensor.HasField("shape"):
            raise ProgramError("its rank is not given", "unsupported_type")
        shape = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        if any(n < -1 for n in shape):
            raise ProgramError(f"its shape {shape} has a negative size", "malformed_model")
        names = [d.dim_param if d.HasField("dim_param") and d.dim_param else None for d in tensor.shape.dim]
    except ProgramError as error:
        reader.report(place, error)
        return Poison()
    fed = draft.feed(info.name, TensorType(tuple(shape), dtype), names)
    return Maybe(fed) if optional else fed


def _tensors(name: str, value: Value | None, reader: GraphReader) -> list[tuple[str, Tensor]]:
    """The graph output `name` as arrays: one, or one for each tensor of a sequence."""
    if isinstance(value, Maybe) and isinstance(value.held, Tensor | List):
        value = value.held
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, List):
        return [(f"{name}.{i}", each) for i, each in enumerate(value.items)]
    if not isinstance(value, Poison):
        reader.report(f"output {name!r}", ProgramError("only arrays can be outputs", "unsupported_type"))
    return []


def _numbered(outputs: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Outputs under different names: one that the graph lists again gets a number."""
    seen: Counter[str] = Counter()
    for name, value in outputs:
        yield (f"{name}.{seen[name]}" if name in seen else name), value
        seen[name] += 1


def _output_label(draft: Draft, name: str, value: Tensor) -> Label:
    """The variable of a graph output, under its own name where an op of the program gives it."""
    label = draft.use(value)
    if label.hint == name:
        return label
    own = Label(name, wanted=True)
    draft.assign(value, own)
    return own


def _statistics(graph: GraphProto) -> set[str]:
    """Initializers that are running statistics of batch normalization."""
    nodes = [*graph.node, *(node for inner in subgraphs(iter(graph.node)) for node in inner.node)]
    return {name for node in nodes if node.op_type == "BatchNormalization" for name in node.input[3:5]}
