"""The ops of a block under construction: which op wrote each variable, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable

from core.ir import HOLE, Op, size
from core.ir.builder import BlockBuilder

__all__ = ["Written"]


class Written:
    """An index of the ops of `builder`: looking up a few of them does not walk through all.

    Ops may be appended to the builder; another op takes the place of an op by `replace` alone.
    """

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._places: dict[str, int] = {}
        self._seen = 0
        self._size = 0

    def replace(self, position: int, op: Op) -> None:
        """Put `op` in the place of an op that writes some of its outputs."""
        self._read()
        self._size += size.op_size(op) - size.op_size(self._builder.ops[position])
        self._builder.ops[position] = op
        self._places.update((name, position) for name in op.outputs)

    def before(self, targets: Iterable[str], inputs: Iterable[str]) -> list[int]:
        """The positions of the ops that `targets` depend on and that may depend on one of `inputs`, in order."""
        self._read()
        first = min((self._places.get(name, -1) for name in inputs), default=-1)
        found: set[int] = set()
        left = list(targets)
        while left:
            at = self._places.get(left.pop(), -1)
            if at > first and at not in found:
                found.add(at)
                left.extend(name for name in self._builder.ops[at].inputs if name != HOLE)
        return sorted(found)

    def check_size(self) -> None:
        """Raises ProgramError (limit_exceeded) as `core.ir.size.check_size` does."""
        self._read()
        if self._size > size.EXPANDED_OPS:
            size.check_size(self._builder.build([]))

    def _read(self) -> None:
        """Look at the ops that were appended since the last question."""
        ops = self._builder.ops
        for position in range(self._seen, len(ops)):
            self._places.update((name, position) for name in ops[position].outputs)
            self._size += size.op_size(ops[position])
        self._seen = len(ops)
