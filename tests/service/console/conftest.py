"""A headless browser for tests of the console: one for all tests, in a thread of its own.

Playwright's synchronous interface leaves an event loop in the thread that starts it, where `asyncio.run` of other
tests would fail. Therefore each test of this folder runs in the thread of the browser.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import Served
from tests.service.console.visit import Visit

THREAD = ThreadPoolExecutor(1, thread_name_prefix="browser")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool:
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    THREAD.submit(pyfuncitem.obj, **given).result()
    return True


def browser_path() -> str | None:
    """A browser of the machine: BACKPASS_TEST_BROWSER, or one on the path."""
    named = os.environ.get("BACKPASS_TEST_BROWSER")
    if named:
        return named if Path(named).is_file() else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium found; set BACKPASS_TEST_BROWSER to the path of one")

    def start() -> tuple[Any, Any]:
        driver = sync_api.sync_playwright().start()
        return driver, driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])

    driver, launched = THREAD.submit(start).result()
    yield launched
    THREAD.submit(lambda: (launched.close(), driver.stop())).result()


@pytest.fixture
def visit(browser: Any, service: Served) -> Iterator[Visit]:
    """A page of the console in a fresh context. At its end it must have reported no error."""
    opened = THREAD.submit(Visit, browser, service).result()
    yield opened
    THREAD.submit(opened.close).result()
