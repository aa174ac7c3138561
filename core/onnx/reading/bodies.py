"""Bodies of loops: read with types that hold before and after every trip, and written as the body of a `scan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import GraphProto

from core.ir import TensorType
from core.onnx.reading.cells import Cell, joined, write_all
from core.onnx.reading.draft import DraftBlock, Operand, Written
from core.onnx.reading.node import Node
from core.onnx.reading.sequences import as_array
from core.onnx.reading.values import Array, Label, List, Tensor, Value
from core.onnx.reading.worlds import WORLDS, Sample

__all__ = ["Body", "entering", "names_of_results", "write_scan"]

TRIPS_READ = 12
"""Most readings of the body of a loop: each widens the type of a carried value."""


class Body:
    """A body of a loop, read with types of the carried values that hold before and after every trip.

    first, carried, recorded: its results: the first `skip`, one for each cell, and the others.
    """

    def __init__(
        self,
        node: Node,
        body: GraphProto,
        cells: list[Cell],
        leading: list[Operand],
        trailing: list[Operand],
        skip: int,
    ):
        for _ in range(TRIPS_READ):
            self.block = DraftBlock()
            with node.draft.inside(self.block):
                given = [*leading, *(cell.value for cell in cells), *trailing]
                found = node.subgraph(body, given)
                results = [entering(node, each) for each in found]
            self.first, results = results[:skip], results[skip:]
            self.carried, self.recorded = results[: len(cells)], results[len(cells) :]
            wider = False
            for cell, result in zip(cells, self.carried, strict=True):
                what = f"{cell.label.hint!r} changes its type in the loop"
                cell.value, changed = joined(node.draft, cell.value, result, what, cell.free)
                wider |= changed
            if not wider:
                return
        raise node.refuse("the types of its carried values change from trip to trip")


def write_scan(
    node: Node,
    read: Body,
    cells: Sequence[Cell],
    following: Sequence[Operand],
    initial: Sequence[Operand],
    elements: Sequence[Tensor],
    sequences: Sequence[Tensor],
    hints: Sequence[str],
    recorded_hints: Sequence[str],
    length: int,
    attrs: dict[str, Any],
) -> list[Value]:
    """Write a `scan`: the last states, then the recorded results along a new first axis."""
    draft = node.draft
    outputs = [Label(f"{name}.step") for name in recorded_hints]
    records = []
    with draft.inside(read.block):
        for each, label in zip(read.recorded, outputs, strict=True):
            if isinstance(each, Array):
                raise node.refuse("a sequence cannot be recorded by a loop")
            draft.assign(each, label)
            records.append(each)
        write_all(draft, following, cells)
    read.block.results = [*(cell.label for cell in cells), *outputs]
    finals: list[Operand] = []
    for cell, hint in zip(cells, hints, strict=True):
        label = Label(hint or f"{cell.label.hint}.last")
        value = cell.value
        finals.append(
            Array(value.type, label) if isinstance(value, Array) else Tensor(value.type, label, samples=value.samples)
        )
    stacked = [_stacked(each, name, length, sequences) for each, name in zip(records, recorded_hints, strict=True)]
    inputs = {"initial": [draft.use(each) for each in initial], "sequences": [draft.use(each) for each in sequences]}
    outs = {"final": [_label(each) for each in finals], "stacked": [_label(each) for each in stacked]}
    draft.block.ops.append(
        Written(
            "scan",
            {slot: labels for slot, labels in inputs.items() if labels},
            {slot: labels for slot, labels in outs.items() if labels},
            {
                "sub_block": read.block,
                "states": [cell.label for cell in cells],
                "elements": [_label(each) for each in elements],
                "outputs": outputs,
                **attrs,
            },
        )
    )
    return [*finals, *stacked]


def _label(each: Operand) -> Label:
    assert each.label is not None
    return each.label


def _stacked(element: Tensor, name: str, length: int, sequences: Sequence[Tensor]) -> Tensor:
    """The recorded results along a new first axis."""
    type = TensorType((length, *element.shape), element.dtype)
    if type.is_static:
        return Tensor(type, Label(name))
    samples: list[Sample | None] = []
    for w in range(WORLDS):
        own = element.samples[w] if element.samples else Sample(element.type)
        count = next((s.type.shape[0] for x in sequences if x.samples and (s := x.samples[w])), length)
        known = own is not None and count != -1 and -1 not in own.type.shape
        samples.append(Sample(TensorType((count, *own.type.shape), type.dtype)) if known and own else None)
    return Tensor(type, Label(name), samples=tuple(samples))


def entering(node: Node, value: Value) -> Operand:
    """`value` in a form that a loop carries: a sequence as a tensor array. Refuses optional values."""
    if isinstance(value, Tensor | Array):
        return value
    if isinstance(value, List):
        return as_array(node, value)
    raise node.refuse("an optional value cannot be carried by a loop")


def names_of_results(node: Node, body: GraphProto, first: int, carried: int) -> tuple[list[str], list[str]]:
    """Names for the carried values and for the recorded results: those of the node's outputs."""
    names = list(node.proto.output)
    found = [names[i] if i < len(names) and names[i] else each.name for i, each in enumerate(body.output[first:])]
    return found[:carried], found[carried:]
