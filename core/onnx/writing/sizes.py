"""The open sizes of a program: their names, and the stacks whose arrays all have one shape.

A size that is open in the types of a block may still be the same on every trip of a loop: that of a batch, for example.
To find out, the open sizes of the program's inputs are bound to prime numbers and all types are inferred again. Where
the type of an array has no open size then, its shape depends on the shapes of the inputs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.ir import Block, StackType, TensorType, inner_blocks
from core.ir.errors import CoreError
from core.passes.bind import bind

__all__ = ["Names", "open_sizes"]

PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097)

Names = Mapping[str, tuple[str | None, ...]]
"""Parameter -> a name for each of its open sizes."""


def open_sizes(block: Block) -> tuple[Names, dict[tuple[int, str], bool]]:
    """The names of the open sizes of the parameters, and which stacks have arrays of one shape.

    The second result has the keys (id of a block inside `block` or its own, variable).
    """
    opened = {
        name: type.shape
        for name, type in zip(block.params, block.param_types, strict=True)
        if isinstance(type, TensorType) and not type.is_static
    }
    for equal in (False, True):  # sizes of different inputs differ, if the types allow it; else those of axis 0 agree
        names = {
            param: tuple(_name(param, i, n, equal) for i, n in enumerate(shape)) for param, shape in opened.items()
        }
        numbers: dict[str, int] = {}
        sizes = {
            param: [
                n if each is None else numbers.setdefault(each, _prime(len(numbers)))
                for n, each in zip(opened[param], names[param], strict=True)
            ]
            for param in opened
        }
        try:
            bound = bind(block, sizes)
        except CoreError:
            continue
        return names, dict(_uniform(block, bound))
    separate = {param: tuple(_name(param, i, n, False) for i, n in enumerate(s)) for param, s in opened.items()}
    return separate, {}


def _name(param: str, axis: int, size: int, equal: bool) -> str | None:
    if size >= 0:
        return None
    return "batch" if equal and axis == 0 else f"{param}.{axis}"


def _prime(i: int) -> int:
    return PRIMES[i] if i < len(PRIMES) else 1201 + 2 * i


def _uniform(block: Block, bound: Block) -> Iterator[tuple[tuple[int, str], bool]]:
    for name in block.types:
        type = bound.types.get(name)
        array = type.array if isinstance(type, StackType) else type
        yield (id(block), name), array is not None and array.is_static
    for op, known in zip(block.ops, bound.ops, strict=True):
        for (_, inner), (_, same) in zip(inner_blocks(op), inner_blocks(known), strict=True):
            yield from _uniform(inner, same)
