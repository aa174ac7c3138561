"""A visit to the console: a page, and everything that went wrong on it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.service.conftest import Served

__all__ = ["ROUTES", "Visit"]

ROUTES = tuple(
    re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path))
    for path in json.loads((ROOT / "openapi/openapi.json").read_text())["paths"]
)
CHECKS = Path(__file__).parent / "checks.js"


class Visit:
    """One tab of the browser on the console.

    wrong:    errors of the page, violations of its content policy, requests to other hosts, failed answers.
    expected: statuses of answers that the test provokes.
    """

    def __init__(self, browser: Any, service: Served, **options: Any) -> None:
        self.service = service
        self.wrong: list[str] = []
        self.expected: set[int] = set()
        given = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"} | options
        self.context = browser.new_context(**given)
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.page.add_init_script(path=CHECKS)
        self.pending: set[Any] = set()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", self._asked)
        for event in ("requestfinished", "requestfailed"):
            self.page.on(event, lambda request: self.pending.discard(request))
        self.page.on("response", self._answered)

    def _said(self, message: Any) -> None:
        # failed answers are judged by their status
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.partition("?")[0].endswith("/events"):
            self.pending.add(request)
        if not request.url.startswith((self.service.url, "data:", "blob:")):
            self.wrong.append(f"request to another host: {request.url}")

    def _answered(self, response: Any) -> None:
        if response.status < 400 or response.status in self.expected:
            return
        path = response.url.removeprefix(self.service.url).partition("?")[0]
        if any(route.fullmatch(path) for route in ROUTES) or not path.startswith("/v1/"):
            self.wrong.append(f"status {response.status}: {path}")

    def go(self, view: str, wait: str = "#main h1") -> Any:
        """Open a view, such as "sessions", and wait for `wait`."""
        self.page.goto(f"{self.service.url}/#/{view}")
        self.page.wait_for_selector(wait)
        return self.page

    def until(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until a JavaScript expression is true. Playwright's own waiting needs `eval`, which the page forbids."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(f"() => {{ try {{ return Boolean({condition}) }} catch {{ return false }} }}"):
            assert time.monotonic() < end, f"it does not become true: {condition}"
            self.page.wait_for_timeout(20)

    def quiet(self) -> None:
        """Wait until the page waits for no answer."""
        calm, end = 0, time.monotonic() + 60.0
        while calm < 4:
            assert time.monotonic() < end, [request.url for request in self.pending]
            self.page.wait_for_timeout(20)
            calm = 0 if self.pending else calm + 1

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def close(self) -> None:
        self.wrong += [f"policy: {each}" for each in self.page.evaluate("window.violations || []")]
        self.context.close()
        assert not self.wrong, self.wrong
