"""Loop becomes a `scan` if its number of trips is known, otherwise a `while`."""

from __future__ import annotations

from typing import Any

from onnx import GraphProto

from core.ir import StackType, TensorType
from core.onnx.reading.arrays import array_of
from core.onnx.reading.bodies import Body, entering, names_of_results, write_scan
from core.onnx.reading.cells import Cell, write_all
from core.onnx.reading.draft import DraftBlock, Operand, Written
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Array, Label, List, Tensor, Value


@converter("Loop")
def loop(node: Node) -> tuple[Value, ...]:
    body = node.graph("body")
    limit, condition = node.get(0), node.get(1)
    given = [node.value(i) for i in range(2, len(node))]
    if len(body.input) != 2 + len(given) or len(body.output) < 1 + len(given):
        raise node.refuse(
            f"the body has {len(body.input)} inputs and {len(body.output)} outputs for {len(given)} carried values"
        )
    initial = [entering(node, each) for each in _with_ranks(node, body, given)]
    always = condition is None or (condition.value is not None and bool(condition.value.reshape(-1)[0]))
    if limit is not None and limit.value is not None and always and _goes_on(body):
        trips = int(limit.value.reshape(-1)[0])
        return tuple(_counted_loop(node, body, max(trips, 0), initial))
    return tuple(_while(node, body, limit, condition, initial))


def _with_ranks(node: Node, body: GraphProto, given: list[Value]) -> list[Value]:
    """`given` with the rank of each empty sequence, which the first trip of the body shows."""
    if not any(isinstance(each, List) and not each.items and each.rank is None for each in given):
        return given
    with node.draft.inside(DraftBlock()):
        trip, condition = node.draft.open(TensorType((), "int64"), Label("trip")), node.const(True, "bool")
        after = node.subgraph(body, [trip, condition, *given])[1:]
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


def _counted_loop(node: Node, body: GraphProto, trips: int, initial: list[Operand]) -> list[Value]:
    """A loop whose number of trips is known: a `scan` of that length."""
    hints, recorded_hints = names_of_results(node, body, 1, len(initial))
    counter = Cell.like(node.const(0, "int64"), f"{node.op}.trip")
    cells = [Cell.like(each, f"{name}.in") for each, name in zip(initial, hints, strict=True)]
    condition = node.const(True, "bool")
    read = Body(node, body, cells, [counter.value, condition], [], 1)
    with node.draft.inside(read.block):
        assert isinstance(counter.value, Tensor)
        following = node.emit("increment", counter.value)
    return write_scan(
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


def _while(
    node: Node, body: GraphProto, limit: Tensor | None, condition: Tensor | None, initial: list[Operand]
) -> list[Value]:
    """A loop whose number of trips the run decides. Recorded results are elements of tensor arrays."""
    draft = node.draft
    hints, recorded_hints = names_of_results(node, body, 1, len(initial))
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
    read = Body(node, body, cells, [counter.value, true], [], 1)
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
