"""Scan becomes `scan`, whose body reads the values around it."""

from __future__ import annotations

from onnx import GraphProto, ValueInfoProto, helper

from core.ir import TensorType
from core.onnx.reading.bodies import Body, names_of_results, write_scan
from core.onnx.reading.cells import Cell
from core.onnx.reading.draft import Operand
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Label, Tensor, Value
from core.onnx.reading.worlds import Sample


@converter("Scan", since=9)
def scan(node: Node) -> tuple[Value, ...]:
    body = node.graph("body")
    count = int(node.attr("num_scan_inputs"))
    inputs = node.tensors()
    states = len(inputs) - count
    if not 0 < count <= len(inputs) or len(body.input) != len(inputs) or len(body.output) < states:
        raise node.refuse(f"{len(inputs)} inputs, of which {count} are scanned, do not fit the body")
    recorded = len(body.output) - states
    axes = _listed(node, "scan_input_axes", count)
    backward = _listed(node, "scan_input_directions", count)
    out_axes = _listed(node, "scan_output_axes", recorded)
    out_backward = _listed(node, "scan_output_directions", recorded)
    sequences = []
    for x, axis, flips in zip(inputs[states:], axes, backward, strict=True):
        axis = _checked_axis(node, axis, x.rank)
        x = node.emit("flip", x, axes=[axis]) if flips else x
        sequences.append(_moved(node, x, axis, 0))
    initial: list[Operand] = list(inputs[:states])
    hints, recorded_hints = names_of_results(node, body, 0, states)
    results = _scanned(node, body, initial, sequences, hints, recorded_hints)
    for i, (axis, flips) in enumerate(zip(out_axes, out_backward, strict=True)):
        stacked = results[states + i]
        assert isinstance(stacked, Tensor)
        stacked = node.emit("flip", stacked, axes=[0]) if flips else stacked
        results[states + i] = _moved(node, stacked, 0, _checked_axis(node, axis, stacked.rank))
    return tuple(results)


def _scanned(
    node: Node,
    body: GraphProto,
    initial: list[Operand],
    sequences: list[Tensor],
    hints: list[str],
    recorded_hints: list[str],
) -> list[Value]:
    cells = [Cell.like(each, f"{name}.in") for each, name in zip(initial, hints, strict=True)]
    elements = [_element(x, each.name) for x, each in zip(sequences, body.input[len(initial) :], strict=True)]
    read = Body(node, body, cells, [], list(elements), 0)
    length = next((x.shape[0] for x in sequences if x.shape[0] != -1), -1)
    return write_scan(node, read, cells, read.carried, initial, elements, sequences, hints, recorded_hints, length, {})


@converter("Scan", since=8)
def scan_batches(node: Node) -> tuple[Value, ...]:
    """Opset 8: the first axis of every input is a batch, and each sample is scanned by itself: a scan inside a scan."""
    if node.has("scan_input_axes"):  # the scan inside, see below: opset 8 has no such attribute
        return scan(node)
    if node.given(0):
        raise node.refuse("lengths of the sequences are not supported: convert the model to opset 9 or above")
    body = node.graph("body")
    count = int(node.attr("num_scan_inputs"))
    inputs, outputs = [each.name for each in body.input], [each.name for each in body.output]
    directions = _listed(node, "directions", count)
    names = [f"{name}.sample" for name in inputs]
    results = [f"{name}.samples" for name in outputs]
    inner = helper.make_node(
        "Scan",
        names,
        results,
        body=body,
        num_scan_inputs=count,
        scan_input_directions=directions,
        scan_input_axes=[0] * count,
    )
    info = lambda name: ValueInfoProto(name=name)
    sample = helper.make_graph([inner], "sample", list(map(info, names)), list(map(info, results)))
    outer = helper.make_node(
        "Scan", list(node.proto.input)[1:], list(node.proto.output), body=sample, num_scan_inputs=len(inputs)
    )
    return scan(node.replaced(outer, node.inputs[1:], 9))


def _element(x: Tensor, name: str) -> Tensor:
    samples = tuple(None if s is None else Sample(TensorType(s.type.shape[1:], s.type.dtype)) for s in x.samples)
    if x.rank == 0:
        return Tensor(x.type, Label(name))
    type = TensorType(x.shape[1:], x.dtype)
    return Tensor(type, Label(name), samples=() if type.is_static else samples)


def _listed(node: Node, name: str, count: int) -> list[int]:
    found = [int(n) for n in node.attr(name, [0] * count)]
    if len(found) != count:
        raise node.refuse(f"{name} has {len(found)} entries, not {count}")
    return found


def _checked_axis(node: Node, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise node.refuse(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def _moved(node: Node, x: Tensor, source: int, target: int) -> Tensor:
    """`x` with the axis `source` at the place `target`."""
    if source == target:
        return x
    order = [i for i in range(x.rank) if i != source]
    order.insert(target, source)
    result: Tensor = node.emit("transpose", x, axes=order)
    return result
