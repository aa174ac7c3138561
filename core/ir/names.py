"""Resolve a client's variable name to variables of the program.

A variable that the client writes more than once has versions, ``h@VER@1`` and so on. ``"1:h"`` names the variable `h`
of block 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from core.ir.errors import ProgramError
from core.ir.generated import CUTTING
from core.ir.program import OF_FUNCTION, Block, Program, TensorType, blocks_inside
from core.ir.suggest import near

__all__ = [
    "ClientNames",
    "block_index",
    "check_place",
    "inner_name",
    "list_of_names",
    "names_of_all",
    "root_array",
    "root_variable",
    "unversioned",
]


def root_variable(program: Program, name: str, elsewhere: str, entry: bool = False) -> str:
    """The variable of block 0 that `name` refers to: its last version, or the entry value of a leaf if `entry`.

    Raises ProgramError: unknown_variable, or the code `elsewhere` for a variable of an inner block.
    """
    if not isinstance(name, str):
        raise ProgramError("a name must be a string", "unknown_variable")
    types = program.block.types
    if not entry and name in program.latest:
        return program.latest[name]
    if name in types and CUTTING not in name:
        return name
    if any(name in block.types for block in blocks_inside(program.block.ops)):
        raise ProgramError(
            f"{name!r} lives in an inner block",
            elsewhere,
            suggestion="let the block write it to a variable that exists outside",
        )
    raise ProgramError(f"unknown variable {name!r}", "unknown_variable", suggestion=near(name, _clients(program)))


def root_array(program: Program, name: str) -> str:
    """The array of block 0 that `name` refers to: its last version. Raises ProgramError (unknown_variable)."""
    variable = program.latest.get(name, name)
    if variable not in program.block.types or CUTTING in variable:
        message = f"block 0 has no variable {name!r}"
        raise ProgramError(message, "unknown_variable", suggestion=near(name, _clients(program)))
    if not isinstance(program.block.types[variable], TensorType):
        raise ProgramError(f"{name!r} is a {program.block.types[variable]}, not an array", "unknown_variable")
    return variable


def _clients(program: Program) -> list[str]:
    """The names of block 0 that the client wrote."""
    return [name for name in program.block.types if "@" not in name]


def inner_name(name: str) -> tuple[int, str]:
    """(1, "h") for ``"1:h"``; (0, "h") for ``"h"``."""
    index, colon, rest = name.partition(":")
    return (int(index), rest) if colon and index.isdecimal() else (0, name)


class ClientNames:
    """The variables of one block by the names of the client."""

    def __init__(self, block: Block, index: int | None) -> None:
        """block: the client's block `index`."""
        self.block = block
        self.index = index
        self._versions = defaultdict[str, list[str]](list)
        for variable in block.types if index != OF_FUNCTION else ():
            self._versions[unversioned(variable).partition("@IN@")[0]].append(variable)
        self._written: dict[int, set[str]] | None = None

    def called(self, number: int, name: str) -> list[str]:
        """All versions of the variable `name` of the client's block `number`, the last version last.

        The number differs from that of the block where the reader inlined one client block into another; a local
        variable of an inlined block has that block's number in its name (core.wire.versions).
        Variables inside a function have no name outside of it.
        """
        if CUTTING in name:
            return []
        candidates = self._versions.get(name.partition("@IN@")[0], ())
        versions = [n for n in candidates if unversioned(n) == name or unversioned(n).startswith(f"{name}@IN@")]
        if number == self.index:
            return [n for n in versions if unversioned(n) == name]
        there = self._written_in(number) if versions else ()
        return [n for n in versions if unversioned(n) == f"{name}@IN@{number}" or n in there]

    def _written_in(self, number: int) -> set[str]:
        """The variables that ops of the client's block `number` write."""
        if self._written is None:
            self._written = {}
            for op in self.block.ops:
                if op.location is not None and not op.location.adjoint:
                    self._written.setdefault(op.location.block, set()).update(op.outputs)
        return self._written.get(number, set())


def unversioned(variable: str) -> str:
    """The client's name of a variable: without its version suffix."""
    return variable.split("@VER@")[0]


def block_index(block: Block) -> int | None:
    """The client's index of `block`, or OF_FUNCTION; None if the block contains no op of the client."""
    if block.index is not None:
        return block.index
    first = next((op.location for op in block.ops if op.location and not op.location.adjoint), None)
    return None if first is None else OF_FUNCTION if first.function is not None else first.block


def names_of_all(block: Block) -> list[ClientNames]:
    """The names of `block`, block 0 of the program, and of each block inside."""
    inside = blocks_inside(block.ops)
    return [ClientNames(block, 0), *(ClientNames(inner, block_index(inner)) for inner in inside)]


def check_place(every: Sequence[ClientNames], place: tuple[int, str], code: str) -> None:
    """Check that a variable exists for a (client's block, name). every: `names_of_all` blocks.

    Raises ProgramError with `code`.
    """
    number, name = place
    if not any(each.called(number, name) for each in every):
        known = [n for each in every if each.index == number for n in each.block.types if "@" not in n]
        raise ProgramError(f"block {number} has no variable {name!r}", code, suggestion=near(name, known))


def list_of_names(names: Any, code: str) -> list[str]:
    """A list of names from a list, tuple or set.

    Raises ProgramError with `code`, also for a bare string, which Python would iterate letter by letter.
    """
    if isinstance(names, str) or not isinstance(names, list | tuple | set | frozenset):
        raise ProgramError("must be a list of names", code)
    if not all(isinstance(n, str) for n in names):
        raise ProgramError("must hold names only", code)
    return sorted(names) if isinstance(names, set | frozenset) else list(names)
