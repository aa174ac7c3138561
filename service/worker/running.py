"""One run of an executable in a worker, and the answer made from its outputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from core.analysis.profile import profile_of
from core.compiler.compile import Executable, GradientQuery, Outputs
from core.compiler.room import larger_bytes
from core.ir.errors import ExecutionError, ProgramError
from core.runtime.run import Message, Run, RunLimits
from core.runtime.sparse_rows import RowArray
from core.runtime.times import Times
from service.worker.finite import judged, with_global
from service.worker.given import check_inputs
from service.worker.memory import require
from service.worker.programs import Prepared
from service.worker.state import WorkerState

__all__ = [
    "ReturnedGradients",
    "answer_of",
    "check_answer_size",
    "limits_of",
    "message_of",
    "query_from",
    "run",
    "runs",
    "streamed_gradients",
    "times_of",
    "wanted",
]

MOST_INSIDE = 0.5
"""Seconds that one op may be predicted to take in the worker itself; a longer one runs in a child of the worker.

The prediction is for slow cases, so ops that take longer than this on a slow machine still end within `cancel_grace`.
"""

ReturnedGradients = str | list[str]
"""The gradients to return: "none", "norms", "all", or names."""


def query_from(document: Mapping[str, Any]) -> GradientQuery:
    """The query of a request. Raises ProgramError (bad_query, bad_hook)."""
    members = {name: value for name, value in document.items() if name != "target_gradients"}
    return GradientQuery.read(members, document.get("target_gradients", ()))


def limits_of(state: WorkerState) -> RunLimits:
    """The limits of one run, from the settings and from this call."""
    return RunLimits(
        max_trips=state.settings["loop_trips"],
        max_ops=state.settings["op_executions"],
        max_bytes=state.settings["tensor_bytes"],
        deadline=state.stop.deadline,
        should_stop=state.stop.should_stop,
        most_inside=MOST_INSIDE if state.device == "cpu" else None,
        memory=state.memory,
    )


def runs(state: WorkerState, count: int) -> Iterator[Run]:
    """A run for each of `count` steps. Raises ExecutionError as soon as the call must stop."""
    limits = limits_of(state)
    for _ in range(count):
        state.stop.check()
        yield Run(state.xp, limits)


def run(
    state: WorkerState,
    executable: Executable,
    values: Mapping[str, Any],
    seed: int,
    step: int,
    streamed: Collection[str] = (),
    times: Times | None = None,
    sent: dict[str, int | None] | None = None,
) -> Outputs:
    """Run `executable` on the `values` that it reads, within the limits of the settings and of this call.

    Raises InvalidProgram for missing values and for cotangents of a wrong type, OutOfMemory.

    streamed: gradients to send to the service during the run, each as soon as it is final.
    times:    records the time of each part of the run.
    sent:     receives the streamed gradients in the order of sending, and the op that completes each.
    """
    if executable.packs is not None:
        require(state.host_memory, larger_bytes(executable.inputs), "arrays with room for the feeds")
        values = executable.packs(values)
    check_inputs(executable.inputs, values)
    state.stop.check()  # compilation may have used up the deadline
    limits = limits_of(state)
    needed = {v.name: values[v.name] for v in executable.inputs if v.name in values}

    def send_gradient(name: str, value: Any) -> None:
        if name in streamed:
            result: dict[str, Any] = {"name": name, "ready_at": executable.ready_at.get(name)}
            if sent is not None:
                sent[name] = result["ready_at"]
            if isinstance(value, RowArray):
                result["shape"] = list(value.shape)
            state.send_part(result, _as_tensors(name, value))

    when_final = send_gradient if streamed else None
    return executable.step(needed, seed=seed, step=step, limits=limits, xp=state.xp, when_final=when_final, times=times)


def answer_of(
    state: WorkerState,
    compiled: Prepared,
    out: Outputs,
    returned: ReturnedGradients,
    require_finite: bool = False,
    streamed: Collection[str] = (),
    times: Times | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(JSON members, arrays) of the answer for `out`.

    The arrays are ``loss``, ``fetch/<name>``, ``recorded/<name>`` and ``grad/<name>``, without `streamed` gradients.
    For a sparse gradient, ``grad/<name>`` holds the values of some rows of the table, ``rows/<name>`` their numbers,
    and the member `sparse` the table's shape.
    A norm that is not finite becomes null, because JSON has no number for it. `times` become the member `profile`.
    Raises OutOfMemory if there is no memory for the answer, ExecutionError (not_finite) if `require_finite` and a value
    is not finite, ProgramError (bad_query) for returned gradients that were not computed.
    """
    finite, norms = judged(
        state, out, with_norms=returned != "none", require_finite=require_finite, executable=compiled.executable
    )
    tables = {name: grad for name, grad in out.gradients.items() if isinstance(grad, RowArray)}
    scaling = {name: state.to_host(value).item() for name, value in out.scaling.items()}
    result: dict[str, Any] = {**scaling, "finite": finite, "missing": dict(out.missing), "compiled": compiled.fresh}
    if returned != "none" and norms:
        result["gradient_norms"] = with_global(norms)
    tensors = {f"fetch/{name}": value for name, value in out.fetched.items()}
    tensors |= {f"recorded/{name}": value for name, value in out.recorded.items()}
    if out.loss is not None:
        tensors["loss"] = out.loss
    returning = wanted(returned, out.gradients, out.missing)
    for name in returning:
        if name not in streamed:
            tensors |= _as_tensors(name, out.gradients[name])
    check_answer_size(state, tensors)
    require(state.host_memory, sum([array.nbytes for array in tensors.values()]), "the answer")
    result["sparse"] = {name: list(tables[name].shape) for name in returning if name in tables}
    result["densified"] = [each.as_document() for each in out.densified]
    result["messages"] = [message_of(each) for each in out.messages]
    result["messages_left_out"] = out.unsaid
    if compiled.executable.choice is not None:
        result["memory"] = compiled.executable.choice.as_document()
    if times is not None:
        executable = compiled.executable
        peak = executable.peak(as_machine_code=executable.machine is not None).peak
        result["profile"] = profile_of(times, on_cpu=state.device == "cpu") | {"peak_bytes": peak}
    return result, tensors


def check_answer_size(state: WorkerState, tensors: Mapping[str, Any]) -> None:
    """Raises ExecutionError (answer_too_large) above the limit of this call. Call it before a session changes."""
    limit = state.answer_bytes
    if limit is None:
        return
    size = sum([value.nbytes for value in tensors.values()])
    if size > limit:
        raise ExecutionError(
            f"the tensors of the answer have {size} bytes, and the limit is {limit}; accept application/x-safetensors, "
            "whose limit is higher, or ask for fewer values",
            "answer_too_large",
        )


def times_of(args: Mapping[str, Any]) -> Times | None:
    """A recorder of times if `args` request a profile, else None."""
    return Times() if args.get("profile") else None


def message_of(message: Message) -> dict[str, Any]:
    """A message of the op `print` as JSON. Values that are not finite become strings."""
    at = message.location
    return {
        "message": message.text,
        "at": None if at is None else {name: part for name, part in at.as_document().items() if name != "type"},
        "dtype": message.dtype,
        "shape": list(message.shape),
        "data": [v if isinstance(v, int) or math.isfinite(v) else str(v) for v in message.data],
    }


def _as_tensors(name: str, gradient: Any) -> dict[str, Any]:
    """A gradient as tensors of an answer."""
    if isinstance(gradient, RowArray):
        return {f"grad/{name}": gradient.values, f"rows/{name}": gradient.rows}
    return {f"grad/{name}": gradient}


def streamed_gradients(compiled: Prepared, args: Mapping[str, Any]) -> list[str]:
    """The gradients that a call with `args` {stream, returned} sends during its run. Raises ProgramError."""
    if not args["stream"]:
        return []
    computed = {each.name for each in compiled.executable.layout if each.place == "gradients"}
    return wanted(args["returned"], computed, compiled.executable.missing)


def wanted(returned: ReturnedGradients, computed: Collection[str], missing: Collection[str]) -> list[str]:
    """The `computed` gradients to return. Raises ProgramError (bad_query) for a name that is in neither list."""
    if isinstance(returned, str):
        return list(computed) if returned == "all" else []
    for i, name in enumerate(returned):
        if name not in computed and name not in missing:
            text = f"return_gradients names {name!r}, whose gradient is not computed"
            raise ProgramError(text, "bad_query", pointer=f"/return_gradients/{i}")
    return [name for name in returned if name in computed]
