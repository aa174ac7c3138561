"""How long each kernel of a run takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.ir import Block, Op
from core.plan.data import Instruction

__all__ = ["Spent", "Times"]


@dataclass(slots=True)
class Spent:
    """nbytes: of what was read and written, counted as it was done; 0 where a plan tells it."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int = 0


@dataclass(slots=True)
class Times:
    """Filled by a run that has it. Ops that run others, as loops do, are not in it; what they run is.

    seconds: of the runs as a whole.
    kernels: of machine code.
    ops:     run one by one; each with its block, where its types are.
    """

    seconds: float = 0.0
    kernels: dict[Instruction, Spent] = field(default_factory=dict)
    ops: dict[int, tuple[Op, Block, Spent]] = field(default_factory=dict)

    def add(self, kernels: Sequence[Instruction], table: Sequence[int]) -> None:
        """table: for each kernel its nanoseconds and its calls."""
        for i, each in enumerate(kernels):
            spent = self.kernels.setdefault(each, Spent())
            spent.seconds += table[2 * i] / 1e9
            spent.calls += table[2 * i + 1]

    def call(self, op: Op, block: Block, function: Callable[..., Any], xp: Any, *inputs: Any) -> Any:
        """What `function` gives for the inputs, and the time it took; a GPU is waited for."""
        _, _, spent = self.ops.setdefault(id(op), (op, block, Spent()))
        before = time.perf_counter()
        result = function(xp, *inputs)
        if hasattr(xp, "cuda"):
            xp.cuda.get_current_stream().synchronize()
        spent.seconds += time.perf_counter() - before
        spent.calls += 1
        arrays = (*inputs, *(result if isinstance(result, tuple) else (result,)))
        spent.nbytes += sum(getattr(each, "nbytes", 0) for each in arrays)
        return result
