"""Fixtures: pools of two real worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from service.engine import EmbeddedPool
from service.settings import Settings

Pool = Callable[..., AbstractAsyncContextManager[EmbeddedPool]]


@pytest.fixture(params=[pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """uvloop, the event loop of the service; in `make test-all` also the one of Python."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture(scope="session")
def open_pool() -> Pool:
    """open_pool(workers=..., <setting>=...) is an async context manager that starts and stops a pool.

    Workers get much time to stop a call, so that none is lost on a busy machine: tests of a loss give less.
    """

    @asynccontextmanager
    async def opened(handlers: str = "tests.service.engine.handlers:HANDLERS", **settings: Any) -> AsyncIterator:
        chosen = {"device": "cpu", "workers": 2, "cancel_grace": 60.0, **settings}
        pool = EmbeddedPool(Settings(**chosen), handlers=handlers)
        await pool.start()
        try:
            yield pool
        finally:
            await pool.stop()

    return opened


@pytest.fixture
async def pool(open_pool: Pool) -> AsyncIterator[EmbeddedPool]:
    async with open_pool() as opened:
        yield opened


@pytest.fixture(scope="module")
async def shared_pool(open_pool: Pool) -> AsyncIterator[EmbeddedPool]:
    """One pool for the calls of a module that change nothing for the others. The module has its own `anyio_backend`."""
    async with open_pool() as opened:
        yield opened
