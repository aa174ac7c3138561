"""The end of the service in order: told to load balancers first, then new work is refused, then running calls end."""

from __future__ import annotations

import re
import time

from service.problems import HttpProblem

__all__ = ["Drain"]

WORK = re.compile(r"/v1(?:/|$)")
RETRY_S = 5
"""Seconds after which a client may send its request again: another process has taken over, or this one is back."""


class Drain:
    """Whether the service is about to end, and how far it is.

    announced: the signal came. /healthz/ready answers 503, everything else works.
    refusing:  requests below /v1 are refused; those that run may end.
    """

    def __init__(self) -> None:
        self.announced = self.refusing = False
        self._began = 0.0

    def announce(self) -> None:
        """The service is about to end. It can be called in a handler of a signal."""
        if not self.announced:
            self.announced, self._began = True, time.monotonic()

    def refuse(self) -> None:
        """From now on, no new work starts."""
        self.announce()
        self.refusing = True

    @property
    def seconds(self) -> float:
        """Time since the announcement."""
        return time.monotonic() - self._began if self.announced else 0.0

    def refusal(self, path: str) -> HttpProblem | None:
        """The problem for a new request of `path`, if it is refused. Health, documents and metrics stay available."""
        if not self.refusing or WORK.match(path) is None:
            return None
        detail = "the service is shutting down and accepts no new work"
        return HttpProblem("draining", detail, headers={"Retry-After": str(RETRY_S)})
