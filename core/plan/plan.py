"""A whole plan: the instructions of a block, its arrays, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.ir import Block
from core.ir.errors import Location
from core.plan.instructions import Instructions, Interpreted
from core.plan.memory import Stack, View
from core.plan.target import Target

__all__ = ["NOT_COVERED", "OUTGROWN", "Check", "Plan"]

NOT_COVERED = "not_covered"
"""Code of a check that fails if the values of a run need work that the generated code has not: no error of the client.

The reference executor runs the block then.
"""

OUTGROWN = "outgrown"
"""Code of a check that fails if a size of a run is larger than the code has memory for: a larger plan covers it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that generated code tests: the error if it does not hold, and the client's op it belongs to.

    code: of the error, or `NOT_COVERED` or `OUTGROWN`.
    """

    code: str
    message: str
    location: Location | None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A block, ready for the code generator of `target`.

    params, results: the arrays that the caller passes, in the order of the block.
    error:           a scalar; generated code writes the number of a failed check there.
    checks:          by number; number 0 means that no check failed.
    stacks:          memory that grows, for values that loops record.
    interpreted:     ops that the reference executor runs, by number.
    cuts:            (position of a result, axis whose size only the run tells, position of that size) in `results`: the
                     array has its largest size, and the size is a result that the block does not have.
    expected:        variables of sizes without a largest value -> the largest shapes that the code has memory for.
    in_order:        whether generated code must run the instructions one after another. Then some results may be arrays
                     of parameters (`core.plan.in_place`).
    """

    block: Block
    target: Target
    body: Instructions
    params: tuple[View, ...]
    results: tuple[View, ...]
    error: View
    checks: tuple[Check, ...]
    stacks: tuple[Stack, ...] = ()
    interpreted: tuple[Interpreted, ...] = ()
    cuts: tuple[tuple[int, int, int], ...] = ()
    expected: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    in_order: bool = False

    def cut(self, results: list[Any]) -> tuple[Any, ...]:
        """The results of the block, from those of the plan, with the sizes that the run told."""
        for result, axis, length in self.cuts:
            results[result] = results[result][(slice(None),) * axis + (slice(int(results[length])),)]
        return tuple(results[: len(self.block.results)])
