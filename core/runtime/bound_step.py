"""A step of machine code with its arrays bound to it: between one step and the next only the feeds change.

`Executable.step` looks up, checks and makes some dozens of arrays, which takes longer than a small step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from core.ir import Variable
from core.ops.common.types import as_dtype
from core.runtime.executable import Executable, Outputs, checked, key_of
from core.runtime.native import Region, plain
from core.runtime.reference import Run

__all__ = ["KEPT", "BoundStep", "bound"]

KEPT = ("parameters", "optimizer_state", "states")
"""The results of a step that are values of the next one."""


class BoundStep:
    """Two arrays of each value that is kept, read and written by turns. One step at a time."""

    def __init__(self, executable: Executable, region: Region, values: Mapping[str, Any]) -> None:
        """As `bound` does."""
        inputs = executable.inputs
        count = len(inputs)
        self._feeds = [(i, v.name, v.type.shape, as_dtype(v.type.dtype)) for i, v in _of_role(inputs, "feed")]
        self._keys = [i for i, _ in _of_role(inputs, "key")]
        given = [None if v.role in ("feed", "key") else checked(v, values[v.name], np) for v in inputs]
        first = [a if a is None else plain(a) for a in given] + region.results()
        second = list(first)
        where = {v.name: i for i, v in enumerate(inputs)}
        for i, result in enumerate(executable.layout, count):
            if result.place in KEPT:
                read = where.get(result.name)
                if read is None:
                    second[i] = np.empty_like(first[i])
                else:
                    second[read], second[i] = first[i], first[read]
        self._region = region
        self._turns = [(region.given(each), executable.outputs(each[count:])) for each in (first, second)]
        self._turn = 0
        self._fed: list[Any] = [None] * count

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Put the feeds in place, for as long as the next `step` lasts or until others come; False if they are not
        exactly arrays of the types that the step is compiled for."""
        if len(feeds) != len(self._feeds):
            return False
        for i, name, shape, dtype in self._feeds:
            value = feeds.get(name)
            if value is not None and value is self._fed[i] and value.shape == shape:  # which may be set in place
                continue
            if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
                return False
            given = plain(value)
            self._put(i, given)
            self._fed[i] = value if given is value else None  # what was copied may hold something else next time
        return True

    def step(self, run: Run, seed: int, step: int) -> Outputs:
        """One step with the feeds that `takes` has put in place. The values stay what they are until `keep`.

        The arrays of the answer are used again by the step after the next one, if this one is kept, or else by the
        next. Raises ExecutionError.
        """
        for i in self._keys:
            self._put(i, key_of(seed, step))
        given, outputs = self._turns[self._turn]
        self._region.run(given, run)
        if run.messages:
            return replace(outputs, messages=tuple(run.messages), unsaid=run.unsaid)
        return outputs

    def keep(self) -> None:
        """What the last step gave are the values from now on."""
        self._turn = 1 - self._turn

    def drop_feeds(self) -> None:
        """Let go of the feeds' memory; the next step needs feeds of its own."""
        for i, *_ in self._feeds:
            self._fed[i] = None
            for given, _ in self._turns:
                given.drop(i)

    def _put(self, i: int, value: np.ndarray) -> None:
        for given, _ in self._turns:
            given.put(i, value)


def bound(executable: Executable, values: Mapping[str, Any]) -> BoundStep | None:
    """`executable` bound to its parameters and states; None if it is not all machine code, or works on rows of tables.

    values: of all that it keeps or reads but feeds, by name. Their arrays are written from now on.
    Raises ProgramError (feed_shape, feed_dtype).
    """
    region = executable.machine.direct if executable.machine is not None else None
    whole = all(each.place != "rows" and each.table is None for each in executable.layout)
    return BoundStep(executable, region, values) if whole and isinstance(region, Region) else None


def _of_role(inputs: tuple[Variable, ...], role: str) -> list[tuple[int, Variable]]:
    return [(i, v) for i, v in enumerate(inputs) if v.role == role]
