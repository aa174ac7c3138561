"""Whether the outputs of a run are finite, and the norms of its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from core.compiler.compile import Executable, Outputs
from core.ir.errors import ExecutionError, Location
from core.ir.stop import poll
from core.runtime.sparse_rows import RowArray
from service.worker.state import WorkerState

__all__ = ["judged", "with_global"]

CHUNK = 2**15
"""Elements of a gradient to square and sum at a time."""

MANY = 2**8 * CHUNK
"""Elements of a gradient that are summed between two checks whether the call must stop."""

SUMMED = (np.dtype("float32"), np.dtype("float64"))
"""Dtypes of the gradients that are tested by the sum of their squares."""


def judged(
    state: WorkerState,
    out: Outputs,
    *,
    with_norms: bool,
    require_finite: bool,
    has_finite_gradients: bool | None = None,
    executable: Executable | None = None,
) -> tuple[bool, dict[str, float]]:
    """Whether the loss, fetched values and gradients of `out` are finite, and the norms of the gradients.

    Raises ExecutionError (not_finite) if `require_finite` and a value is not finite. With a loss scale, which skips
    steps whose gradients are not finite, only the loss and the fetched values must be.

    with_norms:           whether the caller needs the norms. Without, there may be none.
    has_finite_gradients: if the caller knows it and needs no norms.
    executable:           of these outputs, so that an error can name the op of the first value that is not finite.
    """
    values = [*out.fetched.values(), *([] if out.loss is None else [out.loss])]
    norms: dict[str, float] = {}
    finite = values_are_finite = all(_finite(state, v) for v in values)
    if has_finite_gradients is not None:
        finite = finite and has_finite_gradients
    elif not with_norms and state.xp is np:
        finite = finite and _all_finite(_values(gradient) for gradient in out.gradients.values())
    else:
        gradients = {name: _values(gradient) for name, gradient in out.gradients.items()}
        norms = _norms(state, gradients)
        finite = finite and all(math.isfinite(norm) or _finite(state, gradients[name]) for name, norm in norms.items())
    if require_finite and not (values_are_finite if out.scaling else finite):
        place, name = _first_not_finite(state, out, with_gradients=not out.scaling)
        raise ExecutionError(
            f"{_IN_WORDS[place].format(name)} is not finite; other values may not be either",
            "not_finite",
            location=None if executable is None else _op_of(executable, place, name),
        )
    return finite, norms


_IN_WORDS = {
    "loss": "the loss",
    "fetched": "the fetched value {!r}",
    "gradients": "the gradient of {!r}",
    "sum": "a gradient",
}


def _first_not_finite(state: WorkerState, out: Outputs, with_gradients: bool) -> tuple[str, str]:
    """(place, name) of the loss, the first fetched value, or else the first gradient that is not finite.

    with_gradients: without a loss scale, which skips steps whose gradients are not finite.
    The place is "sum" if none of them is, because the caller knows it from a sum of several steps.
    """
    if out.loss is not None and not _finite(state, out.loss):
        return "loss", "loss"
    for name, value in out.fetched.items():
        if not _finite(state, value):
            return "fetched", name
    for name, gradient in out.gradients.items() if with_gradients else ():
        if not _finite(state, _values(gradient)):
            return "gradients", name
    return "sum", ""


def _op_of(executable: Executable, place: str, name: str) -> Location | None:
    """The place in the client's program of the op that computes a result; None for a leaf or a compiler's own op."""
    block = executable.interpreter.block
    names = [(each.place, "loss" if place == "loss" else each.name) for each in executable.layout]
    variable = dict(zip(names, block.results, strict=True)).get((place, name))
    return next((op.location for op in block.ops if variable in op.outputs), None)


def with_global(norms: Mapping[str, float]) -> dict[str, float | None]:
    """The norms and the joint norm; None for one that is not finite. Empty if there are no norms."""
    overall = {"global": math.sqrt(sum(norm * norm for norm in norms.values()))} if norms else {}
    return {name: norm if math.isfinite(norm) else None for name, norm in {**norms, **overall}.items()}


def _norms(state: WorkerState, gradients: Mapping[str, Any]) -> dict[str, float]:
    """The 2-norm of each gradient, summed in float64. One transfer fetches all norms from the device."""
    if not gradients:
        return {}
    xp = state.xp
    with np.errstate(over="ignore"):  # a norm that overflows is infinite
        if xp is np:
            return {name: math.sqrt(_square_sum(gradient)) for name, gradient in gradients.items()}
        squares = [xp.square(gradient.astype("float64")).sum() for gradient in gradients.values()]
    host = state.to_host(xp.stack(squares))
    return {name: math.sqrt(square) for name, square in zip(gradients, host.tolist(), strict=True)}


def _square_sum(array: np.ndarray) -> float:
    """The sum of squares, in chunks whose float64 copies stay in the cache."""
    flat, total = array.reshape(-1), 0.0
    for i in range(0, flat.size, CHUNK):
        if i % MANY == 0:
            poll()
        total += float(np.square(flat[i : i + CHUNK].astype("float64")).sum())
    return total


def _all_finite(arrays: Iterable[np.ndarray]) -> bool:
    """Whether all elements are finite. A finite sum of squares proves it faster than a test of each element."""
    for array in arrays:
        poll()
        if array.dtype in SUMMED and math.isfinite(np.vdot(array, array)):
            continue  # an infinite sum proves nothing: it may have overflowed
        if not np.isfinite(array).all():
            return False
    return True


def _finite(state: WorkerState, value: Any) -> bool:
    if value.ndim == 0 and isinstance(value, np.ndarray):
        return math.isfinite(value)  # a scalar loss: ten times faster than the array test
    return value.dtype.kind in "biu" or bool(state.xp.isfinite(value).all())


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, RowArray) else gradient
