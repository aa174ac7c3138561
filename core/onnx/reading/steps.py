"""A `scan` whose body a converter writes by emitting ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.ir import TensorType
from core.onnx.reading.cells import Cell, write_all
from core.onnx.reading.draft import DraftBlock, Written
from core.onnx.reading.node import Node
from core.onnx.reading.values import Label, Tensor
from core.onnx.reading.worlds import WORLDS, Sample

__all__ = ["over_steps"]

Step = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], Tensor]]


def over_steps(
    node: Node, step: Step, initial: Sequence[Tensor], sequences: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, list[Tensor]]:
    """Run ``step(states, elements) -> (states, result)`` over the first axis of the sequences.

    Return the results along that axis, and the last states. A step must not change the types of the states.
    """
    draft = node.draft
    cells = [Cell.like(each, f"{node.op}.state") for each in initial]
    states = [cell.value for cell in cells if isinstance(cell.value, Tensor)]
    elements = [_element(each) for each in sequences]
    block, output = DraftBlock(), Label(f"{node.op}.step")
    with draft.inside(block):
        following, result = step(states, elements)
        for old, new in zip(states, following, strict=True):
            if old.type != new.type:
                raise node.refuse(f"a step makes {new.type} of a state {old.type}")
        draft.assign(result, output)
        write_all(draft, following, cells)
    block.results = [*(cell.label for cell in cells), output]
    finals = [Tensor(each.type, Label(f"{node.op}.last"), samples=each.samples) for each in states]
    stacked = _stacked(result, sequences[0], f"{node.op}.all")
    labels = [[each.label for each in group if each.label is not None] for group in (elements, finals, [stacked])]
    draft.block.ops.append(
        Written(
            "scan",
            {"initial": [draft.use(each) for each in initial], "sequences": [draft.use(each) for each in sequences]},
            {"final": labels[1], "stacked": labels[2]},
            {
                "sub_block": block,
                "states": [cell.label for cell in cells],
                "elements": labels[0],
                "outputs": [output],
                "reverse": reverse,
            },
        )
    )
    return stacked, finals


def _element(x: Tensor) -> Tensor:
    samples = tuple(None if s is None else Sample(TensorType(s.type.shape[1:], s.type.dtype)) for s in x.samples)
    type = TensorType(x.shape[1:], x.dtype)
    return Tensor(type, Label("element"), samples=() if type.is_static else samples)


def _stacked(result: Tensor, sequence: Tensor, hint: str) -> Tensor:
    """The results of all steps: as many as the sequence has elements."""
    type = TensorType((sequence.shape[0], *result.shape), result.dtype)
    if type.is_static:
        return Tensor(type, Label(hint))
    samples: list[Sample | None] = []
    for w in range(WORLDS):
        pair = [each.samples[w] if each.samples else Sample(each.type) for each in (sequence, result)]
        if pair[0] is None or pair[1] is None:
            samples.append(None)
        else:
            samples.append(Sample(TensorType((pair[0].type.shape[0], *pair[1].type.shape), type.dtype)))
    return Tensor(type, Label(hint), samples=tuple(samples))
