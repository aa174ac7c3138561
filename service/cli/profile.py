"""`backpass profile`: a step of a program from a file, run in this process, and where its time went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.analysis.numeric import random_values
from core.analysis.profile import profile_of
from core.compiler.compile import GradientQuery, bound, compile_gradient, compile_training
from core.ir.errors import ProgramError
from core.optim.optimizers import Optimizer
from core.runtime.times import Times
from core.wire import read
from service.formats import json_tensors as tensors

__all__ = ["profile_file"]


def profile_file(
    path: Path,
    loss: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimizer: str | None = None,
    steps: int = 10,
    interpret: bool = False,
) -> dict[str, Any]:
    """The profile of so many steps of the program in a file: a program, or the body of a request that has one.

    Values that the body gives are used; others are drawn at random, and integers are 0.
    shapes:    of feeds whose declaration leaves sizes open.
    optimizer: makes it a training step; else only gradients are computed.
    interpret: without machine code.
    Raises OSError or ValueError for a file that is no such thing, HttpProblem for tensors that are none, and CoreError.
    """
    try:
        body = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("the file holds no JSON object")
    program = read(body.get("program", body))
    given: dict[str, Any] = {}
    for member in ("feeds", "parameters", "states"):
        given |= tensors.decode_all(body.get(member, {}), pointer=f"/{member}")
    known = {v.name for v in program.feeds}
    if unknown := sorted(set(shapes or ()) - known):
        raise ProgramError(f"the program has no feed {unknown[0]!r}", "feed_unknown")
    sizes = {**{n: a.shape for n, a in given.items() if n in known}, **(shapes or {})}
    sized = bound(program, sizes)
    for v in sized.feeds:
        if not v.type.is_static and v.name not in given:
            raise ProgramError(
                f"{v.name!r} is {v.type}, which leaves a size open: give it as --shape {v.name}:...", "feed_missing"
            )
    values = random_values(sized, given, seed=0)
    query = GradientQuery(loss=loss or body.get("loss", "loss"))
    if optimizer is None:
        executable = compile_gradient(program, query, shapes=sizes)
    else:
        executable = compile_training(program, query, Optimizer(optimizer, {}), shapes=sizes)
    if not interpret:
        executable = executable.compiled(timed=True)
    values = {**executable.initial_state(), **values} if optimizer else values
    read_by_it = {v.name: values[v.name] for v in executable.inputs if v.name in values}
    executable.step(read_by_it)  # the first one makes room for what the others use
    times = Times()
    for step in range(steps):
        executable.step(read_by_it, step=step, times=times)
    return {"steps": steps, **profile_of(times)}
