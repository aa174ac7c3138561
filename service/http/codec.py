"""Calls to the codec processes: large bodies in, large answers out, while the event loop stays free."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import numpy as np

from service.engine import AnswerRoom, EmbeddedPool, Reply
from service.formats.json_tensors import TensorError
from service.formats.packed import PROGRAM, ExtractedTensor, packed, put_back
from service.problems import FieldError, HttpProblem
from service.settings import Settings
from service.store.program_text import ProgramText

__all__ = ["CODEC", "Codec"]

MEMORY_BYTES = 4 * 2**30  # of one codec process
HANDLERS = "service.codec.handlers:HANDLERS"


class Codec:
    """The codec processes of a service. They start with the first call."""

    def __init__(self, settings: Settings, room: AnswerRoom | None = None) -> None:
        """room: for the answers of the service, which large texts share."""
        self.room = AnswerRoom(settings.answer_bytes_in_flight) if room is None else room
        changed: dict[str, Any] = {
            "workers": settings.codec_processes,
            "device": "cpu",
            "compile": "never",
            "threads": 1,
        }
        changed["worker_memory"] = MEMORY_BYTES
        self.settings = settings.model_copy(update=changed)
        self._pool: EmbeddedPool | None = None
        self._starting = asyncio.Lock()

    async def stop(self) -> None:
        async with self._starting:
            if self._pool is not None:
                await self._pool.stop()
                self._pool = None

    async def document(self, body: np.ndarray) -> dict[str, Any]:
        """The document of a JSON body, with its tensors and its program in packed form. Raises HttpProblem."""
        return _document(await self._call("decode", {}, {"body": body}))

    async def header(self, header: np.ndarray, size: int) -> tuple[dict[str, Any], list[Any], dict[str, TensorError]]:
        """(document, entries, flaws) of the header of a safetensors body with `size` bytes of data.

        Raises HttpProblem.
        """
        reply = await self._call("header", {"size": size}, {"header": header})
        flaws = {name: TensorError(*error) for name, *error in reply.result.get("flaws", ())}
        return _document(reply), reply.result["entries"], flaws

    async def texts(self, tensors: dict[str, np.ndarray], base64: bool = False) -> dict[str, memoryview]:
        """Each tensor as JSON text."""
        reply = await self._call("encode", {"base64": base64}, tensors)
        return {name: text.data for name, text in reply.tensors.items()}

    async def drawn(self, answer: np.ndarray, form: str, title: str, static: str) -> memoryview:
        """A graph, as of `service.formats.graph.drawn`."""
        args = {"form": form, "title": title, "static": static}
        return (await self._call("draw", args, {"answer": answer})).tensors["text"].data

    async def _call(self, op: str, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Reply:
        if self._pool is None:
            async with self._starting:
                if self._pool is None:
                    pool = EmbeddedPool(self.settings, HANDLERS, self.room)
                    await pool.start()
                    self._pool = pool
        return await self._pool.call(op, args, tensors, deadline=self.settings.step_deadline)


CODEC: ContextVar[Codec | None] = ContextVar("codec", default=None)
"""The codec of the service that handles the current request; None in an application without one."""


def _document(reply: Reply) -> dict[str, Any]:
    if (problem := reply.result.get("problem")) is not None:
        code, detail, status, errors, extensions = problem
        raise HttpProblem(code, detail, status=status, errors=[FieldError(*each) for each in errors], **extensions)
    document = reply.result["document"]
    for i, (place, *error) in enumerate(reply.result["places"]):
        wrong = TensorError(*error) if error else None
        put_back(document, tuple(place), ExtractedTensor(reply.tensors.get(str(i)), wrong))
    if PROGRAM in reply.tensors:
        result, text = reply.result, reply.tensors[PROGRAM].tobytes()
        program = ProgramText(result["program_id"], text, result["program_values"])
        document[PROGRAM] = packed(program)
    return document
