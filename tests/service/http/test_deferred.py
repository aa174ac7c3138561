"""Operations and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from service.http.deferred import Deferred


def test_an_operation_whose_client_leaves_while_it_is_stored_begins_all_the_same():
    """Its row may be there already: without its task it would be running for ever."""
    begun: list[str] = []

    async def scene() -> None:
        entered, gate = asyncio.Event(), asyncio.Event()

        class Operations:
            async def begin(self, request: str, ending: asyncio.Task[Any], stop: asyncio.Event) -> str:
                entered.set()
                await gate.wait()
                begun.append(request)
                ending.cancel()
                return "opn_a"

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await asyncio.sleep(60)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            raise AssertionError("the client has left")

        headers = [(b"prefer", b"respond-async"), (b"content-length", b"2")]
        scope = {"type": "http", "method": "POST", "path": "/v1/gradients", "headers": headers, "state": {}}
        call = asyncio.create_task(Deferred(app, Operations())(scope, receive, send))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            await entered.wait()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        gate.set()
        await asyncio.sleep(0.01)

    asyncio.run(scene())

    assert begun == ["POST /v1/gradients"]
