"""Steps with room for many sizes of their feeds (`core.compiler.room`), in the cache of a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from core.compiler.backends import CHOSEN
from core.compiler.compile import (
    Clip,
    Executable,
    GradientQuery,
    LossScale,
    compile_forward,
    compile_gradient,
    compile_training,
)
from core.compiler.room import Room, larger_bytes, largest_with_room, room_for
from core.ir.errors import ExecutionError, ProgramError
from core.ir.exact import exact
from core.optim.optimizers import Optimizer
from service.worker.compiling import CompilationPending
from service.worker.given import check_sizes
from service.worker.predictions import is_nearly_code
from service.worker.programs import CachedProgram, Prepared

__all__ = ["Roomy", "forward_for", "gradient_for", "roomy_gradient", "roomy_training"]

log = logging.getLogger("backpass.worker")

MOST_FITTING = 1000
"""Combinations of shapes of feeds that a program remembers as fitting together."""

MOST_JUDGED = 1000
"""Steps with room for which a program remembers whether they may run."""


class Roomy:
    """A step with room for feeds like these."""

    def __init__(
        self, cached: CachedProgram, feeds: Mapping[str, Any], kind: Any, compile: Callable[[Room], Executable]
    ) -> None:
        """kind: what tells the step from others of the program with equal room. Raises as `CachedProgram.shapes`."""
        self._cached, self._shapes = cached, dict(cached.shapes(feeds))
        self._room = room = room_for(cached.program, self._shapes)
        self._key = exact(("roomy", kind, room.key))
        self._compile: Callable[[], Executable] = lambda: compile(room)

    def begin(self) -> None:
        """Begin the compilation that a later `prepared` waits for."""
        if self._may_exist():
            self._cached.begin(self._key, self._compile)

    def prepared(self) -> Prepared | None:
        """The step, if nearly all of it is machine code of the CPU. Raises as `CachedProgram.compiled` does."""
        if not self._may_exist():
            return None
        cached, key = self._cached, self._key
        self._check_sizes()
        try:
            prepared = cached.compiled(key, self._compile, repeated=True)
        except (CompilationPending, ExecutionError):
            raise
        except ProgramError:  # its backward pass needs known sizes
            return self._judged(False, None)
        except Exception:  # a fault of this code must not end sessions that have code for each shape
            log.exception("a step with room for many sizes cannot be compiled; each shape has code of its own")
            return self._judged(False, None)
        if key in cached.rooms:
            return prepared
        return self._judged(is_nearly_code(prepared.executable) and self._fits(prepared.executable), prepared)

    def _judged(self, may_run: bool, prepared: Prepared | None) -> Prepared | None:
        """`prepared` if the step may run, which the program remembers; it can be judged again with the same result."""
        rooms = self._cached.rooms
        if len(rooms) >= MOST_JUDGED:
            rooms.clear()
        rooms[self._key] = may_run
        return prepared if may_run else None

    def _may_exist(self) -> bool:
        """Whether no rule or earlier attempt excludes the step."""
        if self._cached.machine == "never" or not self._room.shapes or not CHOSEN.backend.runs_on(np):
            return False
        return self._cached.rooms.get(self._key, True)

    def _check_sizes(self) -> None:
        """Refuse shapes of feeds that do not fit together: a run would not name the feeds."""
        fitting, shapes = self._cached.fitting, exact(tuple(self._shapes.items()))
        if shapes in fitting:
            return
        check_sizes(self._cached.program, self._shapes)
        if len(fitting) < MOST_FITTING:
            fitting.add(shapes)

    def _fits(self, executable: Executable) -> bool:
        """Whether the arrays with room keep the limits that hold for arrays of the sizes of a run."""
        largest, capacity = self._cached.largest, self._cached.capacity
        if largest is not None and largest_with_room(executable.interpreter.block) > largest:
            return False
        peak = executable.peak(as_machine_code=True).peak + larger_bytes(executable.inputs)
        return capacity is None or peak <= capacity


def roomy_training(
    cached: CachedProgram,
    query: GradientQuery,
    optimizer: Optimizer,
    clip: Clip | None,
    fetch: Sequence[str],
    feeds: Mapping[str, Any],
    scale: LossScale | None,
) -> Roomy:
    """The training step of `CachedProgram.training` with room."""
    kind = ("training", query, optimizer, clip, tuple(fetch), scale)
    return Roomy(
        cached,
        feeds,
        kind,
        lambda room: compile_training(
            cached.program, query, optimizer, clip, fetch, None, scale, open_rates=True, room=room
        ),
    )


def roomy_gradient(
    cached: CachedProgram,
    query: GradientQuery,
    fetch: Sequence[str],
    feeds: Mapping[str, Any],
    scale: LossScale | None = None,
    rounds: bool = True,
    adapts: bool = True,
) -> Roomy:
    """The gradients of `CachedProgram.gradient` with room."""

    def compile(room: Room) -> Executable:
        executable = compile_gradient(cached.program, query, fetch, None, scale, rounds, room)
        return replace(executable, adapts=adapts)

    return Roomy(cached, feeds, ("gradient", query, tuple(fetch), scale, rounds, adapts), compile)


def gradient_for(
    cached: CachedProgram, query: GradientQuery, fetch: Sequence[str], feeds: Mapping[str, Any], compile: str
) -> Prepared:
    """The gradients of a call that stands alone, with its member `compile`: "auto", "always" or "dynamic"."""
    roomy = roomy_gradient(cached, query, fetch, feeds, adapts=False).prepared() if compile == "dynamic" else None
    return roomy or cached.gradient(query, fetch, feeds, repeated=compile != "auto", adapts=False)


def forward_for(cached: CachedProgram, fetch: Sequence[str], feeds: Mapping[str, Any], compile: str) -> Prepared:
    """The evaluation of a call, with its member `compile`."""

    def made(room: Room) -> Executable:
        return replace(compile_forward(cached.program, fetch, room=room), adapts=False)

    roomy = Roomy(cached, feeds, ("forward", tuple(fetch)), made).prepared() if compile == "dynamic" else None
    return roomy or cached.forward(fetch, feeds, repeated=compile != "auto", adapts=False)
