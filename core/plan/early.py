"""The order in which the ops of a block are lowered: single numbers, then work on labels, then the rest.

A loss over classes has ops that depend on the labels alone, such as the number of labels that count. They follow the
softmax in the program. If they ran after it, its pass over the logits would end there, and the gradient would need
another one. So it is with numbers that are computed for an array, such as the factors of a step of Adam: a pass over
the array cannot wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from core.ir import HOLE, Block, Op, StackType, TensorType, Type
from core.ir.registry import lookup
from core.plan.memory import bytes_of

__all__ = ["early_first"]

MOST_BYTES = 1 << 20
"""Bytes of the largest array that is computed early: it lives longer. Arrays of labels may be as large as the logits:
a second pass over these would store more."""

SUMS = frozenset({"reduce_sum", "squeeze", "unsqueeze", "reshape", "expand"})
"""Ops on arrays of labels besides elementwise ones."""

GIVING = frozenset({"cast", "fill_constant", "reshape", "slice", "squeeze", "unsqueeze"})
"""Ops on parameters of the block that may give labels; they come early if a label needs them."""

NUMBERS = frozenset({"cast", "fill_constant", "increment", "reshape", "squeeze", "unsqueeze"})
"""Ops on single numbers besides elementwise ones whose results are floats."""

DEEPEST = 8
"""Most of these ops in sequence."""


def early_first(block: Block) -> list[tuple[int, Op]]:
    """The ops of `block` with their positions; those that depend on single numbers, or on labels alone, come first."""
    numbers = _of_numbers(block)
    return [*numbers.items(), *((index, op) for index, op in _labels_first(block) if index not in numbers)]


def _of_numbers(block: Block) -> dict[int, Op]:
    """The elementwise ops on single numbers that depend on no array, by their positions.

    An op that divides integers reports an error, whose place among the errors must stay; it is not among them.
    """
    known = {name for name in block.params if _is_number(block.types[name])}
    found: dict[int, Op] = {}
    for index, op in enumerate(block.ops):
        if op.type not in NUMBERS and not lookup(op.type).elementwise:
            continue
        types = [block.types[name] for name in op.outputs]
        safe = op.type in NUMBERS or all(isinstance(t, TensorType) and t.is_float for t in types)
        if safe and all(map(_is_number, types)) and known.issuperset(op.inputs):
            found[index] = op
            known.update(op.outputs)
    return found


def _is_number(type: Type) -> bool:
    return isinstance(type, TensorType) and type.is_static and math.prod(type.shape) == 1


def _labels_first(block: Block) -> list[tuple[int, Op]]:
    """The ops in order, those that depend on labels alone before the others."""
    if not any(op.type == "class_index" for op in block.ops):
        return list(enumerate(block.ops))
    known = set(block.params)  # available without running any other op, or after ops that come first
    of_labels: set[str] = set()
    first: list[tuple[int, Op]] = []
    giving: dict[str, tuple[int, Op]] = {}
    depths: dict[str, int] = {}
    most = max([MOST_BYTES, *(_bytes(block.types[op.inputs[1]]) for op in block.ops if op.type == "class_index")])

    def available(names: Iterable[str]) -> bool:
        return all(name in known or name in giving for name in names)

    def run(index: int, op: Op) -> None:
        for name in op.inputs:
            if name in giving:
                run(*giving.pop(name))
        first.append((index, op))
        known.update(op.outputs)

    for index, op in enumerate(block.ops):
        if (
            op.type in GIVING
            and of_labels.isdisjoint(op.inputs)
            and _is_small(op, block, most)
            and available(op.inputs)
        ):
            depths[op.outputs[0]] = 1 + max((depths.get(name, 0) for name in op.inputs), default=0)
            if depths[op.outputs[0]] <= DEEPEST:
                giving[op.outputs[0]] = (index, op)
        elif _is_of_labels(op, block, available, of_labels, most):
            needed = op.inputs[:1] if op.type == "class_index" else op.inputs
            for name in needed:
                if name in giving:
                    run(*giving.pop(name))
            first.append((index, op))
            known.update(op.outputs)
            of_labels.update(op.outputs)
    moved = {index for index, _ in first}
    return [*first, *((index, op) for index, op in enumerate(block.ops) if index not in moved)]


def _bytes(type: Type) -> int:
    """The bytes of an array of known size; 0 of another type."""
    return bytes_of(type.shape, type.dtype) if isinstance(type, TensorType) and type.is_static else 0


def _is_small(op: Op, block: Block, most: int) -> bool:
    types = [block.types[name] for name in op.outputs]
    return all(isinstance(type, TensorType) and type.is_static and _bytes(type) <= most for type in types)


def _is_of_labels(
    op: Op, block: Block, available: Callable[[Iterable[str]], bool], of_labels: set[str], most: int
) -> bool:
    """Whether an op computes arrays of at most `most` bytes from labels, parameters and constants."""
    if not _is_small(op, block, most):
        return False
    if op.type == "class_index":  # its second operand gives only a shape
        x = block.types[op.inputs[1]]
        return available(op.inputs[:1]) and not isinstance(x, StackType) and x.is_static
    inputs = [name for name in op.inputs if name != HOLE]
    return (op.type in SUMS or lookup(op.type).elementwise) and not of_labels.isdisjoint(inputs) and available(inputs)
