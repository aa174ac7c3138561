"""`backpass profile`: run a step of a program from a file in this process, and measure its kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.analysis.numeric import random_values
from core.analysis.profile import profile_of
from core.compiler.compile import GradientQuery, bind_shapes, compile_gradient, compile_training
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
    """The profile of `steps` steps of the program in a file, added up.

    path:      JSON file with a program, or with the body of a request that contains one. Values in the body are used;
               other floats are drawn at random, other integers are 0.
    shapes:    shapes of feeds with open sizes.
    optimizer: profile a training step with this optimizer; None profiles gradients only.
    interpret: run the reference executor instead of machine code.
    Raises OSError for an unreadable file, ValueError for invalid JSON, HttpProblem for invalid tensors, and CoreError.
    """
    try:
        body = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError(f"expected a JSON object, found {type(body).__name__}")
    program = read(body.get("program", body))
    given: dict[str, Any] = {}
    for member in ("feeds", "parameters", "states"):
        given |= tensors.decode_all(body.get(member, {}), pointer=f"/{member}")
    known = {v.name for v in program.feeds}
    if unknown := sorted(set(shapes or ()) - known):
        raise ProgramError(f"the program has no feed {unknown[0]!r}", "feed_unknown")
    sizes = {**{n: a.shape for n, a in given.items() if n in known}, **(shapes or {})}
    sized = bind_shapes(program, sizes)
    for v in sized.feeds:
        if not v.type.is_static and v.name not in given:
            raise ProgramError(
                f"{v.name!r} is {v.type} with an open size: set it with --shape {v.name}:...", "feed_missing"
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
    executable.step(read_by_it)  # the first step allocates the buffers, so it is not measured
    times = Times()
    for step in range(steps):
        executable.step(read_by_it, step=step, times=times)
    return {"steps": steps, **profile_of(times)}
