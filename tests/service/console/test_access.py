"""The console for everyone: keys, names of controls, contrast, themes, narrow windows, and without a way out."""

from __future__ import annotations

from typing import Any

import pytest

from service.schemas.examples import REGRESSION_ID, SAMPLE_DATASET, SAMPLE_SESSION, WHILE_ID
from tests.service.console.visit import Visit

VIEWS = {
    "": "Overview",
    "programs": "Programs",
    "programs/new": "Register a program",
    f"programs/{WHILE_ID}": "Program",
    "sessions": "Sessions",
    f"sessions/new?program={REGRESSION_ID}": "Open a session",
    f"sessions/{SAMPLE_SESSION}": "Session",
    "jobs": "Jobs",
    "jobs/new": "Submit a job",
    "datasets": "Datasets",
    f"datasets/{SAMPLE_DATASET}": "sample",
    f"compare?ids={SAMPLE_SESSION}": "Compare",
    f"gradient?program={REGRESSION_ID}": "Gradient",
    "ops?search=matmul": "Ops",
    "ops/matmul": "matmul",
    "keys": "Keys and usage",
}
"""View, by the address in which it is shared -> its title."""


def settled(visit: Visit, view: str) -> Any:
    page = visit.page
    page.goto("about:blank")
    visit.go(view)
    visit.quiet()
    return page


def test_every_view_has_contrast_names_and_order_in_light_and_dark_and_fits_a_narrow_window(visit: Visit) -> None:
    found: dict[str, Any] = {}
    for view in VIEWS:
        page = settled(visit, view)
        assert visit.text("#main h1") == VIEWS[view]
        found[f"{view}: names"] = page.evaluate("checks.names()")
        found[f"{view}: contrast, light"] = page.evaluate("checks.contrast()")
        page.click("#theme")
        found[f"{view}: contrast, dark"] = page.evaluate("checks.contrast()")
        page.click("#theme")
        page.set_viewport_size({"width": 360, "height": 800})
        found[f"{view}: width"] = page.evaluate("checks.width()")
        page.set_viewport_size({"width": 1280, "height": 900})

    assert not {place: wrong for place, wrong in found.items() if wrong}


def test_fields_and_curves_differ_from_their_background(visit: Visit) -> None:
    page = visit.go("")
    for theme in ("light", "dark"):
        colours = page.evaluate(f"checks.colours('{theme}')")
        card = colours["--card"]
        for name in ("--field", "--accent", *(f"--series-{i}" for i in range(1, 9))):
            assert ratio(colours[name], card) >= 3, (theme, name)
        assert ratio(colours["--ink"], colours["--mark"]) >= 4.5, theme


def ratio(a: str, b: str) -> float:
    """The contrast of two colours (#rrggbb), as WCAG 2.2 defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_black_and_white_is_21() -> None:
    assert ratio("#000000", "#ffffff") == pytest.approx(21)
    assert ratio("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_everything_is_reached_by_keys_and_shows_its_focus(visit: Visit) -> None:
    page = settled(visit, f"sessions/new?program={REGRESSION_ID}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top >= 0")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert "sessions/new" in page.url
    wanted = page.evaluate("document.querySelectorAll('#main a, #main button, #main input, #main select').length")
    seen = set()
    for _ in range(wanted):
        page.keyboard.press("Tab")
        at, outline = page.evaluate("checks.focus()")
        assert outline != "none", at
        seen.add(at)
    assert len(seen) == wanted
    assert page.evaluate("document.activeElement.textContent") == "Open the session"


def test_a_view_is_chosen_and_a_session_opened_without_a_mouse(visit: Visit) -> None:
    page = settled(visit, "")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/#/sessions")
    visit.until("document.activeElement.id === 'main' && document.querySelector('h1')?.textContent === 'Sessions'")
    assert visit.text("#said") == "Sessions"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/sessions/new")
    page.wait_for_selector("form button.main")
    page.focus("#loss")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/sessions/ses_*")
    at = f"/v1/sessions/{page.url.rpartition('/')[2]}"
    page.goto("about:blank")
    visit.service.client.delete(at)


def test_the_list_of_shortcuts_opens_and_closes_by_keys(visit: Visit) -> None:
    page = visit.go("")
    page.keyboard.press("?")
    assert "Programs" in visit.text("dialog")
    assert page.evaluate("document.querySelector('dialog').matches(':modal')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("g")
    page.keyboard.press("a")
    visit.until("document.querySelector('h1')?.textContent === 'Ops'")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"


def test_the_theme_is_that_of_the_system_until_one_is_chosen(visit: Visit) -> None:
    page = visit.go("")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.emulate_media(color_scheme="dark")
    visit.until("document.documentElement.dataset.theme === 'dark'")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.reload()
    page.wait_for_selector("#main h1")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_the_menu_of_a_narrow_window_opens_and_closes(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 800})
    page = visit.go("")
    assert not page.is_visible("#nav")
    page.click("#menu")
    assert page.is_visible("#nav")
    assert page.get_attribute("#menu", "aria-expanded") == "true"
    page.click("#nav a[data-path=ops]")
    page.wait_for_selector("h1:text-is('Ops')")
    assert not page.is_visible("#nav")


def test_a_key_is_asked_for_and_sent_when_the_service_wants_one(visit: Visit) -> None:
    visit.expected.add(401)
    sent: list[str] = []

    def answer(route: Any) -> None:
        given = route.request.headers.get("authorization", "")
        sent.append(given)
        if given == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, content_type="application/problem+json", body='{"title": "Key needed"}')

    visit.page.route("**/v1/**", answer)
    visit.page.goto(f"{visit.service.url}/#/programs")
    page = visit.page
    page.fill("dialog input", "wrong")
    page.click("dialog button.main")
    page.wait_for_selector("dialog .wrong")
    page.fill("dialog input", "right")
    page.keyboard.press("Enter")
    page.wait_for_selector("#main h1")

    assert visit.text("#main h1") == "Programs"
    assert {"", "Bearer wrong", "Bearer right"} == set(sent)
    assert page.evaluate("[sessionStorage.length, Object.values(localStorage).includes('right')]") == [1, False]
    assert "right" not in page.url


def test_the_page_forbids_foreign_code_and_foreign_addresses(visit: Visit) -> None:
    page = visit.go("")
    headers = visit.service.client.get("/").headers
    assert "unsafe" not in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    tried = page.evaluate("checks.foreign()")
    assert tried == [None, "blocked", True]
    page.evaluate("window.violations = []")  # they were provoked
    provoked = ("content security policy", "trustedscript")
    visit.wrong = [each for each in visit.wrong if not any(word in each.lower() for word in provoked)]
