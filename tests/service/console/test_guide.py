"""The guide in a headless browser: its search and its colours work under the content policy of the service."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import Depends, FastAPI

from service import problems
from service.http.query_params import known_parameters
from service.routes import guide
from tests.guide.build import built_site
from tests.service.console.conftest import THREAD
from tests.service.console.visit import Visit


@pytest.fixture
def guide_url(browser: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with the guide alone."""
    monkeypatch.setattr(guide, "GUIDE", Path(built_site(tmp_path_factory)))
    app = FastAPI(dependencies=[Depends(known_parameters)])
    problems.install(app)
    app.include_router(guide.router)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def tour(browser: Any, guide_url: str) -> Iterator[Visit]:
    """A visit that fails at its end if a page reported an error, broke the policy, or asked another host."""
    opened = THREAD.submit(Visit, browser, SimpleNamespace(url=guide_url)).result()
    yield opened
    THREAD.submit(opened.close).result()


def test_the_search_finds_a_word_and_its_page_opens(tour: Visit) -> None:
    page = tour.page
    page.goto(f"{tour.service.url}/guide/")
    page.click(".md-search__input")
    page.keyboard.type("cotangent", delay=5)
    tour.until("document.querySelectorAll('.md-search-result__item a').length > 3")
    found = page.eval_on_selector_all(".md-search-result__item a", "all => all.map(each => each.pathname)")

    assert "/guide/semantics/" in found
    with page.expect_navigation():
        page.keyboard.press("Enter")  # the first page opens, and marks the word
    tour.until("document.querySelector('mark')")
    assert "h=cotangent" in page.url


def test_the_colours_change_and_stay_on_the_next_page(tour: Visit) -> None:
    page = tour.page
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    page.goto(f"{tour.service.url}/guide/start/python/")
    before = page.evaluate(scheme)
    page.click("label[title='Dark colours']:visible")
    tour.until(f"{scheme} !== {before!r}")
    page.goto(f"{tour.service.url}/guide/api/sessions/")

    assert (before, page.evaluate(scheme)) == ("default", "slate")


def test_texts_have_contrast_in_light_and_dark(tour: Visit) -> None:
    page = tour.page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{tour.service.url}/guide/start/python/")
        tour.until("document.querySelector('.md-search-result__meta').textContent.includes('Type')")
        # the signs of links to headings appear under the mouse
        assert not [each for each in page.evaluate("checks.contrast()") if not each.endswith("¶")], scheme


def test_pages_fit_a_narrow_window_and_an_unknown_one_leads_back(tour: Visit) -> None:
    page = tour.page
    tour.expected.add(404)
    page.set_viewport_size({"width": 390, "height": 800})
    for name in ("", "start/curl/", "program/", "api/tapes/", "client/layers/"):
        page.goto(f"{tour.service.url}/guide/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    page.goto(f"{tour.service.url}/guide/nothing")
    assert page.get_attribute(".md-header__button.md-logo", "href") == "/guide/."
