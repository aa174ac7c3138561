"""Handlers that examine a program: the cost of a step, and a numeric check of its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.analysis import analyse, check_gradients
from core.compiler.compile import GradientQuery
from core.ir.errors import ProgramError
from service.worker.programs import CachedProgram, cached_program
from service.worker.running import limits_of, query_from
from service.worker.state import WorkerState

__all__ = ["analysis", "check"]


def analysis(cached: CachedProgram, args: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The predicted cost of a step. args: program_id or document, query, shapes, trips."""
    feeds = {v.name for v in cached.program.feeds}
    for name in args["shapes"]:
        if name not in feeds:
            raise ProgramError(f"the program has no feed {name!r}", "feed_unknown")
    query = query_from(args["query"])
    return analyse(cached.program, query, args["shapes"], args["trips"], compiled=cached.machine != "never"), {}


def check(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A numeric check of gradients. args: program_id or document, query, samples, tolerance, seed; tensors: values."""
    cached = cached_program(state, args)
    query: GradientQuery = query_from(args["query"])
    if query.loss is None:
        raise ProgramError("a gradient check needs a loss", "bad_query")
    types = {v.name: v.type for v in cached.program.variables if v.role != "key"}
    for name, value in tensors.items():
        if name not in types:
            raise ProgramError(f"the program has no feed, parameter or state {name!r}", "feed_unknown")
        wanted = types[name]
        fits = len(value.shape) == wanted.rank and all(
            n in (-1, m) for n, m in zip(wanted.shape, value.shape, strict=True)
        )
        if not fits:
            raise ProgramError(
                f"{name!r} is declared as {wanted}, but its value has the shape {list(value.shape)}", "feed_shape"
            )
    found = check_gradients(
        cached.program,
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
