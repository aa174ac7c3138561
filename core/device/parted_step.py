"""A step of several regions, with ops between them that run one by one, whose values stay on the GPU between steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import numpy as np

from core.device.bound_step import all_finite, write_rows
from core.device.driver import Driver
from core.device.leaving import Leaving, send
from core.ir.recursion import headroom
from core.ops.common.types import as_dtype
from core.runtime.bound_step import KEPT, one_by_one
from core.runtime.executable import Executable, Outputs, checked, key_of
from core.runtime.reference import NATIVE
from core.runtime.run import Run
from core.runtime.sparse_rows import RowArray

__all__ = ["PartedStep", "bind_parts"]


class PartedStep:
    """See `core.runtime.bound_step.BoundStep`, whose methods these are. Each step has results of its own."""

    def __init__(self, executable: Executable, driver: Driver, values: Mapping[str, Any]) -> None:
        """values: all inputs but feeds, by name. Raises ProgramError (feed_shape, feed_dtype), MemoryError."""
        self._executable, self._driver = executable, driver
        self._copies = driver.stream()
        inputs = executable.inputs
        self._values = {v.name: checked(v, values[v.name], driver.xp) for v in inputs if v.role not in ("feed", "key")}
        self._feeds = {v.name: (v.type.shape, as_dtype(v.type.dtype)) for v in inputs if v.role == "feed"}
        self._tables = {each.name for each in executable.layout if each.table is not None and each.place in KEPT}
        self._taken: dict[str, Any] = {}
        self._out = Outputs()

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Take the feeds for the next `step`; False if they are not arrays of exactly the declared types."""
        if feeds.keys() != self._feeds.keys():
            return False
        for name, (shape, dtype) in self._feeds.items():
            if getattr(feeds[name], "shape", None) != shape or getattr(feeds[name], "dtype", None) != dtype:
                return False
        self._taken = {name: self._driver.xp.asarray(value) for name, value in feeds.items()}
        return True

    def series(self, stacked: Mapping[str, Any]) -> Callable[[int], None]:
        """A function that takes element i of each of `stacked`; see `BoundStep.series`."""

        def bind(number: int) -> None:
            self._taken |= {name: self._driver.xp.asarray(value[number, ...]) for name, value in stacked.items()}

        return bind

    def step(self, run: Run, seed: int, step: int) -> Outputs:
        """Run one step with the feeds that `takes` has taken. The values change only when `keep` is called.

        Raises ExecutionError, DeviceFault.
        """
        executable, xp = self._executable, self._driver.xp
        assert executable.machine is not None, "the step has regions"
        executable.admit(run, as_machine_code=True)
        given = {**self._values, **self._taken}
        args = [xp.asarray(key_of(seed, step)) if v.role == "key" else given[v.name] for v in executable.inputs]
        with np.errstate(all="ignore"), headroom():
            results = executable.machine(run, *args)
        self._out = executable.outputs([self._own(each) for each in results], run)
        return self._out

    def steps(
        self, runs: Iterable[Run], seed: int, first: int, bind: Callable[[int], None] | None = None
    ) -> Generator[Outputs, None, None]:
        """See `BoundStep.steps`."""
        return one_by_one(self, runs, seed, first, bind)

    def keep(self) -> None:
        """Make the results of the last step the values of the next one."""
        write_rows(self._out, self._values)
        for place in KEPT:
            new = getattr(self._out, place)
            known = {n: v for n, v in new.items() if n in self._values and not isinstance(v, RowArray)}
            self._values |= known

    def send(self, results: Mapping[str, Any]) -> Leaving:
        """Copy some results of the last step to the host while the next step runs; see `DeviceBoundStep.send`."""
        xp = self._driver.xp
        dense = {name: xp.ascontiguousarray(each).reshape(each.shape) for name, each in results.items()}
        self._copies.wait(self._driver.current().record())
        return send(self._driver, self._copies, dense)

    def has_finite_gradients(self) -> bool:
        """Whether all gradients of the last step are finite."""
        return all_finite(self._driver.xp, self._out)

    def put_tables(self, values: Mapping[str, Any]) -> bool:
        """Read and write the tables among `values` in place from now on; False if they are not on the GPU."""
        tables = {name: values[name] for name in self._tables}
        if not all(isinstance(each, self._driver.xp.ndarray) for each in tables.values()):
            return False
        self._values |= tables
        return True

    def _own(self, result: Any) -> Any:
        """A result as an array that `keep` does not change when it writes rows of tables."""
        xp = self._driver.xp
        array = result if isinstance(result, xp.ndarray) else xp.asarray(result)
        shared = any(xp.may_share_memory(self._values[name], array) for name in self._tables)
        return array.copy() if shared else array

    def drop_feeds(self) -> None:
        """Release the arrays of the feeds; the next step needs new ones."""
        self._taken = {}


def bind_parts(executable: Executable, driver: Driver, values: Mapping[str, Any]) -> PartedStep | None:
    """`executable` with its values on the GPU; None if no part of it is machine code, or if there is no memory.

    Raises ProgramError (feed_shape, feed_dtype), DeviceFault.
    """
    if executable.machine is None or not any(each.op.type == NATIVE for each in executable.machine.calls):
        return None
    try:
        return PartedStep(executable, driver, values)
    except MemoryError:
        return None
