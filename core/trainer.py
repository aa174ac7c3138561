"""Training steps one after another, in this process: parameters and states stay where they are between the steps.

`Executable.step` takes all values and returns all values, which is what a service wants. A loop in Python wants less:
here each call takes the feeds and returns the loss.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.compile import Executable, key_of
from core.runtime.native import Region
from core.runtime.reference import Run, RunLimits

__all__ = ["Trainer"]

KEPT = ("parameters", "optimizer_state", "states")
"""The results of a step that are values of the next one."""


class Trainer:
    """A model in training.

    executable: from `compile_training`; its machine code is used if it has any.
    values:     parameters and states by name; optimiser state that is not there starts at zero.
    seed:       with the number of the step it decides what random ops draw.
    """

    def __init__(self, executable: Executable, values: Mapping[str, Any], seed: int = 0) -> None:
        self.steps = 0
        self._executable, self._seed = executable, seed
        self._values = {**executable.initial_state(), **values}
        self._run = Run(np, RunLimits())
        whole = all(r.place != "rows" and r.table is None for r in executable.layout)
        region = executable.machine.direct if executable.machine is not None else None
        self._fast = _Fast(executable, region, self._values) if whole and isinstance(region, Region) else None

    def step(self, feeds: Mapping[str, Any]) -> float:
        """One step; the loss before its update. A step that fails changes nothing.

        feeds: arrays of exactly the declared types.
        Raises ProgramError (feed_missing, feed_unknown, feed_shape, feed_dtype) or ExecutionError.
        """
        if self._fast is not None and self._fast.takes(feeds):
            self._run.ops_left = self._run.limits.max_ops
            loss = self._fast.step(self._run, self._seed, self.steps)
        else:
            known = {v.name for v in self._executable.inputs}
            held = self.values()
            values = {name: value for name, value in {**held, **feeds}.items() if name in known or name not in held}
            out = self._executable.step(values, self._seed, self.steps)
            for place in KEPT:
                held |= getattr(out, place)
            self._values = held
            if self._fast is not None:
                self._fast.put(held)
            loss = float(out.loss)
        self.steps += 1
        return loss

    def values(self) -> dict[str, Any]:
        """Parameters, states and optimiser state now. The arrays are copies."""
        if self._fast is not None:
            self._values |= self._fast.held()
        return {name: np.array(value) for name, value in self._values.items()}


class _Fast:
    """The arrays of a step that is one call: two of each value that is kept, read and written by turns."""

    def __init__(self, executable: Executable, region: Region, values: Mapping[str, Any]) -> None:
        self.region = region
        self._inputs = executable.inputs
        self._layout = executable.layout
        count = len(self._inputs)
        arrays: list[Any] = [None] * count
        self._feeds = [(i, v.name, v.type) for i, v in enumerate(self._inputs) if v.role == "feed"]
        self._keys = [i for i, v in enumerate(self._inputs) if v.role == "key"]
        where = {v.name: i for i, v in enumerate(self._inputs)}
        self._pairs = [
            (where[r.name], count + i) for i, r in enumerate(self._layout) if r.place in KEPT and r.name in where
        ]
        moved = {i for i, _ in self._pairs}
        for i, v in enumerate(self._inputs):
            if v.role not in ("feed", "key"):
                arrays[i] = np.array(values[v.name], order="C", copy=i in moved)
        arrays += [np.empty(v.shape, v.dtype) for v in region.plan.results]
        others = list(arrays)
        for old, new in self._pairs:
            others[old], others[new] = arrays[new], arrays[old]
        addresses = ctypes.c_void_p * len(arrays)
        self._turns = [(each, addresses(*map(id, each))) for each in (arrays, others)]
        # what a step reads, worked out once: short steps take no longer than that would
        self._calls = [(ctypes.addressof(given), each) for each, given in self._turns]
        self._turn = 0
        self._fed: list[Any] = [None] * count
        self._loss = count + next(i for i, r in enumerate(self._layout) if r.place == "loss")

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Put the feeds in place; False if that is not as simple as it should be."""
        if len(feeds) != len(self._feeds):
            return False
        for i, name, type in self._feeds:
            value = feeds.get(name)
            if value is not self._fed[i]:
                if not isinstance(value, np.ndarray) or (value.shape, value.dtype.name) != (type.shape, type.dtype):
                    return False
                value = np.require(value, requirements=["C", "A"])
                self._give(i, value)
                self._fed[i] = value
        return True

    def _give(self, i: int, value: np.ndarray) -> None:
        for arrays, given in self._turns:
            arrays[i], given[i] = value, id(value)

    def step(self, run: Run, seed: int, step: int) -> float:
        for i in self._keys:
            self._give(i, key_of(seed, step))
        given, arrays = self._calls[self._turn]
        self.region.call(given, run)
        self._turn = 1 - self._turn
        return arrays[self._loss].item()

    def held(self) -> dict[str, Any]:
        arrays, _ = self._turns[self._turn]
        return {self._inputs[i].name: arrays[i] for i, _ in self._pairs}

    def put(self, values: Mapping[str, Any]) -> None:
        arrays, _ = self._turns[self._turn]
        for i, _ in self._pairs:
            arrays[i][...] = values[self._inputs[i].name]
