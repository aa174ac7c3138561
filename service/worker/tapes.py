"""Handlers about tapes: clients record programs op by op; the ops and their values stay in the worker between calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.ir import StackType, TensorType
from core.ir.errors import ExecutionError, ProgramError, escaped
from core.tape import Appended, Steps, Tape, TapeLimits
from service.worker.documents import wire_limits
from service.worker.given import FLAWED, Mistakes
from service.worker.running import limits_of
from service.worker.state import WorkerState

__all__ = ["append", "create", "delete", "describe", "gradients", "program", "record", "renew", "values"]

Answer = tuple[dict[str, Any], dict[str, Any]]

PARAMETER, CONSTANT, SEED = "parameter/", "constant/", "target_gradient"


@dataclass(slots=True)
class WorkerTape:
    """A tape. version: increases with every change; seq: sequence number of the client's last call that changed it."""

    tape: Tape
    version: int = 0
    seq: int = 0

    def about(self) -> dict[str, int]:
        return {
            "version": self.version,
            "step": self.tape.renewals,
            "seq": self.seq,
            "ops": len(self.tape),
            "bytes": self.tape.nbytes,
        }

    def changed(self, seq: int) -> None:
        self.version += 1
        self.seq = seq


def create(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Create an empty tape ``args["id"]``. args: id, mode, seed."""
    if state.steps is None:
        state.steps = Steps()
    limits = TapeLimits(state.settings["ops"], state.settings["tape_bytes"], wire_limits(state.settings))
    tape = Tape(args["mode"], seed=args["seed"], steps=state.steps, limits=limits, xp=state.xp)
    held = state.tapes[args["id"]] = WorkerTape(tape)
    return held.about(), {}


def describe(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    return _held(state, args).about(), {}


def append(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Release names, renew the tape if requested, then append leaves and ops, all or none of them.

    args: id, seq, renew, release, ops, returned ("all", "none", names; None for all if immediate, else none);
    tensors: ``parameter/<name>``, ``constant/<name>``.
    """
    held, returned = _held(state, args), args["returned"]
    _refuse_flawed(args)
    tape, compiled = held.tape, state.steps.compiled
    if returned is None:
        returned = "all" if tape.mode == "immediate" else "none"
    tape.release(args["release"])
    appended = tape.append(
        args["ops"],
        renew=args["renew"],
        parameters=_under(PARAMETER, tensors),
        constants=_under(CONSTANT, tensors),
        requested={"all": None, "none": ()}[returned] if isinstance(returned, str) else returned,
        limits=limits_of(state),
    )
    held.changed(args["seq"])
    if returned == "all":
        returned = [name for op in appended for name, type in op.outputs if isinstance(type, TensorType)]
    found = tape.evaluate([] if returned == "none" else returned)
    result = {"appended": _shown(appended), "compiled": state.steps.compiled > compiled}
    return result | held.about(), {f"value/{name}": value for name, value in found.values.items()}


def values(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """The value of one variable, computed if necessary. args: id, name."""
    held, compiled = _held(state, args), state.steps.compiled
    found = held.tape.evaluate([args["name"]], limits_of(state))
    result = {"ran": list(found.ran), "compiled": state.steps.compiled > compiled}
    return result | held.about(), {"value": found.values[args["name"]]}


def gradients(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Gradients of a variable; changes nothing.

    args: id, target, wrt (None for all parameters), seed (a variable, or None); tensors: ``target_gradient``.
    """
    held, compiled = _held(state, args), state.steps.compiled
    _refuse_flawed(args)
    tape, limits = held.tape, limits_of(state)
    seed = tensors.get(SEED)
    if args["seed"] is not None:
        seed = tape.evaluate([args["seed"]], limits).values[args["seed"]]
    try:
        found = tape.gradients(args["target"], args["wrt"], seed, limits)
    except ProgramError as error:
        raise error.at(None, f"/{SEED}/shape") if error.code == "target_grad_shape" else error from None
    result = {
        "missing": found.missing,
        "played_back": list(found.played),
        "final": [{"variable": name, "after": place} for name, place in found.final],
        "ran": list(found.ran),
        "compiled": state.steps.compiled > compiled,
    }
    arrays = {f"grad/{name}": value for name, value in found.gradients.items()}
    return result | held.about(), arrays | {"value": found.value}


def record(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Append the ops that compute gradients. args: id, seq, target, wrt, seed (a variable, or None)."""
    held, compiled = _held(state, args), state.steps.compiled
    tape = held.tape
    recorded, missing, appended = tape.record_gradients(args["target"], args["wrt"], args["seed"], limits_of(state))
    held.changed(args["seq"])
    known = [name for name in recorded.values() if name in tape.computed]
    found = tape.evaluate(known)
    result = {
        "recorded": recorded,
        "missing": missing,
        "appended": _shown(appended),
        "compiled": state.steps.compiled > compiled,
    }
    return result | held.about(), {f"value/{name}": value for name, value in found.values.items()}


def program(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """The tape as a program document."""
    held = _held(state, args)
    return {"program": held.tape.write()} | held.about(), {}


def renew(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Remove everything but the parameters from the tape. args: id, seq."""
    held = _held(state, args)
    held.tape.renew()
    held.changed(args["seq"])
    return held.about(), {}


def delete(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Delete the tape; does nothing if there is none."""
    state.tapes.pop(args["id"], None)
    state.free_device_memory()
    return {}, {}


def _held(state: WorkerState, args: Mapping[str, Any]) -> WorkerTape:
    held = state.tapes.get(args["id"])
    if held is None:
        raise ExecutionError("the worker does not have this tape", "session_unknown")
    return held


def _refuse_flawed(args: Mapping[str, Any]) -> None:
    """Raises InvalidProgram with the places of values that the service could not decode, if there are any."""
    mistakes = Mistakes()
    for name in args.get(FLAWED, ()):
        kind, slash, leaf = name.partition("/")
        mistakes.flawed(name, f"/{kind}s/{escaped(leaf)}" if slash else f"/{name}")
    mistakes.raise_if_any()


def _under(prefix: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _shown(appended: Sequence[Appended]) -> list[dict[str, Any]]:
    """The new ops for the client: their places, and their outputs with the types known so far."""
    shown = []
    for op in appended:
        outputs = []
        for name, type in op.outputs:
            depth = 0
            while isinstance(type, StackType):
                depth, type = depth + 1, type.element
            about: dict[str, Any] = {"name": name, "dtype": type.dtype, "shape": list(type.shape)}
            outputs.append(about | ({"stack_depth": depth} if depth else {}))
        shown.append({"op": op.place, "type": op.type, "outputs": outputs})
    return shown
