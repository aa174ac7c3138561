"""The compiler processes of a worker: one for short modules and one for long ones.

A short module never waits for a long one. Both processes are nicer than their parent, the one for long modules more so.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.codegen.compiler_process import CompilerProcess

__all__ = ["LONG", "MEMORY", "Compilers"]

LONG = 400_000
"""Characters of all texts from which on a module is long: LLVM takes about half a second for them."""

NICE_SHORT, NICE_LONG = 5, 15

MEMORY = 4 * 2**30
"""Limit of the address space of a compiler process, in bytes. A module of the largest allowed size takes half of it."""


class Compilers:
    """Two compiler processes. See `CompilerProcess`; a process starts with the first module that needs it.

    memory: limit of the address space of each, in bytes.
    """

    def __init__(self, parallel: int = 1, memory: int = MEMORY) -> None:
        self.parallel = parallel
        self._short = CompilerProcess(parallel, NICE_SHORT, memory)
        self._long = CompilerProcess(parallel, NICE_LONG, memory)

    def compile(self, texts: Sequence[str]) -> list[bytes]:
        """The object code of each text. Raises as `CompilerProcess.compile` does."""
        chosen = self._long if sum(map(len, texts)) > LONG else self._short
        return chosen.compile(texts)

    def start(self) -> None:
        """Start the process for short modules now, so that the first compilation does not wait for it."""
        self._short.start()

    def close(self) -> None:
        """End the processes."""
        self._short.close()
        self._long.close()
