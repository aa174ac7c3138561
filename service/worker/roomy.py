"""Training steps with room for many sizes of their feeds (`core.compiler.room`), in the cache of a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
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

__all__ = ["begin_roomy_training", "roomy_training"]

log = logging.getLogger("backpass.worker")

MOST_FITTING = 1000
"""Combinations of shapes of feeds that a program remembers as fitting together."""


def roomy_training(
    cached: CachedProgram,
    query: GradientQuery,
    optimizer: Optimizer,
    clip: Clip | None,
    fetch: Sequence[str],
    feeds: Mapping[str, Any],
    scale: LossScale | None,
) -> Prepared | None:
    """The training step with room for feeds like these, if nearly all of it is machine code of the CPU.

    The other arguments are those of `CachedProgram.training`. Raises as that does.
    """
    asked = _asked(cached, query, optimizer, clip, fetch, feeds, scale)
    if asked is None:
        return None
    key, compile = asked
    shapes = dict(cached.shapes(feeds))
    fit = exact(tuple(shapes.items()))
    if fit not in cached.fitting:  # else a run would find it, without the names of the feeds
        check_sizes(cached.program, shapes)
        if len(cached.fitting) < MOST_FITTING:
            cached.fitting.add(fit)
    try:
        prepared = cached.compiled(key, compile, repeated=True)
    except (CompilationPending, ExecutionError):
        raise
    except ProgramError:  # something in its backward pass needs known sizes
        cached.rooms[key] = False
        return None
    except Exception:  # a fault of this code must not end sessions that have code for each shape
        log.exception("a step with room for many sizes cannot be compiled; each shape has code of its own")
        cached.rooms[key] = False
        return None
    if key not in cached.rooms:
        cached.rooms[key] = is_nearly_code(prepared.executable) and _fits(cached, prepared.executable)
    return prepared if cached.rooms[key] else None


def _fits(cached: CachedProgram, executable: Executable) -> bool:
    """Whether the arrays with room keep the limits that hold for arrays of the sizes of a run."""
    if cached.largest is not None and largest_with_room(executable.interpreter.block) > cached.largest:
        return False
    peak = executable.peak(as_machine_code=True).peak + larger_bytes(executable.inputs)
    return cached.capacity is None or peak <= cached.capacity


def begin_roomy_training(
    cached: CachedProgram,
    query: GradientQuery,
    optimizer: Optimizer,
    clip: Clip | None,
    fetch: Sequence[str],
    feeds: Mapping[str, Any],
    scale: LossScale | None,
) -> None:
    """Begin the compilation that a later `roomy_training` with feeds like these waits for."""
    asked = _asked(cached, query, optimizer, clip, fetch, feeds, scale)
    if asked is not None:
        cached.begin(*asked)


def _asked(
    cached: CachedProgram,
    query: GradientQuery,
    optimizer: Optimizer,
    clip: Clip | None,
    fetch: Sequence[str],
    feeds: Mapping[str, Any],
    scale: LossScale | None,
) -> tuple[Hashable, Callable[[], Executable]] | None:
    """The key and the compilation of the step; None if there is none with room."""
    shapes = dict(cached.shapes(feeds))
    if cached.machine != "auto" or not shapes or not CHOSEN.backend.runs_on(np):
        return None
    room = room_for(cached.program, shapes)
    key = exact(("roomy", query, optimizer, clip, tuple(fetch), room.key, scale))
    if not cached.rooms.get(key, True) or not set(shapes).isdisjoint(query.inputs):
        return None

    def compile() -> Executable:
        return compile_training(cached.program, query, optimizer, clip, fetch, None, scale, open_rates=True, room=room)

    return key, compile
