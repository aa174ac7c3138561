"""Reuse of a session's last step: a step that repeats it needs no lookup, no check and no new buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.compiler.compile import Outputs
from core.optim.rates import Rates
from core.runtime.bound_step import KEPT, BoundStep
from core.runtime.memory_limit import MemoryLimit
from core.runtime.run import Run
from core.runtime.sparse_rows import RowArray
from service.worker.binding import bind
from service.worker.programs import Prepared
from service.worker.running import limits_of
from service.worker.state import WorkerState

if TYPE_CHECKING:
    from core.device.bound_step import DeviceBoundStep
    from core.device.parted_step import PartedStep

__all__ = ["LastStep", "last_step"]


@dataclass(slots=True)
class LastStep:
    """The last step of a session.

    fetch:   the requested values, not counting the loss.
    version: the session's version after the step. If the session still has it, nothing else changed the session.
    rates:   the learning rates of the step; a step with others runs the same code if their optimiser is the same.
    bound:   the step bound to the session's arrays. It exists after two equal steps in a row, if they are machine code.
    """

    compiled: Prepared
    fetch: Sequence[str]
    version: int
    rates: Rates
    bound: BoundStep | DeviceBoundStep | PartedStep | None = None

    def serves(self, version: int, rates: Rates, args: Mapping[str, Any], feeds: Mapping[str, Any]) -> bool:
        """Whether this step can run the call `args` on a session of this version. If so, it has taken the feeds."""
        if self.bound is None or version != self.version or args["fetch"] != self.fetch:
            return False
        if args.get("profile") or args.get("flawed"):
            return False
        if rates is not self.rates:
            if rates.optimizer != self.rates.optimizer:
                return False
            self.rates = rates
        return self.takes(feeds)

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Bind the feeds and the learning rates for the next run; see `BoundStep.takes`."""
        assert self.bound is not None, "serves was true"
        return self.bound.takes({**feeds, **self._open_rates})

    @property
    def _open_rates(self) -> Mapping[str, Any]:
        """The rates that the step reads: groups without a gradient have none."""
        known, inputs = self.compiled.executable.input_names, self.rates.inputs
        return inputs if inputs.keys() <= known else {n: rate for n, rate in inputs.items() if n in known}

    def run(self, state: WorkerState, seed: int, step: int) -> Outputs:
        """Run the step, as `running.run` does, on the session's arrays; `keep` then adopts its outputs.

        The limit of bytes needs no check: the same step kept it before. Raises RuntimeError unless `serves` was true.
        """
        if self.bound is None:
            raise RuntimeError("this step is not bound to the session's arrays")
        state.stop.check()
        try:
            return self.bound.step(Run(state.xp, limits_of(state)), seed, step)
        finally:
            self.bound.drop_feeds()

    def keep(self, version: int) -> None:
        """Adopt the outputs of the step as the session's values. version: the session's new version."""
        if self.bound is None:
            raise RuntimeError("this step is not bound to the session's arrays")
        self.bound.keep()
        self.version = version


def last_step(
    before: LastStep | None,
    version: int,
    rates: Rates,
    compiled: Prepared,
    fetch: Sequence[str],
    values: Mapping[str, Any],
    out: Outputs,
    memory: MemoryLimit | None = None,
) -> LastStep:
    """The record of the step from `values` to `out`; bound to `out` if it runs the same executable as `before`.

    version: the session's version before the step. rates: the learning rates of the step.
    memory: limits the arrays that a bound step keeps.
    """
    again = LastStep(compiled, fetch, version + 1, rates)
    if before is not None and before.version == version and before.compiled.executable is compiled.executable:
        held = dict(values)
        for place in KEPT:
            results: Mapping[str, Any] = getattr(out, place)
            held |= {name: each for name, each in results.items() if not isinstance(each, RowArray)}
        again.bound = bind(compiled.executable, held, memory)
    return again
