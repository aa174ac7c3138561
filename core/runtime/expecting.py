"""Regions with sizes that have no largest value: code that is made again when a run needs more memory for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.ir.recursion import headroom
from core.plan.build import plan_block
from core.plan.memory import bytes_of
from core.plan.plan import Plan
from core.plan.sizes import MOST_ELEMENTS, Expected
from core.plan.unsupported import Unsupported
from core.runtime.backend import Backend
from core.runtime.memory_limit import MemoryLimit
from core.runtime.region import NativeRegion
from core.runtime.run import Run

__all__ = ["ExpectingRegion"]

UNSEEN = 4
"""How much larger an unknown size becomes: one in the body of a loop or in a branch."""

REPEATS = 12
"""Most times that a run is made: unknown sizes become some million times larger meanwhile."""

SHARE = 2
"""Larger code may take one part in two of the memory of all runs; the reference executor takes what the sizes need."""


class ExpectingRegion:
    """A region whose code has memory for sizes up to those that were expected. See `core.runtime.backend.Region`.

    The first run with a larger one is left to the reference executor, which tells the sizes. Then the code is made
    again, with memory for at least an eighth more, and the run is repeated: its results have the bits of later runs.
    Such runs stay with the reference executor if the code would take too much memory.
    """

    def __init__(self, plan: Plan, backend: Backend, timed: bool) -> None:
        self._backend, self._timed = backend, timed
        self._code: NativeRegion = backend.compile(plan, timed)  # type: ignore[assignment]
        self._growing = threading.Lock()
        self._too_large: Expected | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the code at present."""
        return self._code.plan

    @property
    def arena_bytes(self) -> int:
        """See `Region`."""
        return self._code.arena_bytes

    @property
    def own_bytes(self) -> int:
        """See `Region`."""
        return self._code.own_bytes

    @property
    def stack_bytes(self) -> int:
        """See `Region`."""
        return self._code.stack_bytes

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        return self._repeated(run, lambda code: code(run, *args))

    def readable(self, array: Any) -> Any:
        """See `Region`."""
        return self._code.readable(array)

    def results(self) -> list[Any]:
        """See `Region`. Only a region whose results have known sizes is bound to arrays."""
        return self._code.results()

    def bind(self, arrays: Sequence[Any]) -> _Rebound:
        """See `Region`."""
        return _Rebound(self._code, arrays)

    def run(self, arrays: _Rebound, run: Run) -> None:
        """See `Region`."""
        self._repeated(run, lambda code: code.run(arrays.of(code), run))

    def _repeated(self, run: Run, once: Callable[[NativeRegion], Any]) -> Any:
        """The result of `once` on code with memory for the sizes of the run.

        A run changes nothing but its results, its stacks and what `Run.mark` keeps, so it can be repeated.
        """
        mark = run.mark()
        for left in reversed(range(REPEATS)):
            code, run.outgrown = self._code, None
            found = once(code)
            if run.outgrown is None or not self._grows(code, run.outgrown, run.limits.memory) or not left:
                break
            run.back_to(mark)
        return found

    def _grows(
        self, code: NativeRegion, shapes: Mapping[str, tuple[int, ...]], memory: MemoryLimit | None = None
    ) -> bool:
        """Whether there is other code than `code` now, for sizes at least as large as `shapes`."""
        with self._growing:
            if code is not self._code:
                return True
            expected = _larger(code.plan.expected, shapes)
            if expected in (code.plan.expected, self._too_large):
                return False
            with headroom():
                try:
                    plan = plan_block(code.plan.block, code.plan.target, expected)
                except Unsupported:  # sizes that no code has; the reference executor goes on with such runs
                    return False
                if memory is not None and self._bytes(plan) > memory.capacity // SHARE:
                    self._too_large = expected
                    return False
                self._code = self._backend.compile(plan, self._timed)  # type: ignore[assignment]
            return True

    def _bytes(self, plan: Plan) -> int:
        """Memory that a run of the code of `plan` takes at least."""
        stacks = sum(plan.target.stack_bytes(each.slot_bytes) for each in plan.stacks)
        results = sum(bytes_of(each.shape, each.dtype) for each in plan.results)
        return self._backend.arena_bytes(plan) + stacks + results


def _larger(expected: Expected, found: Expected) -> dict[str, tuple[int, ...]]:
    """The shapes to expect, from those that were expected and those of a run.

    found: without variables in the bodies of loops and in branches. These become larger if no other variable does.
    """
    larger = {name: _enough(expected[name], shape) for name, shape in found.items()}
    if all(expected[name] == shape for name, shape in larger.items()):
        unseen = expected.keys() - found.keys()
        larger = {name: tuple(UNSEEN * n for n in expected[name]) for name in unseen}
    return {**expected, **larger}


def _enough(expected: tuple[int, ...], found: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with powers of two for the sizes of `found` that are larger than expected.

    Several powers of two would make a large array many times larger than the run needs: there the sizes become
    multiples of a sixteenth of one.
    """
    wider = [n > m for m, n in zip(expected, found, strict=True)]
    if sum(wider) > 1 and math.prod(found) > MOST_ELEMENTS:
        sizes = [_rounded_up(n + n // 8, 1 << max(0, n.bit_length() - 4)) for n in found]
    else:
        sizes = [1 << (n + n // 4).bit_length() for n in found]
    return tuple(n if grows else m for m, n, grows in zip(expected, sizes, wider, strict=True))


def _rounded_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


class _Rebound:
    """Arrays that are bound to the code of an `ExpectingRegion`, whichever that is."""

    def __init__(self, code: NativeRegion, arrays: Sequence[Any]) -> None:
        self._code, self._bound = code, code.bind(arrays)

    def of(self, code: NativeRegion) -> Any:
        """The arguments of `code`."""
        if code is not self._code:
            self._code, self._bound = code, code.bind(self._bound.arrays)
        return self._bound

    def put(self, i: int, array: Any) -> None:
        """See `BoundArrays`."""
        self._bound.put(i, array)

    def drop(self, i: int) -> None:
        """See `BoundArrays`."""
        self._bound.drop(i)
