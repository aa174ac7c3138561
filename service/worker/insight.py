"""What a worker can tell about a program: what it costs and why, and whether its gradients are right."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.analysis import analyse, check_gradients
from core.compiler.compile import GradientQuery
from core.ir.errors import ProgramError
from service.worker.programs import known_program
from service.worker.running import limits_of, query_from
from service.worker.state import WorkerState

__all__ = ["analysis", "check"]


def analysis(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The analysis of a step. args: program_id or document, query, shapes, trips."""
    known = known_program(state, args)
    feeds = {v.name for v in known.program.feeds}
    for name in args["shapes"]:
        if name not in feeds:
            raise ProgramError(f"the program has no feed {name!r}", "feed_unknown")
    query = query_from(args["query"])
    return analyse(known.program, query, args["shapes"], args["trips"], compiled=known.machine != "never"), {}


def check(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A numeric check of gradients. args: program_id or document, query, samples, tolerance, seed; tensors: values."""
    known = known_program(state, args)
    query: GradientQuery = query_from(args["query"])
    if query.loss is None:
        raise ProgramError("a check needs a loss", "bad_query")
    types = {v.name: v.type for v in known.program.variables if v.role != "key"}
    for name, value in tensors.items():
        if name not in types:
            raise ProgramError(f"the program has no feed, parameter or state {name!r}", "feed_unknown")
        wanted = types[name]
        fits = len(value.shape) == wanted.rank and all(
            n in (-1, m) for n, m in zip(wanted.shape, value.shape, strict=True)
        )
        if not fits:
            raise ProgramError(f"{name!r} is {wanted}, but is given the shape {list(value.shape)}", "feed_shape")
    found = check_gradients(
        known.program,
        query.loss,
        tensors,
        query.parameter_list,
        samples=args["samples"],
        tolerance=args["tolerance"],
        seed=args["seed"],
        limits=limits_of(state),
    )
    each = {name: comparison.as_document() for name, comparison in found.items()}
    return {"passed": all(c.passed for c in found.values()), "parameters": each}, {}
