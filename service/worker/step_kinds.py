"""The steps that a worker compiles, as data: each holds all that decides its code, except sizes of feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from core.compiler.compile import (
    Clip,
    Executable,
    GradientQuery,
    LossScale,
    compile_forward,
    compile_gradient,
    compile_training,
)
from core.compiler.room import Room
from core.ir import Program
from core.optim.optimizers import Optimizer

__all__ = ["ForwardStep", "GradientStep", "Sizes", "StepKind", "TrainingStep"]

Sizes = Mapping[str, Sequence[int]]
"""Feed with open sizes -> its shape."""


@dataclass(frozen=True, slots=True)
class GradientStep:
    """Gradients. fetch, rounds: as of `compile_gradient`. adapts: as of `Executable`."""

    query: GradientQuery
    fetch: tuple[str, ...]
    scale: LossScale | None = None
    rounds: bool = True
    adapts: bool = True

    def compile(self, program: Program, sizes: Sizes | None = None, room: Room | None = None) -> Executable:
        """The executable for feeds of these shapes, or for all feeds that `room` has room for."""
        found = compile_gradient(program, self.query, self.fetch, sizes, self.scale, self.rounds, room)
        return replace(found, adapts=self.adapts)


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """The variables `fetch`, without gradients. adapts: as of `Executable`."""

    fetch: tuple[str, ...]
    adapts: bool = True

    def compile(self, program: Program, sizes: Sizes | None = None, room: Room | None = None) -> Executable:
        """As `GradientStep.compile`."""
        return replace(compile_forward(program, self.fetch, sizes, room), adapts=self.adapts)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Forward pass, backward pass and optimiser. Learning rates are inputs of the step.

    optimizer: with open rates, as all optimisers of a worker (core.optim.rates).
    """

    query: GradientQuery
    optimizer: Optimizer
    clip: Clip | None
    fetch: tuple[str, ...] = ()
    scale: LossScale | None = None

    def compile(self, program: Program, sizes: Sizes | None = None, room: Room | None = None) -> Executable:
        """As `GradientStep.compile`."""
        return compile_training(
            program, self.query, self.optimizer, self.clip, self.fetch, sizes, self.scale, open_rates=True, room=room
        )


StepKind = GradientStep | ForwardStep | TrainingStep
