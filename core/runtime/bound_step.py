"""A compiled step with its arrays bound to it: from one step to the next only the feeds change.

`Executable.step` looks up, checks and allocates dozens of arrays, which takes longer than a small step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from core.ir import Variable
from core.ops.common.types import as_dtype
from core.runtime.backend import Region
from core.runtime.executable import Executable, Outputs, checked, key_of
from core.runtime.run import Run

__all__ = ["KEPT", "BoundStep", "bind_step"]

SUMMED = (np.dtype("float32"), np.dtype("float64"))

LINE = 16
"""Elements of a float32 array in a cache line."""

KEPT = ("parameters", "optimizer_state", "states")
"""The results of a step that are inputs of the next step."""


class BoundStep:
    """Two arrays of each value in `KEPT`, read and written in turn. Runs one step at a time."""

    def __init__(self, executable: Executable, region: Region, values: Mapping[str, Any]) -> None:
        inputs = executable.inputs
        count = len(inputs)
        self._feeds = [(i, v.name, v.type.shape, as_dtype(v.type.dtype)) for i, v in _of_role(inputs, "feed")]
        self._keys = [i for i, _ in _of_role(inputs, "key")]
        given = [None if v.role in ("feed", "key") else checked(v, values[v.name], np) for v in inputs]
        results = region.results()
        self._flat = _side_by_side(executable, results)
        first = [a if a is None else region.readable(a) for a in given] + results
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
        self._readable = region.readable
        self._turns: list[tuple[Any, Outputs]] = [
            (region.bind(each), executable.outputs(each[count:])) for each in (first, second)
        ]
        self._turn = 0
        self._fed: list[Any] = [None] * count

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Bind the feeds for the next `step`; False if they are not arrays of exactly the declared types.

        Arrays that the code can read in place are not copied: they must not change until that step has ended.
        """
        if len(feeds) != len(self._feeds):
            return False
        for i, name, shape, dtype in self._feeds:
            value = feeds.get(name)
            if value is not None and value is self._fed[i] and value.shape == shape:  # a shape may be set in place
                continue
            if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
                return False
            given = self._readable(value)
            self._put(i, given)
            self._fed[i] = value if given is value else None  # the source of a copy may change
        return True

    def series(self, stacked: Mapping[str, np.ndarray]) -> Callable[[int], None]:
        """A function that binds element i of each of `stacked`, feeds of many steps, in place of another `takes`.

        stacked: arrays [count, *shape] of feeds whose elements `takes` has accepted before. The other feeds stay.
        """
        places = {name: i for i, name, *_ in self._feeds}
        whole = [(places[name], self._readable(value)) for name, value in stacked.items()]
        tables = [given for given, _ in self._turns]

        def bind(number: int) -> None:
            for i, value in whole:
                each = value[number, ...]
                self._fed[i] = None
                for given in tables:
                    given.put(i, each)

        return bind

    def has_finite_gradients(self) -> bool:
        """Whether all gradients of the last step are finite. They lie side by side, so that one sum shows it."""
        for flat, gradients in self._flat:
            if flat.dtype in SUMMED and math.isfinite(np.vdot(flat, flat)):
                continue  # an infinite sum proves nothing: it may have overflowed
            if not all(np.isfinite(each).all() for each in gradients):
                return False
        return True

    def step(self, run: Run, seed: int, step: int) -> Outputs:
        """Run one step with the feeds that `takes` has bound. The values change only when `keep` is called.

        The arrays of the outputs are overwritten by the step after the next one if this step is kept, else by the
        next step. Raises ExecutionError.
        """
        for i in self._keys:
            self._put(i, key_of(seed, step))
        given, outputs = self._turns[self._turn]
        self._region.run(given, run)
        if run.messages:
            return replace(outputs, messages=tuple(run.messages), unsaid=run.unsaid)
        return outputs

    def keep(self) -> None:
        """Make the results of the last step the values of the next one."""
        self._turn = 1 - self._turn

    def drop_feeds(self) -> None:
        """Release the arrays of the feeds; the next step needs new ones."""
        for i, *_ in self._feeds:
            self._fed[i] = None
            for given, _ in self._turns:
                given.drop(i)

    def _put(self, i: int, value: np.ndarray) -> None:
        for given, _ in self._turns:
            given.put(i, value)


def bind_step(executable: Executable, values: Mapping[str, Any]) -> BoundStep | None:
    """`executable` bound to its parameters and states; None unless it is a single region without sparse results.

    values: all inputs but feeds, by name. Their arrays are overwritten from now on.
    Raises ProgramError (feed_shape, feed_dtype).
    """
    region = executable.machine.region if executable.machine is not None else None
    whole = all(each.place != "rows" and each.table is None for each in executable.layout)
    return BoundStep(executable, region, values) if whole and region is not None else None


def _side_by_side(executable: Executable, results: list[np.ndarray]) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """Replace the gradients among `results` by views of one array for each dtype; returns these with their views."""
    places: dict[np.dtype, list[int]] = {}
    for i, each in enumerate(executable.layout):
        if each.place == "gradients":
            places.setdefault(results[i].dtype, []).append(i)
    found = []
    for dtype, indices in places.items():
        sizes = [-(-results[i].size // LINE) * LINE for i in indices]  # padded with zeros to whole cache lines
        flat = np.zeros(sum(sizes), dtype)
        start = 0
        for i, size in zip(indices, sizes, strict=True):
            shape = results[i].shape
            results[i] = flat[start : start + results[i].size].reshape(shape)
            start += size
        found.append((flat, [results[i] for i in indices]))
    return found


def _of_role(inputs: tuple[Variable, ...], role: str) -> list[tuple[int, Variable]]:
    return [(i, v) for i, v in enumerate(inputs) if v.role == role]
