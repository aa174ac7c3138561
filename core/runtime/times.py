"""The time of each kernel of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.ir import Block, Op
from core.plan.instructions import Instruction, Interpreted

__all__ = ["Spent", "Times"]


@dataclass(slots=True)
class Spent:
    """nbytes: bytes read and written, counted while ops ran one by one; 0 for kernels, whose plan has the number."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int = 0


@dataclass(slots=True)
class Times:
    """Times of the kernels and ops of one or more runs. Loops and branches have no entry, except on a GPU; the ops
    inside them do.

    seconds:  of the runs as a whole.
    kernels:  of machine code.
    together: of machine code on a GPU: instructions that run as one, such as a loop and those inside it.
    ops:      ops that ran one by one, by id; each with its block, which has its types.
    """

    seconds: float = 0.0
    kernels: dict[Instruction, Spent] = field(default_factory=dict)
    together: dict[tuple[Instruction, ...], Spent] = field(default_factory=dict)
    ops: dict[int, tuple[Op, Block, Spent]] = field(default_factory=dict)

    def add(self, kernels: Sequence[Instruction], table: Sequence[int]) -> None:
        """Add the times that machine code measured. table: for each kernel its nanoseconds and its calls.

        An op that machine code calls back is left out: `call` measures it. The difference, the way there and back, is
        time outside kernels.
        """
        for i, each in enumerate(kernels):
            if isinstance(each, Interpreted):
                continue
            spent = self.kernels.setdefault(each, Spent())
            spent.seconds += table[2 * i] / 1e9
            spent.calls += table[2 * i + 1]

    def add_together(self, instructions: tuple[Instruction, ...], seconds: float) -> None:
        """Add the time that a GPU measured for some instructions that ran together, once."""
        spent = self.together.setdefault(instructions, Spent())
        spent.seconds += seconds
        spent.calls += 1

    def call(self, op: Op, block: Block, function: Callable[..., Any], xp: Any, *inputs: Any) -> Any:
        """Call `function` and add its time; on a GPU, wait until it has finished."""
        _, _, spent = self.ops.setdefault(id(op), (op, block, Spent()))
        before = time.perf_counter()
        result = function(xp, *inputs)
        if hasattr(xp, "cuda"):
            xp.cuda.get_current_stream().synchronize()
        spent.seconds += time.perf_counter() - before
        spent.calls += 1
        spent.nbytes += _moved(xp, inputs, result if isinstance(result, tuple) else (result,))
        return result


def _moved(xp: Any, inputs: Sequence[Any], results: Sequence[Any]) -> int:
    """Bytes that an op read and wrote, each array once. A result that is a view of an input moves nothing."""
    read = {id(each): each for each in inputs if hasattr(each, "strides")}
    written = [each for each in results if hasattr(each, "strides")]
    new = [each for each in written if not any(xp.may_share_memory(each, other) for other in read.values())]
    return sum(map(_bytes, new)) + (sum(map(_bytes, read.values())) if new or not written else 0)


def _bytes(array: Any) -> int:
    """Bytes of the elements in memory: those that a view repeats count once."""
    sizes = [size for size, stride in zip(array.shape, array.strides, strict=True) if stride]
    return int(math.prod(sizes) * array.itemsize)
