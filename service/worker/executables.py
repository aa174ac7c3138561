"""The executables of all programs of a worker, bounded together by the memory that they take.

A client makes a program need another executable with every new batch size. The least recently used executables are
dropped; a call that needs one again compiles it again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.ir import Block, inner_blocks
from core.ir.lru import LRU

if TYPE_CHECKING:
    from core.compiler.compile import Executable

__all__ = ["EXECUTABLE_BYTES", "Executables", "OwnExecutables", "executables", "nbytes_of"]

EXECUTABLE_BYTES = 256 * 2**20
"""Most bytes of all executables of a worker."""

INTERPRETED, COMPILED = 20_000, 120_000
"""Bytes of an executable, of the reference executor and of machine code, not counting its ops."""
INTERPRETED_OP, COMPILED_OP = 1_000, 4_000
"""Bytes for each op. Measured on steps of 22 and of 184 ops."""

Executables = LRU["Executable"]


def executables(limit: int = EXECUTABLE_BYTES) -> Executables:
    """A cache for the executables of any number of programs."""
    return LRU(limit, nbytes_of, at_least=1)


@dataclass(frozen=True, slots=True, eq=False)
class OwnExecutables:
    """The executables of one program in a cache that programs share."""

    shared: Executables = field(default_factory=executables)
    _owner: object = field(default_factory=object)

    def get(self, key: Hashable) -> Executable | None:
        return self.shared.get((self._owner, key))

    def put(self, key: Hashable, executable: Executable) -> None:
        self.shared.put((self._owner, key), executable)

    def pop(self, key: Hashable) -> Executable | None:
        """Remove the executable and return it, or None."""
        return self.shared.pop((self._owner, key))


def nbytes_of(executable: Executable) -> int:
    """Bytes that an executable keeps between runs, without large arenas, results and stacks."""
    from core.runtime.reference import NATIVE  # imported here, because codec processes do not need the runtime

    ops = _ops(executable.interpreter.block)
    found = INTERPRETED + ops * INTERPRETED_OP
    if executable.machine is not None:
        arenas = sum(call.op.attrs["region"].own_bytes for call in executable.machine.calls if call.op.type == NATIVE)
        found += COMPILED + ops * COMPILED_OP + arenas
    return found


def _ops(block: Block) -> int:
    return len(block.ops) + sum(_ops(inner) for op in block.ops for _, inner in inner_blocks(op))
