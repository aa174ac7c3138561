"""A spare worker process: it has loaded its modules, and takes the place of a worker on a GPU that is lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from service.engine.child import Child
from service.engine.devices import WorkerPlan

__all__ = ["Spare"]

log = logging.getLogger("backpass.engine")


class Spare:
    """At most one process, for any of the GPUs of the plans; none for workers on the processor.

    It does not touch a GPU before its worker starts: `Start` tells it which one is its own. Use it only from the thread
    of the event loop: the kernel kills a process when the thread that started it ends.
    """

    def __init__(self, handlers: str) -> None:
        self._handlers = handlers
        self._plan: WorkerPlan | None = None
        self._child: Child | None = None

    def serve(self, plans: Sequence[WorkerPlan]) -> None:
        """From now on keep a process for these plans."""
        self._plan = next((plan for plan in plans if plan.device == "cuda"), None)

    def fill(self) -> None:
        """Start the process, if there is none that lives."""
        if self._plan is None or (self._child is not None and self._child.is_alive):
            return
        self._drop()
        try:
            self._child = Child(self._plan, self._handlers)
        except OSError as error:  # a worker that is lost is then replaced by a new process
            log.warning("cannot start a spare worker: %s", error)

    def take(self, plan: WorkerPlan) -> Child | None:
        """The process, for a worker of `plan`; None if there is none that fits."""
        child = self._child
        if child is None or plan.device != "cuda" or not child.is_alive:
            return None
        self._child = None
        return child

    async def close(self) -> None:
        """End the process."""
        self._plan, child = None, self._child
        self._drop()
        if child is not None:
            await child.exit_status(1.0)

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.socket.close()
            self._child = None
