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
"""Parameter or result of a block -> a name for each of its open sizes."""


def open_sizes(block: Block, declared: Names) -> tuple[Names, dict[tuple[int, str], bool]]:
    """The names of the open sizes of parameters and results, and which stacks have arrays of one shape.

    A size of a result has a name if it is always equal to a size of a parameter.
    declared: names that the program gives. They are used as they are: a size is bound to one of its own only to learn
    whether the program allows it.
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
        of_number = {number: name for name, number in numbers.items()}
        results = {
            name: tuple(of_number.get(n) for n in type.shape)
            for name in bound.results
            if name not in opened and isinstance(type := bound.types[name], TensorType)
        }
        return _with_declared(names | results, declared), dict(_uniform(block, bound))
    separate = {param: tuple(_name(param, i, n, False) for i, n in enumerate(s)) for param, s in opened.items()}
    return _with_declared(separate, declared), {}


def _with_declared(names: Names, declared: Names) -> Names:
    """`names` with declared names in place of generated ones. A generated name stands for equal sizes, and so does the
    declared name of one of them, if they have no other."""
    chosen: dict[str, set[str]] = {}
    for param, sizes in names.items():
        for generated, name in zip(sizes, declared.get(param, ()), strict=False):
            if generated is not None and name is not None:
                chosen.setdefault(generated, set()).add(name)
    only = {generated: next(iter(found)) for generated, found in chosen.items() if len(found) == 1}
    return {
        param: tuple(
            given or (None if generated is None else only.get(generated, generated))
            for generated, given in zip(sizes, declared.get(param, (None,) * len(sizes)), strict=True)
        )
        for param, sizes in names.items()
    }


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
