"""Which variables of a program a client means by a name.

A name the client wrote twice has versions, ``h@VER@1`` and so on; one of an inner block is written ``"1:h"``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from core.ir.errors import ProgramError
from core.ir.program import OF_FUNCTION, Block, Program, TensorType, blocks_inside

__all__ = [
    "block_index",
    "called",
    "check_places",
    "inner_name",
    "list_of_names",
    "plain",
    "root_array",
    "root_variable",
]


def root_variable(program: Program, name: str, elsewhere: str, entry: bool = False) -> str:
    """The variable that `name` means in block 0: its last version, or the entry value of a leaf (`entry`).

    Raises ProgramError: unknown_variable, or with the code `elsewhere` for a name of an inner block.
    """
    if not isinstance(name, str):
        raise ProgramError("a name must be a string", "unknown_variable")
    types = program.block.types
    if not entry and name in program.latest:
        return program.latest[name]
    if name in types:
        return name
    if any(name in block.types for block in blocks_inside(program.block.ops)):
        raise ProgramError(
            f"{name!r} lives in an inner block",
            elsewhere,
            suggestion="let the block write it to a variable that exists outside",
        )
    raise ProgramError(f"unknown variable {name!r}", "unknown_variable")


def root_array(program: Program, name: str) -> str:
    """The array that `name` means in block 0: its last version. Raises ProgramError (unknown_variable)."""
    variable = program.latest.get(name, name)
    if variable not in program.block.types:
        raise ProgramError(f"block 0 has no variable {name!r}", "unknown_variable")
    if not isinstance(program.block.types[variable], TensorType):
        raise ProgramError(f"{name!r} is a {program.block.types[variable]}, not an array", "unknown_variable")
    return variable


def inner_name(name: str) -> tuple[int, str]:
    """(1, "h") for ``"1:h"``; a name without a number is one of block 0."""
    index, colon, rest = name.partition(":")
    return (int(index), rest) if colon and index.isdecimal() else (0, name)


def called(block: Block, index: int | None, number: int, name: str) -> list[str]:
    """The variables of `block`, the client's block `index`, that the client's block `number` calls `name`.

    These are all versions, the last one last. The two are different blocks where one was read into the other; then a
    variable that is some such block's own is called after that block, whoever writes it (core.wire.versions).
    Those of a function have no name outside of it.
    """
    if index == OF_FUNCTION:
        return []
    versions = [n for n in block.types if plain(n) == name or plain(n).startswith(f"{name}@IN@")]
    if number == index:
        return [n for n in versions if plain(n) == name]
    ops = (op for op in block.ops if op.location is not None and not op.location.adjoint)
    there = {n for op in ops if op.location is not None and op.location.block == number for n in op.outputs}
    return [n for n in versions if plain(n) == f"{name}@IN@{number}" or n in there]


def plain(variable: str) -> str:
    """The client's name of a version."""
    return variable.split("@VER@")[0]


def block_index(block: Block) -> int | None:
    """The index that the client gave to `block`, or OF_FUNCTION; None if no op of it is the client's."""
    if block.index is not None:
        return block.index
    first = next((op.location for op in block.ops if op.location and not op.location.adjoint), None)
    return None if first is None else OF_FUNCTION if first.function is not None else first.block


def check_places(block: Block, places: Collection[tuple[int, str]], code: str) -> None:
    """Raises ProgramError with `code` for the first (client's block, name) in `places` that no variable is called by.

    block: the program's block 0.
    """
    blocks = [(0, block), *((block_index(inner), inner) for inner in blocks_inside(block.ops))]
    for number, name in sorted(places):
        if not any(called(each, index, number, name) for index, each in blocks):
            raise ProgramError(f"block {number} has no variable {name!r}", code)


def list_of_names(names: Any, code: str) -> list[str]:
    """A list of names from a list, tuple or set; a bare string is a mistake that would be read letter by letter.

    Raises ProgramError with `code`.
    """
    if isinstance(names, str) or not isinstance(names, list | tuple | set | frozenset):
        raise ProgramError("must be a list of names", code)
    if not all(isinstance(n, str) for n in names):
        raise ProgramError("must hold names only", code)
    return sorted(names) if isinstance(names, set | frozenset) else list(names)
