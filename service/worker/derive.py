"""New sessions from the values of a checkpoint: with other settings, or of another program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.ir.errors import ProgramError
from core.ir.suggest import near
from core.optim.initializers import named
from core.optim.loss_scaling import FACTOR, STREAK, LossScale
from core.optim.optimizers import REST, Optimizer
from service.worker.checkpoint_file import CheckpointFile
from service.worker.checkpoint_state import CheckpointState
from service.worker.given import Mistakes, check_values
from service.worker.opening import Opening, opening
from service.worker.program_cache import cached_program
from service.worker.sessions import INIT
from service.worker.snapshot import (
    PLACE,
    ROWS,
    SUM,
    Kind,
    add_wrong_type,
    asked_by,
    check_layouts,
    check_rows,
    gradient_sum,
    laid_out,
    saved_state,
    slot_types,
)
from service.worker.state import Answer, WorkerState
from service.worker.stored_values import loaded, unread

__all__ = ["derive"]

OF_LOSS, OF_TARGETS = ("loss", "parameter_list"), ("targets", "inputs")


def derive(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Create session ``args["id"]`` from parameters and states of the file ``args["key"]``, by name.

    args: id, program_id, document?, key, sha256?, flawed?.
      changes:         settings in place of those of the checkpoint: optimizer, clip, loss_scale, seed, and members of
                       the query.
      shown:           the optimizer of the new session in the words of the client.
      optimizer_state: whether optimiser state, step, version and seq go on, and, with the same program, the added-up
                       gradients. Else the session starts at step 0.
      missing:         "initialize" takes parameters that the checkpoint lacks from the program's `values`?, or draws
                       them with `initializers`; "refuse" refuses.
      extra:           "ignore" leaves out tensors that the program does not have; "refuse" refuses.
    tensors: parameters and states in place of those of the checkpoint.
    Raises ProgramError with all mistakes; ExecutionError (checkpoint_missing, checkpoint_damaged,
    storage_unavailable); OutOfMemory.
    """
    file = CheckpointFile(state, args["key"])
    saved = saved_state(file)
    keeps = args["optimizer_state"]
    if keeps and saved is None:
        message = "the checkpoint has no optimizer state; send optimizer_state: false"
        raise ProgramError(message, "bad_query", pointer="/optimizer_state")
    cached = cached_program(state, args)
    new = opening(cached, _asked(saved, args["changes"]) | {"program_id": args.get("program_id")})
    check_values(cached.program, tensors, args, roles={"parameter": INIT, "state": INIT})

    mistakes, kinds = Mistakes(), {name: Kind(*entry[:2]) for name, entry in file.entries.items()}
    values = _values_in(new, saved, kinds, args, tensors, mistakes)
    slots = _slots_in(new, saved, kinds, args["extra"] == "ignore", mistakes) if keeps and saved is not None else []
    remainders = {f"{name}/{REST}" for name in tensors}  # they belong to the value of the checkpoint
    slots = [name for name in slots if name not in remainders]
    sums = saved if keeps and saved is not None and saved.program_id == args.get("program_id") else None
    added = [] if sums is None else [n + end for n in sums.gradients for end in (SUM, ROWS) if n + end in kinds]
    if saved is not None:
        check_layouts(saved, kinds, mistakes)
    mistakes.raise_if_any()

    wanted = {*values, *slots, *added}
    left = [v for v in new.variables if v.name not in wanted and v.name not in tensors]
    lacking = {v.name for v in left if not named(v.name, args["initializers"])}
    own = unread(state, cached.program, args, {v.name for v in new.variables} - lacking)
    drawn = [v.type for v in left if v.name not in own]
    kept = sum(own.values()) + sum(entry[3] - entry[2] for name, entry in file.entries.items() if name in wanted)
    new.require(state, kept + new.slot_bytes(), drawn)
    read = file.tensors(args.get("sha256"), wanted)
    if sums is not None:
        check_rows(sums, read, mistakes)
        mistakes.raise_if_any()
    layouts = {} if saved is None else saved.layouts
    held = {name: state.xp.asarray(laid_out(value, layouts.get(name))) for name, value in read.items()}
    given = {name: held[name] for name in values} | {n: state.xp.asarray(value) for n, value in tensors.items()}
    given |= {name: state.xp.asarray(value) for name, value in loaded(state, args, own.keys()).items()}
    session = new.session(
        new.first_values(state, given, args["initializers"]),
        new.zero_slots(state) | {name: held[name] for name in slots},
    )
    session.shown = args.get("shown")
    if keeps and saved is not None:
        session.steps, session.version, session.seq = saved.step, saved.version, saved.seq
        session.seen, session.roomy = set(saved.seen), dict(saved.roomy)
    if sums is not None:
        session.gradients = gradient_sum(sums, held)
    state.sessions[args["id"]] = session
    return {**session.about(), "bytes": session.nbytes}, {}


def _asked(saved: CheckpointState | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the new session. Raises ProgramError (bad_query)."""
    found = {} if saved is None else asked_by(saved)
    own = dict(found.get("query", {}))
    given = changes["query"]
    dropped = OF_TARGETS if given.get("loss") else OF_LOSS if given.get("targets") else ()
    query = {**{name: value for name, value in own.items() if name not in dropped}, **given}
    if not query.get("loss") and not query.get("targets"):
        raise ProgramError("name a loss, or targets: the checkpoint has neither", "bad_query", pointer="/loss")
    return {**found, **changes, "query": query}


def _values_in(
    new: Opening,
    saved: CheckpointState | None,
    kinds: Mapping[str, Kind],
    args: Mapping[str, Any],
    given: Mapping[str, Any],
    mistakes: Mistakes,
) -> list[str]:
    """The parameters and states to read from the checkpoint."""
    other = () if saved is None else (*saved.slots, *(n + end for n in saved.gradients for end in (SUM, ROWS)))
    there = kinds.keys() - set(other)
    found = []
    for v in new.variables:
        if v.name in given:
            continue
        if v.name in there:
            add_wrong_type(mistakes, f"{v.role} {v.name!r}", v.name, v.type, kinds[v.name])
            found.append(v.name)
        elif args["missing"] != "initialize":
            message = f"the checkpoint has no value of {v.role} {v.name!r}; to draw it, send missing: 'initialize'"
            mistakes.add("feed_missing", message, PLACE, near(v.name, there))
    if args["extra"] != "ignore":
        names = {v.name for v in new.variables}
        for name in sorted(there - names):
            message = f"the program has no parameter or state {name!r}; to leave it out, send extra: 'ignore'"
            mistakes.add("feed_unknown", message, PLACE, near(name, names))
    return found


def _slots_in(
    new: Opening, saved: CheckpointState, kinds: Mapping[str, Kind], ignores: bool, mistakes: Mistakes
) -> list[str]:
    """The optimiser state to read from the checkpoint."""
    types = slot_types(new.cached, new.optimizer, new.loss_scale)
    if saved.loss_scale is None or LossScale.read(saved.loss_scale) != new.loss_scale:
        types = {name: type for name, type in types.items() if name not in (FACTOR, STREAK)}
    parameters = {v.name for v in new.cached.program.parameters}
    found = []
    before = Optimizer(saved.optimizer.type, saved.optimizer.attrs)
    trained = {owner for owner, _, slot in (each.rpartition("/") for each in saved.slots) if slot != REST}
    retrained = {name for name in trained & parameters if before.of(name).type != new.optimizer.of(name).type}
    for name in sorted(retrained):  # slots of one name may differ in meaning
        types_of = f"{before.of(name).type}, not {new.optimizer.of(name).type}"
        message = f"{name!r} was trained by {types_of}; to start without its state, send optimizer_state: false"
        mistakes.add("bad_query", message, PLACE)
    for name in saved.slots:
        wanted, owner = types.get(name), name.rpartition("/")[0]
        if owner in retrained:
            continue
        if name not in kinds:
            mistakes.add("feed_missing", f"the checkpoint has no value of optimizer state {name!r}", PLACE)
        elif wanted is not None:
            add_wrong_type(mistakes, f"optimizer state {name!r}", name, wanted, kinds[name])
            found.append(name)
        elif name not in (FACTOR, STREAK) and not (ignores and owner not in parameters):
            own = new.optimizer.of(owner).type if owner in parameters else "the program"
            message = f"{own} has no optimizer state {name!r}; to start without it, send optimizer_state: false"
            mistakes.add("feed_unknown", message, PLACE)
    return found
