"""Control flow: If, Loop and Scan become `if_else`, `while` and `scan`, which read the values around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import GraphProto, ValueInfoProto, helper

from core.ir import StackType, TensorType
from core.onnx.reading.arrays import array_of
from core.onnx.reading.cells import Cell, joined, write_all
from core.onnx.reading.draft import DraftBlock, Written
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.sequences import as_array
from core.onnx.reading.values import Array, Label, List, Maybe, Tensor, Value
from core.onnx.reading.worlds import WORLDS, Sample

TRIPS_READ = 12
"""Most readings of the body of a loop: each widens the type of a carried value."""

Slot = Tensor | Array


# --- branches ------------------------------------------------------------------------------------------------------


@converter("If")
def if_(node: Node) -> tuple[Value, ...]:
    condition = node[0]
    if condition.dtype != "bool" or any(n not in (-1, 1) for n in condition.shape):
        raise node.refuse(f"the condition must be one bool, not {condition.type}")
    graphs = [node.graph("then_branch"), node.graph("else_branch")]
    if condition.value is not None:
        chosen = graphs[0] if condition.value.reshape(-1)[0] else graphs[1]
        return tuple(node.reader.subgraph(chosen, node.env))
    blocks, results = [], []
    for graph in graphs:
        block = DraftBlock()
        with node.draft.inside(block):
            results.append(node.reader.subgraph(graph, node.env))
        blocks.append(block)
    names = [name or f"{node.op}.{i}" for i, name in enumerate(node.proto.output)]
    merged = [_merged(node, name, a, b) for name, a, b in zip(names, results[0], results[1], strict=True)]
    cells = [cell for _, made in merged for cell in made]
    sides = [[slot for value in side for slot in _slots(value)] for side in results]
    for block, side in zip(blocks, sides, strict=True):
        with node.draft.inside(block):
            write_all(node.draft, side, cells)
        block.results = [cell.label for cell in cells]
    node.draft.block.ops.append(
        Written(
            "if_else",
            {"condition": [node.draft.use(condition)]},
            {"out": [cell.label for cell in cells]},
            {"true_block": blocks[0], "false_block": blocks[1]},
        )
    )
    return tuple(value for value, _ in merged)


def _slots(value: Value) -> list[Slot]:
    """The tensors and arrays that a value consists of."""
    if isinstance(value, Tensor | Array):
        return [value]
    if isinstance(value, List):
        return list(value.items)
    return [] if not isinstance(value, Maybe) or value.held is None else _slots(value.held)


def _merged(node: Node, name: str, a: Value, b: Value) -> tuple[Value, list[Cell]]:
    """The value of an output of both branches, and the cells that it consists of."""
    if isinstance(a, Maybe) and isinstance(b, Maybe):
        if (a.held is None) != (b.held is None):
            raise node.refuse(f"output {name!r} is empty in one branch only: whether it is empty must be known")
        if a.held is None:
            return a, []
        held, cells = _merged(node, name, a.held, b.held)
        return Maybe(held), cells
    if isinstance(a, List) and isinstance(b, List):
        if len(a.items) != len(b.items):
            raise node.refuse(f"output {name!r} is a sequence of {len(a.items)} or of {len(b.items)} tensors")
        pairs = [_merged(node, f"{name}.{i}", x, y) for i, (x, y) in enumerate(zip(a.items, b.items, strict=True))]
        items = [item for item, _ in pairs if isinstance(item, Tensor)]
        return List(items, a.dtype), [cell for _, cells in pairs for cell in cells]
    if not isinstance(a, Tensor | Array) or not isinstance(b, Tensor | Array):
        raise node.refuse(f"output {name!r} has different kinds in the branches")
    wide, _ = joined(node.draft, a, b, f"the branches give {name!r} different types", set())
    cell = Cell.like(wide, name)
    return cell.value, [cell]


# --- loops ---------------------------------------------------------------------------------------------------------


@converter("Loop")
def loop(node: Node) -> tuple[Value, ...]:
    body = node.graph("body")
    limit, condition = node.get(0), node.get(1)
    given = [node.value(i) for i in range(2, len(node))]
    if len(body.input) != 2 + len(given) or len(body.output) < 1 + len(given):
        raise node.refuse(
            f"the body has {len(body.input)} inputs and {len(body.output)} outputs for {len(given)} carried values"
        )
    initial = [_entering(node, each) for each in _with_ranks(node, body, given)]
    always = condition is None or (condition.value is not None and bool(condition.value.reshape(-1)[0]))
    if limit is not None and limit.value is not None and always and _goes_on(body):
        trips = int(limit.value.reshape(-1)[0])
        return tuple(_counted_loop(node, body, max(trips, 0), initial))
    return tuple(_while(node, body, limit, condition, initial))


def _entering(node: Node, value: Value) -> Slot:
    if isinstance(value, Tensor | Array):
        return value
    if isinstance(value, List):
        return as_array(node, value)
    raise node.refuse("an optional value cannot be carried by a loop")


def _with_ranks(node: Node, body: GraphProto, given: list[Value]) -> list[Value]:
    """`given` with the rank of each empty sequence, which the first trip of the body shows."""
    if not any(isinstance(each, List) and not each.items and each.rank is None for each in given):
        return given
    with node.draft.inside(DraftBlock()):
        trip, condition = node.draft.open(TensorType((), "int64"), Label("trip")), node.const(True, "bool")
        after = node.reader.subgraph(body, node.env, [trip, condition, *given])[1:]
    found = []
    for each, later in zip(given, after, strict=False):
        if isinstance(each, List) and not each.items and isinstance(later, List) and later.items:
            each = List([], later.items[0].dtype, later.items[0].rank)
        found.append(each)
    return found


def _goes_on(body: GraphProto) -> bool:
    """Whether the condition that the body returns is the one that it was given, or the constant true."""
    name = body.output[0].name
    producers = {out: each for each in body.node for out in each.output}
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name == body.input[1].name:
        return True
    if name in producers and producers[name].op_type == "Constant":
        values = [each.t for each in producers[name].attribute if each.name == "value"]
        return bool(values) and bool(_true(values[0]))
    return any(each.name == name and _true(each) for each in body.initializer)


def _true(tensor: Any) -> bool:
    found = array_of(tensor).reshape(-1)
    return found.size == 1 and bool(found[0])


def _hints(node: Node, body: GraphProto, first: int, carried: int) -> tuple[list[str], list[str]]:
    """Names for the carried values and for the recorded results: those of the node's outputs."""
    names = list(node.proto.output)
    found = [names[i] if i < len(names) and names[i] else each.name for i, each in enumerate(body.output[first:])]
    return found[:carried], found[carried:]


class _Body:
    """A body of a loop, read with types of the carried values that hold before and after every trip."""

    def __init__(
        self, node: Node, body: GraphProto, cells: list[Cell], leading: list[Slot], trailing: list[Slot], skip: int
    ):
        for _ in range(TRIPS_READ):
            self.block = DraftBlock()
            with node.draft.inside(self.block):
                given = [*leading, *(cell.value for cell in cells), *trailing]
                found = node.reader.subgraph(body, node.env, given)
                results = [_entering(node, each) for each in found]
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


def _counted_loop(node: Node, body: GraphProto, trips: int, initial: list[Slot]) -> list[Value]:
    """A loop whose number of trips is known: a `scan` of that length."""
    hints, recorded_hints = _hints(node, body, 1, len(initial))
    counter = Cell.like(node.const(0, "int64"), f"{node.op}.trip")
    cells = [Cell.like(each, f"{name}.in") for each, name in zip(initial, hints, strict=True)]
    condition = node.const(True, "bool")
    read = _Body(node, body, cells, [counter.value, condition], [], 1)
    with node.draft.inside(read.block):
        assert isinstance(counter.value, Tensor)
        following = node.emit("increment", counter.value)
    return _scan(
        node,
        read,
        [counter, *cells],
        [following, *read.carried],
        [node.const(0, "int64"), *initial],
        [],
        [],
        ["", *hints],
        recorded_hints,
        trips,
        {"length": trips},
    )[1:]


def _scan(
    node: Node,
    read: _Body,
    cells: Sequence[Cell],
    following: Sequence[Slot],
    initial: Sequence[Slot],
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
    finals: list[Slot] = []
    for cell, hint in zip(cells, hints, strict=True):
        label = Label(hint or f"{cell.label.hint}.last")
        value = cell.value
        finals.append(
            Array(value.type, label) if isinstance(value, Array) else Tensor(value.type, label, samples=value.samples)
        )
    stacked = [
        _stacked(draft_type, name, length, sequences) for draft_type, name in zip(records, recorded_hints, strict=True)
    ]
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


def _label(each: Slot) -> Label:
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


def _while(
    node: Node, body: GraphProto, limit: Tensor | None, condition: Tensor | None, initial: list[Slot]
) -> list[Value]:
    """A loop whose number of trips the run decides. Recorded results are elements of tensor arrays."""
    draft = node.draft
    hints, recorded_hints = _hints(node, body, 1, len(initial))
    base = next((n for n in node.proto.output if n), node.op)
    zero, true = node.const(0, "int64"), node.const(True, "bool")
    counter, going = Cell.like(zero, f"{base}.trip"), Cell.like(true, f"{base}.going")
    cells = [Cell.like(each, name) for each, name in zip(initial, hints, strict=True)]
    assert isinstance(counter.value, Tensor) and isinstance(going.value, Tensor)
    limit = None if limit is None else node.cast(node.reshape(limit, []), "int64")
    entry = true if condition is None else node.cast(node.reshape(condition, []), "bool")
    if limit is not None:
        entry = node.emit("logical_and", entry, node.emit("less_than", zero, limit))
    # The body sees the condition as true: it does not run otherwise.
    read = _Body(node, body, cells, [counter.value, true], [], 1)
    arrays = []
    with draft.inside(read.block):
        again = read.first[0]
        if not isinstance(again, Tensor) or again.dtype != "bool":
            raise node.refuse("the body must return a bool as its first output")
        again = node.reshape(again, [])
        for each, name in zip(read.recorded, recorded_hints, strict=True):
            if isinstance(each, Array):
                raise node.refuse("a sequence cannot be recorded by a loop")
            array = Cell(Array(StackType(each.type), Label(f"{name}.trips")))
            write = {"x": [draft.use(each)], "index": [counter.label], "array": [array.label]}
            draft.block.ops.append(Written("array_write", write, {"out": [array.label]}, {}))
            arrays.append((array, each))
        following = node.emit("increment", counter.value)
        if limit is not None:
            again = node.emit("logical_and", again, node.emit("less_than", following, limit))
        write_all(draft, [*read.carried, following, again], [*cells, counter, going])
    written = [*cells, counter, going, *(array for array, _ in arrays)]
    for array, each in arrays:
        attrs = {"shape": list(each.shape), "dtype": each.dtype}
        draft.block.ops.append(Written("create_array", {}, {"out": [array.label]}, attrs))
    for source, cell in zip([*initial, zero, entry], [*cells, counter, going], strict=True):
        draft.assign(source, cell.label)
    read.block.results = [cell.label for cell in written]
    draft.block.ops.append(
        Written("while", {"condition": [going.label]}, {}, {"sub_block": read.block}, [cell.label for cell in written])
    )
    results: list[Value] = [cell.value for cell in cells]
    for (array, each), name in zip(arrays, recorded_hints, strict=True):
        found = node.emit("array_join", array.value, shape=each.shape, dtype=each.dtype)
        found.label.hint = name
        results.append(found)
    return results


# --- Scan ----------------------------------------------------------------------------------------------------------


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
    initial: list[Slot] = list(inputs[:states])
    hints, recorded_hints = _hints(node, body, 0, states)
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
    initial: list[Slot],
    sequences: list[Tensor],
    hints: list[str],
    recorded_hints: list[str],
) -> list[Value]:
    cells = [Cell.like(each, f"{name}.in") for each, name in zip(initial, hints, strict=True)]
    elements = [_element(x, each.name) for x, each in zip(sequences, body.input[len(initial) :], strict=True)]
    read = _Body(node, body, cells, [], list(elements), 0)
    length = next((x.shape[0] for x in sequences if x.shape[0] != -1), -1)
    return _scan(node, read, cells, read.carried, initial, elements, sequences, hints, recorded_hints, length, {})


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
    return scan(Node(outer, node.inputs[1:], 9, node.reader, node.env))


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
