"""The sample checkpoint of the documentation: a session of the regression before its first step."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import orjson
from fastapi import Request

from core.optim.optimizers import Optimizer
from service.caller import tenant
from service.checkpoints.checkpoints import PROGRAM, new_key
from service.objects.tensor_file import chunks
from service.problems import HttpProblem
from service.routes.state import checkpoints, objects, samples_lock
from service.schemas.examples import (
    REGRESSION,
    REGRESSION_ID,
    REGRESSION_PARAMETERS,
    SAMPLE_CHECKPOINT,
    SAMPLE_SETTINGS,
)
from service.store.checkpoints import StoredCheckpoint
from service.store.directory import refusal
from service.worker.checkpoint_state import FORMAT, STATE, CheckpointState, OptimizerWords, encode

__all__ = ["keep_sample"]


async def keep_sample(request: Request, id: str) -> None:
    """If `id` is that of the sample, make it unless the caller has it. Raises StorageError."""
    if id != SAMPLE_CHECKPOINT:
        return
    async with samples_lock(request):
        try:
            found = await checkpoints(request).get(tenant(), id)
            await asyncio.to_thread(lambda: checkpoints(request).open(found).close())
        except HttpProblem as problem:
            if problem.code not in ("not-found", "checkpoint-damaged"):
                raise
            await checkpoints(request).remove(tenant(), id)
            await _make(request)


async def _make(request: Request) -> None:
    words = SAMPLE_SETTINGS["optimizer"]
    document = Optimizer(words["type"], {name: value for name, value in words.items() if name != "type"}).document
    state = CheckpointState(
        format=FORMAT,
        program_id=REGRESSION_ID,
        seed=0,
        step=0,
        version=0,
        seq=0,
        accumulated=0,
        query={"loss": "loss", "parameter_list": None},
        optimizer=OptimizerWords(**document),
        shown=None,
        clip=None,
        loss_scale=None,
        slots=[],
        gradients={},
        layouts={},
    )
    tensors = {
        name: np.array(value["data"], value["dtype"]).reshape(value["shape"])
        for name, value in REGRESSION_PARAMETERS.items()
    }
    key, metadata = new_key(), {STATE: encode(state), PROGRAM: orjson.dumps(REGRESSION).decode()}
    try:
        written = await asyncio.to_thread(objects(request).write, key, chunks(tensors, metadata))
    except OSError as error:
        raise refusal(error, Path(objects(request).url)) from error
    about = {"labels": {}, "resumable": True, "loss": "loss", "targets": [], "optimizer": words}
    now = time.time()
    made = StoredCheckpoint(
        SAMPLE_CHECKPOINT, None, REGRESSION_ID, "sample", 0, key, written.size, written.sha256, about, now, None
    )
    await checkpoints(request).add(tenant(), made)
