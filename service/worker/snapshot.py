"""Sessions as files: a saved session goes on bit for bit in any worker.

A file has all parameters, states, optimiser state and added-up gradients as tensors, and the rest of the session in its
metadata (`checkpoint_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError
from core.ir.precision import is_half
from core.ops.common.types import as_dtype
from core.optim.loss_scaling import LossScale
from core.optim.optimizers import STEPS, Optimizer, state_types
from core.runtime.sparse_rows import RowArray
from service.worker import checkpoint_state
from service.worker.checkpoint_file import CheckpointFile, written
from service.worker.checkpoint_state import FORMAT, STATE, CheckpointState, GradientRows, OptimizerWords
from service.worker.given import Mistakes
from service.worker.gradient_sum import GradientSum
from service.worker.opening import Opening, opening
from service.worker.program_cache import cached_program
from service.worker.programs import CachedProgram
from service.worker.session import Arrays, WorkerSession, session_of
from service.worker.state import Answer, WorkerState

__all__ = [
    "PLACE",
    "ROWS",
    "SUM",
    "Kind",
    "add_wrong_type",
    "asked_by",
    "check",
    "check_kinds",
    "check_layouts",
    "check_rows",
    "gradient_sum",
    "laid_out",
    "restore",
    "save",
    "saved_state",
    "slot_types",
]


PLACE = "/from_checkpoint"
"""JSON pointer to the checkpoint in the request that opens a session."""

SUM, ROWS = "@GRAD", "@GRAD@ROWS"
"""Endings of the names of added-up gradients and of their rows. No variable of a program has them."""


def save(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Write the session to the file ``args["key"]`` of the object store; the session does not change.

    args: id, key, about?: further strings for the metadata of the file, by name.
    Returns size and sha256 of the file, bytes of the parameters and states, and the session's numbers.
    Raises ExecutionError (storage_full, storage_unavailable, canceled, deadline_exceeded); then there is no file.
    """
    session = session_of(state, args)
    held = {**session.parameters, **session.states, **session.slots, **_arrays_of(session.gradients)}
    values = {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in held.items()}
    metadata = {**args.get("about", {}), STATE: checkpoint_state.encode(_state_of(session, values))}
    done = written(state, args["key"], values, metadata)
    return {**session.about(), "size": done.size, "sha256": done.sha256, "bytes": session.nbytes}, {}


def restore(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Create session ``args["id"]`` from the file ``args["key"]``, equal bit for bit to the saved one.

    args: id, program_id, document?, key, sha256?. All settings are those of the file.
    Raises InvalidProgram with all tensors that do not fit the program; ExecutionError (checkpoint_missing,
    checkpoint_damaged, storage_unavailable); OutOfMemory.
    """
    file = CheckpointFile(state, args["key"])
    saved = saved_state(file)
    if saved is None:
        raise ExecutionError("the file of the checkpoint has no state of a session", "checkpoint_damaged")
    cached = cached_program(state, args)
    new = opening(cached, asked_by(saved) | {"program_id": args.get("program_id")})
    mistakes, kinds = Mistakes(), {name: Kind(*entry[:2]) for name, entry in file.entries.items()}
    check_kinds(new, saved, kinds, mistakes)
    check_layouts(saved, kinds, mistakes)
    mistakes.raise_if_any()
    new.require(state, file.nbytes)
    values = file.tensors(args.get("sha256"))
    check_rows(saved, values, mistakes)
    mistakes.raise_if_any()

    held = {name: state.xp.asarray(laid_out(value, saved.layouts.get(name))) for name, value in values.items()}
    session = new.session(held, {name: held[name] for name in saved.slots})
    session.gradients, session.shown = gradient_sum(saved, held), saved.shown
    session.steps, session.version, session.seq = saved.step, saved.version, saved.seq
    session.seen, session.roomy = set(saved.seen), dict(saved.roomy)
    state.sessions[args["id"]] = session
    shown = {} if session.shown is None else {"optimizer": session.shown}
    return {**session.about(), "bytes": session.nbytes, **shown}, {}


def check(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Check the header of a file that a client sends. Its numbers are checked when it is restored.

    args: program_id, document?; state: JSON text; kinds: name -> [dtype, shape] of each tensor.
    Raises ProgramError with all mistakes.
    """
    saved = checkpoint_state.decode(args["state"])
    new = opening(cached_program(state, args), asked_by(saved) | {"program_id": args["program_id"]})
    new.optimizer.check_groups({v.name for v in new.cached.program.parameters if v.trainable})
    kinds = {name: Kind(as_dtype(dtype), tuple(shape)) for name, (dtype, shape) in args["kinds"].items()}
    mistakes = Mistakes()
    check_kinds(new, saved, kinds, mistakes)
    check_layouts(saved, kinds, mistakes)
    mistakes.raise_if_any()
    return {"step": saved.step, "seq": saved.seq, "optimizer": new.optimizer.document}, {}


# --- to a file ---------------------------------------------------------------------------------------------------


def _arrays_of(total: GradientSum) -> Arrays:
    """The arrays of added-up gradients by the names that they have in a file."""
    found: Arrays = {}
    for name, value in total.sums.items():
        sparse = isinstance(value, RowArray)
        found[name + SUM] = value.values if sparse else value
        if sparse:
            found[name + ROWS] = value.rows
    return found


def _state_of(session: WorkerSession, values: Arrays) -> CheckpointState:
    sums = session.gradients.sums
    return CheckpointState(
        format=FORMAT,
        program_id=session.asked["program_id"] or "",
        seed=session.seed,
        step=session.steps,
        version=session.version,
        seq=session.seq,
        accumulated=session.gradients.count,
        query=session.asked["query"],
        optimizer=OptimizerWords(**session.optimizer.document),
        shown=session.shown,
        clip=session.asked["clip"],
        loss_scale=session.asked["loss_scale"],
        slots=sorted(session.slots),
        gradients={n: GradientRows(list(g.shape) if isinstance(g, RowArray) else None) for n, g in sums.items()},
        layouts={name: axes for name, value in values.items() if (axes := _axes(value)) is not None},
        seen=sorted(session.seen),
        roomy=dict(sorted(session.roomy.items())),
    )


def _axes(array: Any) -> list[int] | None:
    """The axes in the order of memory, outermost first; None if that is the order of the shape.

    Products of matrices round differently for other orders.
    """
    if array.flags.c_contiguous:
        return None
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return axes if axes != sorted(axes) else None


# --- from a file -------------------------------------------------------------------------------------------------


def saved_state(file: CheckpointFile) -> CheckpointState | None:
    """The state in the metadata; None if there is none. Raises ExecutionError (checkpoint_damaged)."""
    text = file.metadata.get(STATE)
    try:
        return None if text is None else checkpoint_state.decode(text)
    except msgspec.DecodeError as error:
        raise ExecutionError(f"the state in the checkpoint is damaged: {error}", "checkpoint_damaged") from error


def asked_by(saved: CheckpointState) -> dict[str, Any]:
    """The settings of a saved session, as `opening` takes them."""
    found = {name: getattr(saved, name) for name in ("query", "clip", "loss_scale", "seed")}
    return found | {"optimizer": {"type": saved.optimizer.type, "attrs": saved.optimizer.attrs}}


def slot_types(cached: CachedProgram, optimizer: Optimizer, scale: LossScale | None) -> dict[str, TensorType]:
    """All optimiser state that a session may have."""
    found = {STEPS: TensorType((), "int64"), **(scale.slots if scale is not None else {})}
    for v in cached.program.parameters:
        own = state_types(optimizer.of(v.name), v.type)
        found |= {f"{v.name}/{slot}": type for slot, type in own.items()}
    return found


class Kind(NamedTuple):
    """Dtype and shape of a tensor."""

    dtype: np.dtype
    shape: tuple[int, ...]


def add_wrong_type(mistakes: Mistakes, what: str, name: str, wanted: TensorType, kind: Kind) -> None:
    """Add the mistake that the tensor `name` of a checkpoint does not have the `wanted` type. what: a noun with it."""
    if kind.dtype != as_dtype(wanted.dtype):
        mistakes.add("feed_dtype", f"{what} is {wanted}, but {kind.dtype} in the checkpoint", PLACE, value=name)
    elif kind.shape != wanted.shape:
        mistakes.add("feed_shape", f"{what} is {wanted}, but {list(kind.shape)} in the checkpoint", PLACE, value=name)


def check_kinds(new: Opening, saved: CheckpointState, kinds: Mapping[str, Kind], mistakes: Mistakes) -> None:
    """Add all tensors that the session lacks, cannot have, or has with another type."""
    left = dict(kinds)

    def take(what: str, name: str, wanted: TensorType | None) -> None:
        kind = left.pop(name, None)
        if kind is None:
            mistakes.add("feed_missing", f"the checkpoint has no value of {what}", PLACE, value=name)
        elif wanted is None:
            message = f"the checkpoint has {what}, but the session cannot have it"
            mistakes.add("feed_unknown", message, PLACE, value=name)
        else:
            add_wrong_type(mistakes, what, name, wanted, kind)

    for v in new.variables:
        take(f"{v.role} {v.name!r}", v.name, v.type)
    slots = slot_types(new.cached, new.optimizer, new.loss_scale)
    for name in saved.slots:
        take(f"optimizer state {name!r}", name, slots.get(name))
    trainable = {v.name: v.type for v in new.cached.program.parameters if v.trainable}
    for name, form in saved.gradients.items():
        table, what = trainable.get(name), f"the gradient of {name!r}"
        wanted = table and TensorType(table.shape, "float32" if is_half(table) else table.dtype)
        if form.shape is not None:
            rows = kinds.get(name + ROWS)
            length = rows.shape[0] if rows is not None and len(rows.shape) == 1 else 0
            take(f"the rows of {what}", name + ROWS, TensorType((length,), "int64"))
            if wanted and (wanted.rank == 0 or tuple(form.shape) != wanted.shape):
                message = f"{what} is {wanted}, but {form.shape} in the checkpoint"
                mistakes.add("feed_shape", message, PLACE, value=name + SUM)
            wanted = wanted and TensorType((length, *wanted.shape[1:]), wanted.dtype)
        take(what, name + SUM, wanted)
    for name in left:
        mistakes.add("feed_unknown", f"the program has no parameter or state {name!r}", PLACE, value=name)


def check_rows(saved: CheckpointState, values: Mapping[str, np.ndarray], mistakes: Mistakes) -> None:
    """Add sparse gradients whose rows are not distinct rows of the table in ascending order. Types are correct."""
    for name, form in saved.gradients.items():
        if form.shape is None:
            continue
        rows = values[name + ROWS]
        inside = not len(rows) or (rows[0] >= 0 and rows[-1] < form.shape[0])
        if not inside or not (np.diff(rows) > 0).all():
            message = f"the rows of the gradient of {name!r} are not ascending rows of a table {form.shape}"
            mistakes.add("index_out_of_range", message, PLACE, value=name + ROWS)


def check_layouts(saved: CheckpointState, kinds: Mapping[str, Any], mistakes: Mistakes) -> None:
    """Add orders of axes that are not those of a tensor."""
    for name, axes in saved.layouts.items():
        if name not in kinds or sorted(axes) != list(range(len(kinds[name].shape))):
            mistakes.add("feed_shape", f"{axes} are not the axes of {name!r}", PLACE, value=name)


def gradient_sum(saved: CheckpointState, held: Mapping[str, Any]) -> GradientSum:
    """The added-up gradients whose arrays are among `held`."""
    sums = {}
    for name, form in saved.gradients.items():
        value = held[name + SUM]
        sums[name] = value if form.shape is None else RowArray(held[name + ROWS], value, tuple(form.shape))
    return GradientSum(sums, saved.accumulated)


def laid_out(array: np.ndarray, axes: list[int] | None) -> np.ndarray:
    """`array` with its axes in this order of memory."""
    if axes is None:
        return array
    return np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))
