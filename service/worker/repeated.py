"""The step that a session does again and again: what each would look up, check and make anew is settled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.compiler.compile import Outputs
from core.runtime.bound_step import KEPT, BoundStep, bind_step
from core.runtime.run import Run
from service.worker.programs import Compiled
from service.worker.running import limits_of
from service.worker.state import WorkerState

__all__ = ["Repeated", "repeated"]


@dataclass(slots=True)
class Repeated:
    """The last step of a session.

    fetch:   what was asked for besides the loss.
    version: that it led to; while it is the session's, nobody else has changed what the session keeps.
    bound:   to the arrays of the session, once it was done twice in a row and if it is machine code.
    """

    compiled: Compiled
    fetch: Sequence[str]
    version: int
    bound: BoundStep | None = None

    def serves(self, version: int, args: Mapping[str, Any], feeds: Mapping[str, Any]) -> bool:
        """Whether a call to a session of this version asks for the step; the feeds are in place then."""
        if self.bound is None or version != self.version or args["fetch"] != self.fetch or args.get("profile"):
            return False
        return self.bound.takes(feeds)

    def run(self, state: WorkerState, seed: int, step: int) -> Outputs:
        """As `running.run`; but the arrays are the session's, and `keep` makes them count. The limit of bytes was kept
        when it ran before."""
        assert self.bound is not None, "only a step that `serves` is run"
        state.stop.check()
        try:
            return self.bound.step(Run(np, limits_of(state)), seed, step)
        finally:
            self.bound.drop_feeds()

    def keep(self, version: int) -> None:
        """What the step gave are the values of the session from now on, which has this version."""
        assert self.bound is not None, "only a step that `serves` is run"
        self.bound.keep()
        self.version = version


def repeated(
    before: Repeated | None,
    version: int,
    compiled: Compiled,
    fetch: Sequence[str],
    values: Mapping[str, Any],
    out: Outputs,
) -> Repeated:
    """The step from `values` to `out`, bound to what it gave if it is the same as the one `before` it.

    version: of the session before the step.
    """
    again = Repeated(compiled, fetch, version + 1)
    if before is not None and before.version == version and before.compiled.executable is compiled.executable:
        held = dict(values)
        for place in KEPT:
            held |= getattr(out, place)
        again.bound = bind_step(compiled.executable, held)
    return again
