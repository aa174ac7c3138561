"""If becomes `if_else`, whose branches read the values around them."""

from __future__ import annotations

from core.onnx.reading.cells import Cell, joined, write_all
from core.onnx.reading.draft import DraftBlock, Operand, Written
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Array, List, Maybe, Tensor, Value


@converter("If")
def if_(node: Node) -> tuple[Value, ...]:
    condition = node[0]
    if condition.dtype != "bool" or any(n not in (-1, 1) for n in condition.shape):
        raise node.refuse(f"the condition must be one bool, not {condition.type}")
    graphs = [node.graph("then_branch"), node.graph("else_branch")]
    if condition.value is not None:
        chosen = graphs[0] if condition.value.reshape(-1)[0] else graphs[1]
        return tuple(node.subgraph(chosen))
    blocks, results = [], []
    for graph in graphs:
        block = DraftBlock()
        with node.draft.inside(block):
            results.append(node.subgraph(graph))
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


def _slots(value: Value) -> list[Operand]:
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
