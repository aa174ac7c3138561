"""Steps with room for many sizes of their feeds (`core.compiler.room`), in the cache of a program."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.compiler.backends import CHOSEN
from core.compiler.compile import Executable
from core.compiler.room import larger_bytes, largest_with_room, room_for
from core.ir.errors import ExecutionError, ProgramError
from core.ir.exact import exact
from service.worker.compilation import CompilationPending
from service.worker.given import check_sizes
from service.worker.predictions import is_nearly_code
from service.worker.programs import CachedProgram, Prepared
from service.worker.step_kinds import ForwardStep, GradientStep, StepKind

__all__ = ["Roomy", "step_for_call"]

log = logging.getLogger("backpass.worker")

MOST_FITTING = 1000
"""Combinations of shapes of feeds that a program remembers as fitting together."""

MOST_JUDGED = 1000
"""Steps with room for which a program remembers whether they may run."""


class Roomy:
    """A step with room for feeds like these."""

    def __init__(self, cached: CachedProgram, kind: StepKind, feeds: Mapping[str, Any]) -> None:
        """Raises as `CachedProgram.shapes`."""
        self._cached, self._kind, self._shapes = cached, kind, dict(cached.shapes(feeds))
        self._room = room_for(cached.program, self._shapes)
        self._key = exact(("roomy", kind, self._room.key))

    def _compile(self) -> Executable:
        return self._kind.compile(self._cached.program, room=self._room)

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


def step_for_call(
    cached: CachedProgram, kind: GradientStep | ForwardStep, feeds: Mapping[str, Any], compile: str
) -> Prepared:
    """The step of a call that stands alone, with its member `compile`: "auto", "always" or "dynamic"."""
    roomy = Roomy(cached, kind, feeds).prepared() if compile == "dynamic" else None
    return roomy or cached.step(kind, feeds, repeated=compile != "auto")
