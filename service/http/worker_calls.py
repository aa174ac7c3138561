"""Calls to workers: counted in the metrics, and without the program where the worker already has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from service.engine import Engine, EngineError, RemoteError, Reply
from service.engine.protocol import NO_TENSORS, PartCallback
from service.observability.metrics import Metrics
from service.observability.tracing import TRACE
from service.problems import from_exception

__all__ = ["ANSWER_BYTES", "STOP", "Calls"]

ANSWER_BYTES: ContextVar[int | None] = ContextVar("answer_bytes", default=None)
"""Limit of the tensors in the answer to the current request. Workers check it before a call takes effect."""

STOP: ContextVar[asyncio.Event | None] = ContextVar("stop", default=None)
"""Set by the client when the current request need not go on. A call that changes a session then ends between two of its
steps, and tells how many it has taken."""


class Calls:
    """The engine, and the metrics that count its calls, if any."""

    def __init__(self, engine: Engine, metrics: Metrics | None = None) -> None:
        self.engine = engine
        self.metrics = metrics

    async def call(
        self,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray] = NO_TENSORS,
        *,
        worker: str | None = None,
        deadline: float,
        on_part: PartCallback | None = None,
        stop: asyncio.Event | None = None,
    ) -> Reply:
        """As `Engine.call`, counted under `op`. Raises EngineError."""
        limit = ANSWER_BYTES.get()
        if limit is not None:
            args = {**args, "answer_bytes": limit}
        trace = TRACE.get()
        began = 0 if trace is None else time.monotonic_ns()
        try:
            reply = await self.engine.call(
                op, args, tensors, worker=worker, deadline=deadline, on_part=on_part, stop=stop
            )
        except EngineError as error:
            if trace is not None:
                trace.call(op, began, None, type(error).__name__)
            if self.metrics is not None and not _lacks_program(error):
                self.metrics.failed(op, from_exception(error).code)
            raise
        if trace is not None:
            trace.call(op, began, reply)
        if self.metrics is not None:
            self._count(op, reply)
        return reply

    async def with_program(
        self,
        op: str,
        program_id: str,
        document: bytes,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray] = NO_TENSORS,
        *,
        deadline: float,
        on_part: PartCallback | None = None,
    ) -> Reply:
        """Run `op` on a program in any worker. Most workers have the program, so the first try sends only its id."""
        give_up = time.monotonic() + deadline
        try:
            return await self.call(op, {**args, "program_id": program_id}, tensors, deadline=deadline, on_part=on_part)
        except RemoteError as error:
            if not _lacks_program(error):
                raise
        left = max(0.0, give_up - time.monotonic())
        args = {**args, "program_id": program_id, "document": document}
        return await self.call(op, args, tensors, deadline=left, on_part=on_part)

    def _count(self, op: str, reply: Reply) -> None:
        assert self.metrics is not None
        self.metrics.reply(op, reply)
        if "compiled" in reply.result:
            self.metrics.cache(hit=not reply.result["compiled"])
        if reply.result.get("finite") is False:
            self.metrics.nonfinite_results.inc()


def _lacks_program(error: EngineError) -> bool:
    return isinstance(error, RemoteError) and error.code == "program_unknown"
