"""Handlers that examine a program: the cost of a step, and a numeric check of its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.analysis import analyse, check_gradients
from core.compiler.compile import GradientQuery
from core.ir.errors import ProgramError
from service.worker.given import check_shapes, check_sizes, check_values, missing_inputs, with_sizes
from service.worker.program_cache import cached_program
from service.worker.programs import CachedProgram
from service.worker.running import limits_of, query_from
from service.worker.state import WorkerState
from service.worker.stored_values import viewed

__all__ = ["analysis", "check"]


def analysis(cached: CachedProgram, args: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The predicted cost of a step. args: program_id or document, query, shapes, trips."""
    check_shapes(cached.program, args["shapes"])
    query, compiled = query_from(args["query"]), cached.machine != "never"

    def analysed(shapes: dict[str, Any]) -> dict[str, Any]:
        return analyse(cached.program, query, shapes, args["trips"], compiled=compiled)

    return with_sizes(cached.program, args["shapes"], analysed), {}


def check(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A numeric check of gradients; tensors: values.

    args: program_id or document, query, samples, tolerance, seed, flawed?, values?.
    """
    cached = cached_program(state, args)
    query: GradientQuery = query_from(args["query"])
    if query.loss is None:
        raise ProgramError("a gradient check needs a loss", "bad_query")
    program = cached.program
    open_feeds = [v for v in program.feeds if not v.type.is_static]
    check_values(program, tensors, args, lambda: [v.name for v in open_feeds])
    missing_inputs(open_feeds, tensors)
    check_sizes(program, {v.name: tensors[v.name].shape for v in open_feeds})
    found = check_gradients(
        program,
        query.loss,
        viewed(state, program, args, tensors),
        query.parameter_list,
        samples=args["samples"],
        tolerance=args["tolerance"],
        seed=args["seed"],
        limits=limits_of(state),
    )
    each = {name: comparison.as_document() for name, comparison in found.items()}
    return {"passed": all(c.passed for c in found.values()), "parameters": each}, {}
