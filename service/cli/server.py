"""The server of `backpass serve`: its ports, and its orderly end after SIGTERM or SIGINT.

The end, within the grace period:

1. /healthz/ready answers 503 at once. Everything else works for BACKPASS_DRAIN_DELAY, so that load balancers notice.
2. New work is refused with 503 `draining`. Event streams and jobs are told to end, running calls may end.
3. Calls that take too long are canceled. Then sessions are saved.
4. The ports close and the workers end. The exit status is 0.

A second signal ends the process at once. Acknowledged writes are safe even then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from service.http.drain import Drain
from service.http.metrics_port import MetricsPort
from service.http.protocol import guarded
from service.http.tls import reload_tls
from service.settings import Settings

__all__ = ["Server"]

log = logging.getLogger("backpass.server")

RESERVE_S = 5.0
"""Part of the grace period, at most a quarter of it, for everything after the calls: sessions, jobs, workers."""

LEAVING_S = 5.0
"""Time from the orderly end of the service to that of its process, which a busy machine may slow down."""

CANCELED_S = 0.5
"""Time that canceled requests get to send their answers."""

BESIDE = {"streams": "close", "runner": "stop"}
"""Parts of the application that end beside the running calls, and the method by which each ends. The application itself
ends the others when all connections are closed; sessions are among them."""

BEHIND = {"operations": "drain", "idempotency": "drain"}
"""Parts that end behind the running calls: a call may still become an operation."""


class Server(uvicorn.Server):
    """The server of one application. Run it in the main thread, which receives the signals."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        common: dict[str, Any] = {"ws": "none", "log_config": None, "access_log": False, "server_header": False}
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=guarded(settings, app.state.admission, app.state.gatekeeper),
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                lifespan="on",
                timeout_graceful_shutdown=1,  # `shutdown` below has waited already
                **common,
            )
        )
        self._app, self._settings = app, settings
        self._drain: Drain = app.state.drain
        self._metrics: uvicorn.Server | None = None
        if settings.metrics_port:
            config = uvicorn.Config(
                MetricsPort(app, app.state.metrics),
                host=settings.metrics_host,
                port=settings.metrics_port,
                http=guarded(settings.model_copy(update={"allowed_hosts": "*"})),  # scrapers use any name
                lifespan="off",
                timeout_graceful_shutdown=1,
                **common,
            )
            config.load()
            self._metrics = uvicorn.Server(config)
            self._metrics.lifespan = config.lifespan_class(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            log.warning("a second signal ends the service at once")
            logging.shutdown()
            os._exit(128 + sig)
        self.should_exit = True
        self._drain.announce()
        # whatever goes wrong below, the kernel ends the process soon after the grace period
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self._settings.graceful_shutdown + 2.0)

    async def startup(self, sockets: Any = None) -> None:
        if self._settings.tls_cert is not None and self._settings.tls_key is not None and self.config.ssl is not None:
            again = partial(reload_tls, self.config.ssl, self._settings.tls_cert, self._settings.tls_key)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)
        if self._metrics is not None:
            await self._metrics.startup()
        await super().startup(sockets)

    async def shutdown(self, sockets: Any = None) -> None:
        grace = self._settings.graceful_shutdown
        reserve = min(RESERVE_S, grace / 4)
        self._drain.announce()
        log.info("the service ends within %g s", grace)
        await asyncio.sleep(min(self._settings.drain_delay, grace / 2) - self._drain.seconds)
        self._drain.refuse()
        left = grace - reserve - self._drain.seconds
        await asyncio.gather(*(self._tell(*part, left) for part in BESIDE.items()), self._calls(grace - reserve))
        left = grace - reserve - self._drain.seconds
        await asyncio.gather(*(self._tell(*part, left) for part in BEHIND.items()))
        if self._metrics is not None:
            await self._metrics.shutdown()
        await super().shutdown(sockets)
        log.info("the service has ended in %.1f s", self._drain.seconds)
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, LEAVING_S)

    async def _calls(self, until: float) -> None:
        """Wait for the end of the running requests; cancel those that still run `until` seconds after the signal."""
        tasks = self.server_state.tasks
        while tasks and (left := until - self._drain.seconds) > 0:
            await asyncio.wait(set(tasks), timeout=left)
        if tasks:
            log.warning("%d requests run too long and are canceled", len(tasks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(set(tasks), timeout=CANCELED_S)

    async def _tell(self, name: str, method: str, within: float) -> None:
        """Let one part of the application end its work, for `within` seconds at most."""
        part = getattr(self._app.state, name, None)
        end: Callable[[], Awaitable[None] | None] | None = getattr(part, method, None)
        if end is None:
            return
        try:
            async with asyncio.timeout(max(0.0, within)):
                waiting = end()
                if waiting is not None:
                    await waiting
        except TimeoutError:
            log.error("%s did not end within %.1f s", name, within)
        except Exception:
            log.exception("%s failed to end", name)
