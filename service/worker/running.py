"""One run of an executable in a worker, and what is answered of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.compile import Executable, GradientQuery, Outputs
from core.errors import ExecutionError, ProgramError
from core.hooks import Hook
from core.runtime.reference import RunLimits
from service.worker.programs import Compiled
from service.worker.state import WorkerState

__all__ = ["Returned", "answer_of", "limits_of", "query_from", "run"]

Returned = str | list[str]
"""Which gradients go back: "none", "norms", "all", or names."""


def query_from(document: Mapping[str, Any]) -> GradientQuery:
    """The query that a request asks for; its lists become tuples. Raises ProgramError (bad_query)."""
    members: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in document.items()}
    if "hooks" in members:
        members["hooks"] = tuple(Hook.read(each) for each in members["hooks"])
    return GradientQuery(**members)


def limits_of(state: WorkerState) -> RunLimits:
    """What one run may use, by the settings and by this call."""
    return RunLimits(
        max_trips=state.settings["loop_trips"],
        max_ops=state.settings["op_executions"],
        max_bytes=state.settings["tensor_bytes"],
        deadline=state.stop.deadline,
        should_stop=state.stop.should_stop,
    )


def run(state: WorkerState, executable: Executable, values: Mapping[str, Any], seed: int, step: int) -> Outputs:
    """Run `executable` on those of `values` that it reads, within the limits of the settings and of this call."""
    limits = limits_of(state)
    needed = {v.name: values[v.name] for v in executable.inputs if v.name in values}
    return executable.step(needed, seed=seed, step=step, limits=limits, xp=state.xp)


def answer_of(
    state: WorkerState, compiled: Compiled, out: Outputs, returned: Returned, require_finite: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said about `out`, and its arrays as ``loss`` and ``fetch/``, ``recorded/`` or ``grad/<name>``.

    A norm that is not finite is null, because JSON has no word for it.
    Raises ExecutionError (not_finite) if `require_finite` and something is not, ProgramError (bad_query) for gradients
    that nobody computed.
    """
    values = [*out.fetched.values(), *([] if out.loss is None else [out.loss])]
    norms = _norms(state, out.gradients)
    finite = all(_finite(state, v) for v in values) and all(
        math.isfinite(norm) or _finite(state, out.gradients[name]) for name, norm in norms.items()
    )
    if require_finite and not finite:
        raise ExecutionError("the loss, a gradient or a fetched value is not finite", "not_finite")
    result: dict[str, Any] = {"finite": finite, "missing": dict(out.missing), "compiled": compiled.fresh}
    if returned != "none" and norms:
        overall = math.sqrt(sum(norm * norm for norm in norms.values()))
        result["gradient_norms"] = {
            name: norm if math.isfinite(norm) else None for name, norm in {**norms, "global": overall}.items()
        }
    tensors = {f"fetch/{name}": value for name, value in out.fetched.items()}
    tensors |= {f"recorded/{name}": value for name, value in out.recorded.items()}
    if out.loss is not None:
        tensors["loss"] = out.loss
    for name in _wanted(returned, out):
        tensors[f"grad/{name}"] = out.gradients[name]
    return result, tensors


def _wanted(returned: Returned, out: Outputs) -> list[str]:
    if isinstance(returned, str):
        return list(out.gradients) if returned == "all" else []
    for name in returned:
        if name not in out.gradients and name not in out.missing:
            raise ProgramError(f"the gradient of {name!r} is to be returned, but is not computed", "bad_query")
    return [name for name in returned if name in out.gradients]


def _norms(state: WorkerState, gradients: Mapping[str, Any]) -> dict[str, float]:
    """The 2-norm of each gradient, summed in float64, and fetched from the device all at once."""
    if not gradients:
        return {}
    xp = state.xp
    with np.errstate(over="ignore"):  # a norm that overflows is infinite
        squares = [xp.square(gradient.astype("float64")).sum() for gradient in gradients.values()]
    host = state.to_host(xp.stack(squares))
    return {name: math.sqrt(square) for name, square in zip(gradients, host.tolist(), strict=True)}


def _finite(state: WorkerState, value: Any) -> bool:
    return value.dtype.kind in "biu" or bool(state.xp.isfinite(value).all())
