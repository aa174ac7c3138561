"""The settings of a new session: those of the request, and those of a checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from core.ir.errors import ProgramError
from core.optim.optimizers import OPTIMIZERS, Optimizer
from service.caller import tenant
from service.engine import EngineError
from service.problems import FieldError, HttpProblem, from_exception, wrong_member
from service.routes.named_programs import named_program, values_of
from service.routes.sample_checkpoint import keep_sample
from service.routes.state import checkpoints, programs
from service.schemas import sessions as schemas
from service.schemas.gradients import GradientOptions
from service.sessions.merge_patch import merged
from service.store.checkpoints import StoredCheckpoint
from service.store.program_text import ProgramText

__all__ = ["NewSession", "from_checkpoint", "optimizer_of", "reading_checkpoint"]

QUERY = {"loss", "targets", "inputs", "parameter_list", *GradientOptions.model_fields}
CHANGES = QUERY | {"optimizer", "clip", "clip_norm", "loss_scale", "init"}


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to open. op, args: the call of a worker, without given values. about: settings to show to clients."""

    op: str
    args: dict[str, Any]
    program: ProgramText
    about: dict[str, Any]


async def from_checkpoint(request: Request, asked: schemas.CreateSession, has_values: bool) -> NewSession:
    """A session that starts from a checkpoint. has_values: whether the request gives values of parameters.

    Raises HttpProblem 404, 409 for a damaged file, 422.
    """
    found = await _checkpoint(request, asked.from_checkpoint or "")
    resumable = found.about.get("resumable", False)
    if asked.program is not None or asked.program_id is not None:
        text, stored = await named_program(request, asked.program, asked.program_id)
    elif found.program_id:
        registered = await programs(request).get(tenant(), found.program_id)
        text = await checkpoints(request).program(found) if registered is None else registered.program
        stored = {} if registered is None else values_of(registered.values)
    else:
        raise wrong_member("/program_id", "the checkpoint is a file of parameters: name a program for them", "missing")
    is_same = text.id == found.program_id
    keeps = (is_same and resumable) if asked.optimizer_state is None else asked.optimizer_state
    given = asked.model_fields_set & CHANGES - ({"loss"} if asked.loss is None else set())
    file = {"key": found.key, "sha256": found.sha256}
    about: dict[str, Any] = {name: found.about.get(name) for name in ("loss", "targets", "optimizer")}
    if is_same and keeps and resumable and not given and not has_values:
        return NewSession("session.restore", file, text, about)

    optimizer = asked.optimizer
    if resumable:  # members without a type change the optimizer of the checkpoint
        optimizer = merged(about["optimizer"], optimizer) if "type" not in optimizer else optimizer
        optimizer = optimizer if "optimizer" in given else about["optimizer"]
    changes = {
        "query": {name: value for name, value in asked.query().items() if name in given},
        "optimizer": optimizer_of(optimizer).document,
        "clip": asked.clipping(),
        "loss_scale": asked.scaling(),
        "seed": asked.init.seed,
    }
    if resumable:
        kept = {
            "optimizer": "optimizer" in given,
            "clip": bool(given & {"clip", "clip_norm"}),
            "loss_scale": "loss_scale" in given,
            "seed": "seed" in asked.init.model_fields_set,
        }
        changes = {name: value for name, value in changes.items() if kept.get(name, True)}
    args = {
        **file,
        "changes": changes,
        "shown": optimizer,
        "missing": asked.missing,
        "extra": asked.extra,
        "optimizer_state": keeps,
        "initializers": asked.init.initializers,
        **stored,
    }
    if asked.loss is not None:
        about |= {"loss": asked.loss, "targets": []}
    elif asked.targets:
        about |= {"loss": None, "targets": asked.targets}
    return NewSession("session.derive", args, text, about | {"targets": about["targets"] or [], "optimizer": optimizer})


async def _checkpoint(request: Request, id: str) -> StoredCheckpoint:
    await keep_sample(request, id)
    return await _stored(request, id)


@asynccontextmanager
async def reading_checkpoint(request: Request, id: str | None) -> AsyncIterator[None]:
    """The block opens a session from a checkpoint, if given. Raises HttpProblem 404 if it is deleted meanwhile."""
    try:
        yield
    except (HttpProblem, EngineError) as error:
        if id is not None and from_exception(error).code == "checkpoint-damaged":
            await _stored(request, id)
        raise


async def _stored(request: Request, id: str) -> StoredCheckpoint:
    try:
        return await checkpoints(request).get(tenant(), id)
    except HttpProblem as problem:
        if problem.code != "not-found":
            raise
        raise wrong_member("/from_checkpoint", problem.detail, "unknown_checkpoint", "not-found") from None


def optimizer_of(given: dict[str, Any]) -> Optimizer:
    """The optimizer in the client's words. Raises HttpProblem 422."""
    if "type" not in given:
        place = FieldError("/optimizer/type", "missing", "is missing", suggestion=f"one of {', '.join(OPTIMIZERS)}")
        raise HttpProblem("invalid-request", "/optimizer/type: is missing", errors=[place])
    attrs = {name: value for name, value in given.items() if name != "type"}
    try:
        return Optimizer(str(given["type"]), attrs)
    except ProgramError as error:
        place = FieldError(f"/optimizer{error.pointer}", error.code, error.message, suggestion=error.suggestion)
        raise HttpProblem("invalid-request", error.message, errors=[place]) from None
