"""One run of an executable in a worker, and what is answered of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from core.analysis.profile import profile_of
from core.compiler.compile import Executable, GradientQuery, Outputs
from core.ir.errors import ExecutionError, ProgramError
from core.runtime.reference import Message, RunLimits
from core.runtime.sparse_rows import RowArray
from core.runtime.times import Times
from service.worker.programs import Compiled
from service.worker.state import WorkerState

__all__ = ["Returned", "answer_of", "limits_of", "query_from", "run", "times_of", "told_of"]

PIECE = 2**15
"""Elements of a gradient that are squared and summed at once."""

SUMMED = (np.dtype("float32"), np.dtype("float64"))

Returned = str | list[str]
"""Which gradients go back: "none", "norms", "all", or names."""


def query_from(document: Mapping[str, Any]) -> GradientQuery:
    """The query that a request asks for. Raises ProgramError (bad_query, bad_hook)."""
    members = {name: value for name, value in document.items() if name != "target_gradients"}
    return GradientQuery.read(members, document.get("target_gradients", ()))


def limits_of(state: WorkerState) -> RunLimits:
    """What one run may use, by the settings and by this call."""
    return RunLimits(
        max_trips=state.settings["loop_trips"],
        max_ops=state.settings["op_executions"],
        max_bytes=state.settings["tensor_bytes"],
        deadline=state.stop.deadline,
        should_stop=state.stop.should_stop,
    )


def run(
    state: WorkerState,
    executable: Executable,
    values: Mapping[str, Any],
    seed: int,
    step: int,
    told: Collection[str] = (),
    times: Times | None = None,
) -> Outputs:
    """Run `executable` on those of `values` that it reads, within the limits of the settings and of this call.

    told:  gradients that the service hears of while the run goes on, each as soon as it is final.
    times: learns where the time goes.
    """
    state.stop.check()  # compiling may have taken all the time there was
    limits = limits_of(state)
    needed = {v.name: values[v.name] for v in executable.inputs if v.name in values}

    def tell(name: str, value: Any) -> None:
        if name in told:
            said: dict[str, Any] = {"name": name, "ready_at": executable.ready_at.get(name)}
            if isinstance(value, RowArray):
                said["shape"] = list(value.shape)
            state.tell(said, _as_tensors(name, value))

    when_final = tell if told else None
    return executable.step(needed, seed=seed, step=step, limits=limits, xp=state.xp, when_final=when_final, times=times)


def answer_of(
    state: WorkerState,
    compiled: Compiled,
    out: Outputs,
    returned: Returned,
    require_finite: bool = False,
    told: Collection[str] = (),
    times: Times | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said about `out`, and its arrays as ``loss`` and ``fetch/``, ``recorded/`` or ``grad/<name>``.

    Gradients that were `told` before are not said again; `times` are, as a profile.
    Of a gradient that is rows of a table these are the values;
    ``rows/<name>`` tells which rows, and `sparse` in what is said the shape of the table.
    A norm that is not finite is null, because JSON has no word for it.
    Raises ExecutionError (not_finite) if `require_finite` and something is not, ProgramError (bad_query) for gradients
    that nobody computed.
    """
    values = [*out.fetched.values(), *([] if out.loss is None else [out.loss])]
    tables = {name: grad for name, grad in out.gradients.items() if isinstance(grad, RowArray)}
    gradients = out.gradients | {name: table.values for name, table in tables.items()}
    norms: dict[str, float] = {}
    finite = all(_finite(state, v) for v in values)
    if returned == "none" and state.xp is np:
        finite = finite and _all_finite(gradients.values())
    else:
        norms = _norms(state, gradients)
        finite = finite and all(math.isfinite(norm) or _finite(state, gradients[name]) for name, norm in norms.items())
    refused = not all(_finite(state, v) for v in values) if out.scaling else not finite
    if require_finite and refused:
        raise ExecutionError("the loss, a gradient or a fetched value is not finite", "not_finite")
    scaling = {name: state.to_host(value).item() for name, value in out.scaling.items()}
    result: dict[str, Any] = {**scaling, "finite": finite, "missing": dict(out.missing), "compiled": compiled.fresh}
    if returned != "none" and norms:
        overall = math.sqrt(sum(norm * norm for norm in norms.values()))
        result["gradient_norms"] = {
            name: norm if math.isfinite(norm) else None for name, norm in {**norms, "global": overall}.items()
        }
    tensors = {f"fetch/{name}": value for name, value in out.fetched.items()}
    tensors |= {f"recorded/{name}": value for name, value in out.recorded.items()}
    if out.loss is not None:
        tensors["loss"] = out.loss
    returning = wanted(returned, out.gradients, out.missing)
    for name in returning:
        if name not in told:
            tensors |= _as_tensors(name, out.gradients[name])
    result["sparse"] = {name: list(tables[name].shape) for name in returning if name in tables}
    result["densified"] = [each.as_document() for each in out.densified]
    result["messages"] = [_said(each) for each in out.messages]
    result["messages_left_out"] = out.unsaid
    if compiled.executable.choice is not None:
        result["memory"] = compiled.executable.choice.as_document()
    if times is not None:
        result["profile"] = profile_of(times, on_cpu=state.device == "cpu")
    return result, tensors


def times_of(args: Mapping[str, Any]) -> Times | None:
    """Where the time of a call is noted whose `args` ask for a profile."""
    return Times() if args.get("profile") else None


def _said(message: Message) -> dict[str, Any]:
    """A message of `print` in words of JSON, which has none for what is not finite."""
    at = message.location
    return {
        "message": message.text,
        "at": None if at is None else {name: part for name, part in at.as_document().items() if name != "type"},
        "dtype": message.dtype,
        "shape": list(message.shape),
        "data": [v if isinstance(v, int) or math.isfinite(v) else str(v) for v in message.data],
    }


def _as_tensors(name: str, gradient: Any) -> dict[str, Any]:
    """A gradient as the tensors of an answer."""
    if isinstance(gradient, RowArray):
        return {f"grad/{name}": gradient.values, f"rows/{name}": gradient.rows}
    return {f"grad/{name}": gradient}


def told_of(compiled: Compiled, args: Mapping[str, Any]) -> list[str]:
    """The gradients that a call with these `args` {stream, returned} tells while it runs. Raises ProgramError."""
    if not args["stream"]:
        return []
    computed = {each.name for each in compiled.executable.layout if each.place == "gradients"}
    return wanted(args["returned"], computed, compiled.executable.missing)


def wanted(returned: Returned, computed: Collection[str], missing: Collection[str]) -> list[str]:
    """Those of the `computed` gradients that go back. Raises ProgramError (bad_query) for one that there is not."""
    if isinstance(returned, str):
        return list(computed) if returned == "all" else []
    for name in returned:
        if name not in computed and name not in missing:
            raise ProgramError(f"return_gradients names {name!r}, whose gradient is not computed", "bad_query")
    return [name for name in returned if name in computed]


def _norms(state: WorkerState, gradients: Mapping[str, Any]) -> dict[str, float]:
    """The 2-norm of each gradient, summed in float64, and fetched from the device all at once."""
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
    """Piece by piece: what is written in between stays in the cache."""
    flat = array.reshape(-1)
    pieces = (flat[i : i + PIECE].astype("float64") for i in range(0, flat.size, PIECE))
    return sum(float(np.square(piece).sum()) for piece in pieces)


def _all_finite(arrays: Iterable[np.ndarray]) -> bool:
    """Whether no element of any is NaN or infinite, told by a sum of squares where that is the faster way."""
    for array in arrays:
        if array.dtype in SUMMED and math.isfinite(np.vdot(array, array)):
            continue  # otherwise it may have overflowed, of which vdot says nothing
        if not np.isfinite(array).all():
            return False
    return True


def _finite(state: WorkerState, value: Any) -> bool:
    if value.ndim == 0 and isinstance(value, np.ndarray):
        return math.isfinite(value)  # a loss, in a tenth of the time
    return value.dtype.kind in "biu" or bool(state.xp.isfinite(value).all())
