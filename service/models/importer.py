"""ONNX models become programs with values, in processes of their own with a limit of memory.

A model comes from a stranger. Whatever it does to the process that reads it (a crash of the parser, too much memory, no
end) fails its own request and nothing else.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.engine import DeadlineExceeded, EmbeddedPool, EngineError, RemoteError, Reply, WorkerLost, run_stateless
from service.machine import available_memory
from service.models.losses import option_of
from service.problems import FieldError, HttpProblem, from_remote
from service.settings import LEAST_WORKER_MEMORY, MIB, Settings, service_memory
from service.store.directory import refusal
from service.store.program_text import ProgramText
from service.store.program_values import NewValues

__all__ = ["Importer", "Read"]

HANDLERS = "service.models.handlers:HANDLERS"
MEMORY_BYTES = 4096 * MIB  # of the process, or half of a small machine


@dataclass(frozen=True, slots=True)
class Read:
    """A model that was read. about: inputs, outputs and loss: names of variables of the program."""

    program: ProgramText
    values: NewValues | None
    about: dict[str, Any]


class Importer:
    """Reads models. Its process starts with the first one, and reads one at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.data_dir / "spool"
        self._pool: EmbeddedPool | None = None
        self._starting = asyncio.Lock()
        self._preparing: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        if self._preparing is not None:
            await self._preparing
        async with self._starting:
            if self._pool is not None:
                await self._pool.stop()
                self._pool = None

    def prepare(self) -> None:
        """Start the process now if it does not run, so that it loads its modules while a model arrives."""
        if self._pool is None and self._preparing is None:
            self._preparing = asyncio.create_task(self._prepared(), context=Context())

    async def _prepared(self) -> None:
        try:
            await self._running()
        except EngineError:
            pass  # the call reports it
        finally:
            self._preparing = None

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """A new folder for the files of one request. Raises StorageError."""
        try:
            made = await asyncio.to_thread(self._made)
            try:
                yield made
            finally:
                shutil.rmtree(made, ignore_errors=True)  # not in a thread: a cancelled task cannot wait
        except OSError as error:
            raise refusal(error, self._settings.data_dir) from error

    def _made(self) -> Path:
        self._folder.mkdir(exist_ok=True)  # a lost data directory is not made again
        return Path(tempfile.mkdtemp(dir=self._folder))

    async def onnx(self, file: Path, loss: Mapping[str, Any] | None, trainable: list[str] | None, folder: Path) -> Read:
        """The model in `file`. loss: members of `core.onnx.Loss`. trainable: initializers to train, by default all that
        can be.

        folder: of this request, for the values.
        Raises HttpProblem 422 with all nodes that cannot be read, or for a model that ends its process; EngineError.
        """
        target = folder / "values.safetensors"
        args = {"path": str(file), "values": str(target), "loss": loss, "trainable": trainable}
        limit = self._settings.import_deadline
        pool = await self._running()
        try:
            reply = await run_stateless(pool, "onnx", args, deadline=limit)
        except RemoteError as error:
            raise _refused(error, loss) from error
        except WorkerLost as error:
            if not error.began:
                raise
            detail = f"the model cannot be read: its conversion ended two processes ({error.reason})"
            raise HttpProblem("limit-exceeded", detail, reason="conversion-ended") from error
        except DeadlineExceeded as error:
            if error.waited:
                raise
            detail = f"the model cannot be read within {limit:g} s"
            raise HttpProblem("limit-exceeded", detail, reason="conversion-deadline") from error
        return _read(reply, target)

    async def _running(self) -> EmbeddedPool:
        """The process. Raises EngineError if the machine has no memory for one."""
        async with self._starting:
            if self._pool is None:
                total = available_memory()
                memory = max(LEAST_WORKER_MEMORY, min(MEMORY_BYTES, (total - service_memory(total)) // 2))
                changed: dict[str, Any] = {"workers": 1, "device": "cpu", "compile": "never", "threads": 1}
                changed["worker_memory"] = memory
                changed["cancel_grace"] = 0.0  # a conversion keeps no state, so that it can be killed
                pool = EmbeddedPool(self._settings.model_copy(update=changed), HANDLERS)
                await pool.start()
                self._pool = pool
            return self._pool


def _read(reply: Reply, file: Path) -> Read:
    result = dict(reply.result)
    id, values = result.pop("id"), result.pop("values", None)
    text = reply.tensors["program"].tobytes()
    if values is None:
        return Read(ProgramText(id, text), None, result)
    return Read(ProgramText(id, text, values[0]), NewValues(file, *values), result)


def _refused(error: RemoteError, loss: Mapping[str, Any] | None) -> HttpProblem:
    if error.kind == "memory":
        return HttpProblem(
            "limit-exceeded", f"the model needs too much memory: {error.message}", reason="out-of-memory"
        )
    option = option_of(error.code, loss)
    if option is None:
        return from_remote(error, prefix="")
    suggestion = next((each.get("suggestion") for each in error.problem.get("problems", ())), None)
    field = FieldError("", error.code, error.message, suggestion=suggestion, parameter=f"query: {option}")
    return HttpProblem("invalid-request", error.message, errors=[field])
