"""The interface for devices, which a code generator implements for the runtime.

A `Backend` turns a plan for its `target` into a `Region`; a region runs on arrays. The runtime knows both only by these
protocols, so a generator for another device needs no change here. `core.codegen.backend` has the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from core.plan.plan import Plan
from core.plan.target import Target
from core.runtime.run import Run

__all__ = ["Backend", "BoundArrays", "Region"]


class BoundArrays(Protocol):
    """The arrays of a region's next calls: its arguments, then its results."""

    def put(self, i: int, array: Any) -> None:
        """Replace array `i`, which has the type that the plan declares and is `readable`."""

    def drop(self, i: int) -> None:
        """Release array `i`; another one must be put there before the next run."""


class Region(Protocol):
    """A compiled block."""

    @property
    def plan(self) -> Plan:
        """The plan it was compiled from."""

    @property
    def arena_bytes(self) -> int:
        """Device memory for intermediate arrays and partial results while it runs, in bytes."""

    @property
    def own_bytes(self) -> int:
        """Device memory that the region holds between runs and shares with no other, without stacks."""

    @property
    def stack_bytes(self) -> int:
        """Device memory for recorded values at present, in bytes; it grows in a run that records more."""

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        """The results of the block, in order. Raises ExecutionError."""

    def readable(self, array: Any) -> Any:
        """`array` itself if the code can read it in place, else a copy in a layout that it can read."""

    def results(self) -> list[Any]:
        """Arrays for the results that nothing else refers to."""

    def bind(self, arrays: Sequence[Any]) -> Any:
        """`BoundArrays` for `run`. arrays: arguments, then results, all `readable`; None for one that is put later."""

    def run(self, arrays: Any, run: Run) -> None:
        """Run on bound arrays, all of which must be there. Raises ExecutionError."""


class Backend(Protocol):
    """A code generator and its device."""

    @property
    def target(self) -> Target:
        """The assumptions of plans for this backend."""

    def runs_on(self, xp: ModuleType) -> bool:
        """Whether its regions take the arrays of this array module, numpy or cupy."""

    def row_writer(self, row_bytes: int) -> Callable[[int, int, int, int], None]:
        """``write(table, rows, values, count)``: row ``rows[i]`` of the table becomes row i of the values.

        Addresses of a table, of int64 row numbers within it, of rows of `row_bytes` bytes without gaps, and of their
        number, an int64. On a GPU it is work of the stream of the array module.
        """

    def arena_bytes(self, plan: Plan) -> int:
        """The `arena_bytes` of the region of `plan`, without compiling it."""

    def compile(self, plan: Plan, timed: bool = False) -> Region:
        """The compiled plan.

        timed: the code measures the time of each of its kernels, for runs with `times`.
        Raises ExecutionError (compiler_failed).
        """
