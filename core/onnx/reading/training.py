"""The parts of a model that are about training: which initializers it trains, and which a step gives new values."""

from __future__ import annotations

import json
from collections.abc import Collection

from onnx import ModelProto

from core.ir.errors import ProgramError
from core.ir.suggest import near
from core.onnx.reading.graph import GraphReader
from core.onnx.reading.subgraphs import subgraphs
from core.onnx.reading.values import Env, Poison, Tensor

__all__ = ["TRAINABLE", "bound", "chosen", "read_updates", "trainable"]

TRAINABLE = "backpass.trainable"
"""Key in the metadata of a model: the names of the initializers to train, as JSON."""


def trainable(model: ModelProto) -> frozenset[str] | None:
    """The initializers that the metadata of the model names. None if it names none. Raises ProgramError."""
    found = next((each.value for each in model.metadata_props if each.key == TRAINABLE), None)
    if found is None:
        return None
    try:
        names = json.loads(found)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProgramError(f"the metadata {TRAINABLE!r} must be a JSON list of names", "malformed_model")
    return frozenset(names)


def chosen(model: ModelProto, names: Collection[str]) -> frozenset[str]:
    """The initializers that a client names; an empty name is none. Raises ProgramError if there is no such one."""
    graphs = [model.graph, *subgraphs(iter(model.graph.node))]
    known = {tensor.name for graph in graphs for tensor in graph.initializer}
    wanted = frozenset(name for name in names if name)
    for name in sorted(wanted - known):
        message = f"there is no initializer {name!r} to train"
        raise ProgramError(message, "unknown_initializer", suggestion=near(name, known))
    return wanted


def bound(model: ModelProto) -> set[str]:
    """The initializers that the training information binds to a value."""
    return {each.key for info in model.training_info for each in info.update_binding}


def read_updates(model: ModelProto, reader: GraphReader, env: Env) -> None:
    """Read the training information: at the end of a step, its values are written to the initializers.

    They replace updates that single nodes ask for. Problems are added to those of the reader.
    """
    for info in model.training_info:
        if info.HasField("initialization") or info.initialization_binding:
            reader.report("training information", _refused("initialization by a graph is not supported"))
        reader.initialisers(info.algorithm, env)
        reader.nodes(info.algorithm.node, env)
        for each in info.update_binding:
            _bind(reader, env, each.key, each.value)


def _bind(reader: GraphReader, env: Env, name: str, source: str) -> None:
    place = f"training information of {name!r}"
    old, new = env.get(name), env.get(source)
    if isinstance(new, Poison) or isinstance(old, Poison):
        return  # reported already
    if not isinstance(old, Tensor) or old.initial is None:
        reader.report(place, _refused(f"there is no initializer {name!r}"))
    elif not isinstance(new, Tensor):
        reader.report(place, _refused(f"there is no array {source!r}"))
    elif new.dtype != old.dtype or not _fits(new.shape, old.shape):
        reader.report(place, _refused(f"a value of {new.type} cannot be written to {old.type}"))
    else:
        at_end = reader.draft.at_end
        at_end[:] = [(value, target) for value, target in at_end if target is not old]
        at_end.append((new, old))


def _fits(new: tuple[int, ...], old: tuple[int, ...]) -> bool:
    return len(new) == len(old) and all(n in (-1, m) for n, m in zip(new, old, strict=True))


def _refused(text: str) -> ProgramError:
    return ProgramError(text, "malformed_model")
