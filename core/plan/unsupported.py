"""The exception for ops that a plan cannot contain."""

from __future__ import annotations

from core.ir import Op
from core.ir.errors import Location

__all__ = ["Unsupported"]


class Unsupported(Exception):
    """An op that generated code cannot compute; the reference executor runs it.

    index: position of the op in the block.
    place: the client's op that the reason is about. If the op at `index` is a loop or a branch, that is an op inside.
    """

    def __init__(self, reason: str, index: int | None = None, place: Location | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.index = index
        self.place = place

    def why(self, op: Op) -> str:
        """The reason as a reason why `op` is unsupported, which contains the op at `place`."""
        return self.reason if self.place in (None, op.location) else f"{self.place}: {self.reason}"
