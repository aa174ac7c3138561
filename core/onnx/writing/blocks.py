"""The ops of a block, one after the other, as nodes of one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from core.ir import HOLE, Block, Op, StackType, TensorType, Type
from core.ir.builder import expansion
from core.ir.errors import Problem
from core.ir.registry import lookup
from core.ir.stop import poll
from core.onnx.writing.arrays import Stack, empty
from core.onnx.writing.graph import Graph, Tensor, value_info
from core.onnx.writing.registry import REASONS, RULES, Refused
from core.onnx.writing.site import Site
from core.passes import eliminate_dead, expand_composites, fold_constants

__all__ = ["Val", "Writer", "reason_of"]

Val = Tensor | Stack


DEEPEST = 30
"""Most graphs around a graph: protobuf reads 100 messages in each other, of which each graph is three."""


@dataclass(slots=True)
class Writer:
    """State that all graphs of a model share.

    uniform:  (id of a block, variable) of stacks whose arrays have one shape; see `core.onnx.writing.sizes`.
    problems: the refusals so far.
    """

    uniform: Mapping[tuple[int, str], bool] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def block(self, graph: Graph, block: Block, operands: Sequence[Val]) -> list[Val]:
        """Write the ops of `block` into `graph` and return its results."""
        env: dict[str, Val] = dict(zip(block.params, operands, strict=True))
        for op in block.ops:
            poll()
            types = tuple(block.types[n] for n in op.outputs)
            site = OpSite(graph, op, types, self, block)
            inputs = [None if n == HOLE else env[n] for n in op.inputs]
            start = len(graph.nodes)
            try:
                found = _write(site, op, inputs)
            except Refused as refusal:
                self.refuse(op, str(refusal))
                found = tuple(site.stand_in(t) for t in types)
            for name, value, type in zip(op.outputs, found, types, strict=True):
                env[name] = _named(graph, start, value, name, type)
        return [env[n] for n in block.results]

    def refuse(self, op: Op, reason: str) -> None:
        """Record that `op` cannot be written."""
        pointer = op.location.pointer if op.location else ""
        message = f"{op.type} cannot be written as ONNX: {reason}"
        found = Problem("onnx_unsupported", message, pointer, op.location)
        if found not in self.problems:
            self.problems.append(found)


class OpSite(Site):
    """A `Site` that also knows the block of its op, for loops and branches."""

    def __init__(self, graph: Graph, op: Op, types: tuple[Any, ...], writer: Writer, block: Block) -> None:
        super().__init__(graph, op, types)
        self.writer = writer
        self.block = block

    def inner(self) -> OpSite:
        """The same op in a new inner graph. Raises Refused."""
        graph = Graph(self.model, self.graph)
        if graph.depth > DEEPEST:
            raise Refused(f"its graph would be inside {DEEPEST} others, which is deeper than a file can be")
        return OpSite(graph, self.op, self.types, self.writer, self.block)

    def uniform(self, output: int = 0) -> bool:
        """Whether the arrays of the stack that is this output all have one shape."""
        return self.writer.uniform.get((id(self.block), self.op.outputs[output]), False)

    def uniform_in(self, block: Block, name: str) -> bool:
        """The same for a variable of an inner block."""
        type = block.types[name]
        array = type.array if isinstance(type, StackType) else type
        return array.is_static or self.writer.uniform.get((id(block), name), False)

    def expanded(self, *inputs: Val | None) -> tuple[Val, ...]:
        """The outputs of a composite, written as its parts."""
        types = tuple(None if n == HOLE else self.block.types[n] for n in self.op.inputs)
        inner = expand_composites(expansion(lookup(self.op.type), types, self.op.attrs))
        inner = eliminate_dead(fold_constants(inner))
        inner = replace(inner, ops=tuple(replace(op, location=self.op.location) for op in inner.ops))
        absent = Tensor("", "bool", ())  # an empty optional slot; no op reads it
        return tuple(self.writer.block(self.graph, inner, [absent if x is None else x for x in inputs]))

    def stand_in(self, type: Type) -> Val:
        """A value of `type`, so that the rest of a refused program can be read."""
        if isinstance(type, StackType):
            return empty(self, type.array, type.depth, True)
        return Tensor(self.model.fresh("refused"), type.dtype, type.shape)


def reason_of(op: str) -> str:
    """The reason why `op` has no rule."""
    return REASONS.get(op, "no ONNX operators compute it")


def types_empty(types: Sequence[Type]) -> bool:
    """Whether every type is that of an array without elements, so that there is nothing to compute."""
    return bool(types) and all(isinstance(t, TensorType) and 0 in t.shape and t.is_static for t in types)


def _write(site: OpSite, op: Op, inputs: list[Val | None]) -> tuple[Val, ...]:
    if types_empty(site.types):
        return tuple(site.const(np.zeros(t.shape), t.dtype) for t in site.types if isinstance(t, TensorType))
    rule = RULES.get(op.type)
    if rule is None:
        raise Refused(reason_of(op.type))
    if any(isinstance(x, Stack) for x in inputs) and not (lookup(op.type).stacks or lookup(op.type).kind == "control"):
        raise Refused("an input is a tensor array")
    found = rule(site, *inputs, **op.attrs)
    return found if isinstance(found, tuple) else (found,)


def _named(graph: Graph, start: int, value: Val, name: str, type: Type) -> Val:
    """`value` under the name of the variable, if a node of this op computes it, with the type of the variable."""
    if isinstance(value, Stack):
        return value
    assert isinstance(type, TensorType), f"{name} is a {type}"
    assert value.dtype == type.dtype, f"{name} is {type}, but the nodes give {value.dtype}"
    made = any(value.name in node.output for node in graph.nodes[start:])
    if made and graph.model.claim(name):
        graph.rename(start, value.name, name)
        value = replace(value, name=name)
        graph.infos.append(value_info(name, type))
    return replace(value, shape=type.shape)
