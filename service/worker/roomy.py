"""Training steps with room for many sizes of their feeds (`core.compiler.room`), in the cache of a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from core.compiler.backends import CHOSEN
from core.compiler.compile import Clip, Executable, GradientQuery, LossScale, compile_training
from core.compiler.room import larger_bytes, largest_with_room, room_for
from core.ir.errors import ExecutionError, ProgramError
from core.ir.exact import exact
from core.optim.optimizers import Optimizer
from service.worker.compiling import CompilationPending
from service.worker.given import check_sizes
from service.worker.predictions import is_nearly_code
from service.worker.programs import CachedProgram, Prepared

__all__ = ["RoomyTraining"]

log = logging.getLogger("backpass.worker")

MOST_FITTING = 1000
"""Combinations of shapes of feeds that a program remembers as fitting together."""


class RoomyTraining:
    """The training step with room for feeds like these. The arguments are those of `CachedProgram.training`."""

    def __init__(
        self,
        cached: CachedProgram,
        query: GradientQuery,
        optimizer: Optimizer,
        clip: Clip | None,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None,
    ) -> None:
        self._cached, self._shapes = cached, dict(cached.shapes(feeds))
        self._room = room = room_for(cached.program, self._shapes)
        self._key = exact(("roomy", query, optimizer, clip, tuple(fetch), room.key, scale))
        self._differentiates_feeds = not set(self._shapes).isdisjoint(query.inputs)
        self._compile: Callable[[], Executable] = lambda: compile_training(
            cached.program, query, optimizer, clip, fetch, None, scale, open_rates=True, room=room
        )

    def begin(self) -> None:
        """Begin the compilation that a later `prepared` waits for."""
        if self._may_exist():
            self._cached.begin(self._key, self._compile)

    def prepared(self) -> Prepared | None:
        """The step, if nearly all of it is machine code of the CPU. Raises as `CachedProgram.training` does."""
        if not self._may_exist():
            return None
        cached, key = self._cached, self._key
        self._check_sizes()
        try:
            prepared = cached.compiled(key, self._compile, repeated=True)
        except (CompilationPending, ExecutionError):
            raise
        except ProgramError:  # its backward pass needs known sizes
            cached.rooms[key] = False
            return None
        except Exception:  # a fault of this code must not end sessions that have code for each shape
            log.exception("a step with room for many sizes cannot be compiled; each shape has code of its own")
            cached.rooms[key] = False
            return None
        if key not in cached.rooms:
            cached.rooms[key] = is_nearly_code(prepared.executable) and self._fits(prepared.executable)
        return prepared if cached.rooms[key] else None

    def _may_exist(self) -> bool:
        """Whether no rule or earlier attempt excludes the step."""
        if self._cached.machine != "auto" or not self._room.shapes or not CHOSEN.backend.runs_on(np):
            return False
        return self._cached.rooms.get(self._key, True) and not self._differentiates_feeds

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
