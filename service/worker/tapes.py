"""Handlers about tapes: clients record programs op by op; the ops and their values stay in the worker between calls."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import orjson

from core.ir import Block, StackType, TensorType
from core.ir.errors import ExecutionError, ProgramError, escaped, pointing_to
from core.ir.lru import LRU
from core.runtime.reference import Interpreter
from core.tape import Appended, Gradients, MachineCode, Steps, Structure, Tape, TapeLimits
from service.worker.documents import wire_limits
from service.worker.given import FLAWED, Mistakes
from service.worker.program_cache import machine_for
from service.worker.running import check_answer_size, limits_of
from service.worker.state import Answer, WorkerState

__all__ = ["append", "create", "delete", "describe", "gradients", "program", "record", "renew", "values"]


STRUCTURE_OPS = 50_000
"""Most ops of all structures that one tape keeps."""

SHORT = 8
"""Fewest ops of a structure to keep: reading fewer takes no longer than finding them."""

PARAMETER, CONSTANT, SEED = "parameter/", "constant/", "target_gradient"


@dataclass(slots=True)
class WorkerTape:
    """A tape. version: increases with every change; seq: sequence number of the client's last call that changed it.

    structures: ops that were appended before, by the digest of their JSON form.
    """

    tape: Tape
    version: int = 0
    seq: int = 0
    structures: LRU[Structure] = field(default_factory=lambda: LRU(STRUCTURE_OPS, len))

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
        state.steps = Steps(state.tape_ops, _machine_code(state))
    limits = TapeLimits(state.settings["ops"], state.settings["tape_bytes"], wire_limits(state.settings))
    tape = Tape(args["mode"], seed=args["seed"], steps=state.steps, limits=limits, xp=state.xp)
    held = state.tapes[args["id"]] = WorkerTape(tape)
    return held.about(), {}


def describe(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    return _held(state, args).about(), {}


def append(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Release names, renew the tape if requested, append leaves and ops, then play back: all of it or, on an error,
    only the release.

    args: id, seq, renew, release, ops, stacked (constant -> names of its parts), structure (the digest of ops to
    append again, or None), returned ("all", "none", names; None for all if immediate, else none), backward (target and
    wrt, or None);
    tensors: ``parameter/<name>``, ``constant/<name>``, ``target_gradient``.
    """
    held, returned, compiled = _held(state, args), args["returned"], state.steps.compiled
    _refuse_flawed(args)
    tape, backward = held.tape, args["backward"]
    structure, digest = _structure(held, args)
    if returned is None:
        returned = "all" if tape.mode == "immediate" else "none"
    tape.release(args["release"])
    with _told_of_tensor():
        added = tape.extend(
            structure,
            renew=args["renew"],
            parameters=_under(PARAMETER, tensors),
            constants=_constants(args["stacked"], tensors),
            requested={"all": None, "none": ()}[returned] if isinstance(returned, str) else returned,
            backward=None if backward is None else (backward["target"], backward["wrt"], tensors.get(SEED)),
            limits=limits_of(state),
        )
    held.changed(args["seq"])
    if digest is not None:
        held.structures.put(digest, structure)
    result: dict[str, Any] = {} if digest is None else {"structure": digest}
    if added.places:
        result["first"] = added.places[0]
    if args["structure"] is None or not added.repeated:
        result["appended"] = _shown(tape.appended(added.places))
    if returned == "all":
        returned = [name for op in tape.appended(added.places) for name, t in op.outputs if isinstance(t, TensorType)]
    found = tape.evaluate([] if returned == "none" else returned)
    arrays = {f"value/{name}": value for name, value in found.values.items()}
    if added.gradients is not None:
        result |= _played(added.gradients)
        arrays |= _gradients(added.gradients)
    return result | {"compiled": state.steps.compiled > compiled} | held.about(), arrays


def _constants(stacked: Mapping[str, Sequence[str]], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The constants of a request by name. Raises ProgramError (duplicate_variable)."""
    found = _under(CONSTANT, tensors)
    stacks = {name: found.pop(name) for name in stacked}  # all of them first: a part may have the name of a stack
    for name, parts in stacked.items():
        for part, value in zip(parts, stacks[name], strict=True):
            if part in found:
                raise ProgramError(
                    f"{part!r} is given twice", "duplicate_variable", pointer=f"/stacked/{escaped(name)}"
                )
            found[part] = np.asarray(value)
    return found


def _structure(held: WorkerTape, args: Mapping[str, Any]) -> tuple[Structure, str | None]:
    """The ops to append and their digest, None for a few ops. Raises ProgramError (unknown_structure)."""
    asked, ops = args["structure"], args["ops"]
    if asked is not None:
        known = held.structures.get(asked)
        if known is None:
            raise ProgramError(
                "the tape does not know this structure any more",
                "unknown_structure",
                pointer="/structure",
                suggestion="send its ops again",
            )
        return known, asked
    if len(ops) < SHORT:
        return Structure(ops), None
    digest = hashlib.blake2b(msgspec.msgpack.encode(ops), digest_size=16).hexdigest()
    return held.structures.get(digest) or Structure(ops), digest


def values(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """The value of one variable, computed if necessary. args: id, name."""
    held, compiled = _held(state, args), state.steps.compiled
    found = held.tape.evaluate([args["name"]], limits_of(state))
    result = {"ran": list(found.ran), "compiled": state.steps.compiled > compiled}
    value = {"value": found.values[args["name"]]}
    check_answer_size(state, value)
    return result | held.about(), value


def gradients(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Gradients of a variable; changes nothing.

    args: id, target, wrt (None for all parameters), seed (a variable, or None); tensors: ``target_gradient``.
    """
    held, compiled = _held(state, args), state.steps.compiled
    _refuse_flawed(args)
    tape, limits = held.tape, limits_of(state)
    seed = tensors.get(SEED)
    if args["seed"] is None:
        with _told_of_tensor():
            found = tape.gradients(args["target"], args["wrt"], seed, limits)
    else:
        with pointing_to(f"/{SEED}"):
            seed = tape.evaluate([args["seed"]], limits).values[args["seed"]]
        found = tape.gradients(args["target"], args["wrt"], seed, limits)
    result = _played(found) | {"compiled": state.steps.compiled > compiled}
    arrays = _gradients(found)
    check_answer_size(state, arrays)
    return result | held.about(), arrays


@contextmanager
def _told_of_tensor() -> Iterator[None]:
    """Let an error about a cotangent point to the shape of the tensor that the request gives."""
    try:
        yield
    except ProgramError as error:
        if error.code == "target_grad_shape":
            error.pointer += "/shape"
        raise


def _played(found: Gradients) -> dict[str, Any]:
    return {
        "missing": found.missing,
        "played_back": list(found.played),
        "final": [{"variable": name, "after": place} for name, place in found.final],
        "ran": list(found.ran),
    }


def _gradients(found: Gradients) -> dict[str, Any]:
    return {"value": found.value} | {f"grad/{name}": value for name, value in found.gradients.items()}


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
    """The tape as a program document: JSON text in the tensor `program`."""
    held = _held(state, args)
    return held.about(), {"program": np.frombuffer(orjson.dumps(held.tape.write()), np.uint8)}


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


def _machine_code(state: WorkerState) -> MachineCode | None:
    """The compiler of tapes to machine code. It lets the call wait while it compiles. None if the worker has none."""
    if machine_for(state) == "never":
        return None
    from core.codegen.backend import CPU  # imported here, because it loads LLVM
    from core.runtime.native import native_interpreter

    def machine_code(key: Hashable, block: Block) -> Interpreter:
        if state.compilations is None:
            return native_interpreter(block, CPU)
        return state.compilations.result(("tape", key), lambda: native_interpreter(block, CPU))

    return machine_code


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
