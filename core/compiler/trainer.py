"""Training steps in a loop, in this process. Parameters and states stay in their buffers between the steps.

`Executable.step` takes and returns all values, as a service needs. Here each call takes only the feeds and returns only
the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.compiler.compile import Executable, Outputs
from core.ir.aligned import aligned_copy
from core.runtime.bound_step import KEPT, bind_step
from core.runtime.run import Run, RunLimits
from core.runtime.sparse_rows import RowArray

__all__ = ["Trainer"]


class Trainer:
    """A model in training.

    executable: from `compile_training`, with or without machine code.
    values:     parameters and states by name; missing optimiser state starts at zero.
    seed:       random ops draw from the seed and the number of the step.
    """

    def __init__(self, executable: Executable, values: Mapping[str, Any], seed: int = 0) -> None:
        self.steps = 0
        self._executable, self._seed = executable, seed
        first = {**executable.initial_state(), **values}
        self._values = {name: aligned_copy(np.asarray(value)) for name, value in first.items()}
        self._run = Run(np, RunLimits())
        self._bound = bind_step(executable, self._values)
        self._last = Outputs()
        self._kept = True

    def step(self, feeds: Mapping[str, Any]) -> float:
        """Run one step and return the loss before its update. A failed step changes no value.

        feeds: arrays of exactly the declared types.
        Raises ProgramError (feed_missing, feed_unknown, feed_shape, feed_dtype) or ExecutionError.
        """
        if self._bound is not None and self._bound.takes(feeds):
            self._run.ops_left = self._run.limits.max_ops
            self._last = self._bound.step(self._run, self._seed, self.steps)
            self._bound.keep()
            self._kept = False
        else:
            self._keep()
            known = {v.name for v in self._executable.inputs}
            held = {name: value for name, value in self._values.items() if name in known}
            self._last = self._executable.step({**held, **feeds}, self._seed, self.steps)
            self._kept = False
            self._keep(with_rows=True)
            self._bound = bind_step(self._executable, self._values)
        self.steps += 1
        return self._last.loss.item()

    def values(self) -> dict[str, Any]:
        """Copies of the current parameters, states and optimiser state."""
        self._keep()
        return {name: np.array(value) for name, value in self._values.items()}

    def _keep(self, with_rows: bool = False) -> None:
        """Make the results of the last step the current values, once.

        with_rows: whether to write the rows of tables that changed; a bound step has written them.
        """
        if self._kept:
            return
        self._kept = True
        results = {name: value for place in KEPT for name, value in getattr(self._last, place).items()}
        arrays = {name: np.array(value) for name, value in results.items() if not isinstance(value, RowArray)}
        self._values |= arrays  # copied first: a result may be a view of a table
        for name, value in results.items():
            if with_rows and isinstance(value, RowArray):
                value.write(self._values[name])
