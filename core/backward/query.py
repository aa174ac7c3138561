"""Which gradients are wanted, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core.autodiff.hooks import Hook
from core.backward.options import Options, Unconnected
from core.cost.budget import Budget
from core.ir.errors import ProgramError
from core.ops.control.inner_blocks import LoopMemory

__all__ = ["GradientQuery"]


@dataclass(frozen=True, slots=True)
class GradientQuery:
    """Which gradients are wanted: of a scalar `loss` by parameters, or of `targets` by `inputs`.

    target_gradients: for each target True if its cotangent is given with each step, as ``target_gradients/<i>``,
    and False for ones; empty means ones for all.
    """

    loss: str | None = None
    parameter_list: tuple[str, ...] | None = None
    targets: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    target_gradients: tuple[bool, ...] = ()
    no_grad_set: tuple[str, ...] = ()
    unconnected: Unconnected = "null"
    hooks: tuple[Hook, ...] = ()
    checkpoints: tuple[str, ...] | Literal["auto"] | Budget = ()
    loop_memory: LoopMemory | Budget = "store"

    def __post_init__(self) -> None:
        if (self.loss is None) == (not self.targets):
            raise ProgramError("give either a loss or targets and inputs", "bad_query")
        if self.loss is not None and (self.inputs or self.target_gradients):
            raise ProgramError("inputs and target_gradients go with targets, not with a loss", "bad_query")
        if self.targets and self.parameter_list is not None:
            raise ProgramError("parameter_list goes with a loss, not with targets", "bad_query")

    @property
    def options(self) -> Options:
        """How the gradients are computed, whichever are asked for."""
        return Options(self.no_grad_set, self.unconnected, self.hooks, self.checkpoints, self.loop_memory)
