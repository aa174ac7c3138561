"""Producers and readers of the variables of one block."""

from __future__ import annotations

from functools import cached_property

from core.ir import Block, Op

__all__ = ["Uses"]


class Uses:
    """producers: variable -> the op that computes it; parameters have none."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.producers = {name: op for op in block.ops for name in op.outputs}

    def readers(self, name: str) -> list[Op | None]:
        """The ops that read `name`, once for each input slot; None among them stands for the results of the block."""
        return self._readers.get(name, [])

    def read_last(self, name: str, op: Op) -> bool:
        """Whether `op` is the last to read `name`, in one input slot only, and `name` is no result of the block."""
        readers = self.readers(name)
        return bool(readers) and readers[-1] is op and sum(each is op for each in readers) == 1

    @cached_property
    def _readers(self) -> dict[str, list[Op | None]]:
        found: dict[str, list[Op | None]] = {}
        for op in self._block.ops:
            for each in op.inputs:
                found.setdefault(each, []).append(op)
        for each in self._block.results:
            found.setdefault(each, []).append(None)
        return found
