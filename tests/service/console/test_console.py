"""The console in a headless browser: every view, with clicks and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.schemas.examples import (
    REGRESSION,
    REGRESSION_FEEDS,
    REGRESSION_ID,
    SAMPLE_DATASET,
    SAMPLE_SETTINGS,
    WHILE_ID,
)
from tests.service.conftest import Served
from tests.service.console.visit import Visit


@pytest.fixture
def session(visit: Visit, service: Served) -> Iterator[str]:
    """A session with three steps."""
    at = service.client.post("/v1/sessions", json=SAMPLE_SETTINGS).headers["location"]
    for _ in range(3):
        service.client.post(f"{at}/steps", json={"feeds": REGRESSION_FEEDS, "return_gradients": "norms"})
    yield at.rpartition("/")[2]
    visit.expected.add(410)  # the page may ask for its session until it is closed
    service.client.delete(at)


def test_every_view_opens_from_the_navigation(visit: Visit) -> None:
    page = visit.go("")
    for link in page.query_selector_all("#nav a"):
        title = link.inner_text()
        link.click()
        visit.until(f"document.querySelector('#main h1')?.textContent === {json.dumps(title)}")
        assert link.get_attribute("aria-current") == "page"
        assert page.title() == f"{title} · Backpass"
        visit.quiet()
        values = (
            ("undefined", "[object") if title == "Ops" else ("null", "undefined", "[object")
        )  # some ops speak of null
        assert not [value for value in values if value in visit.text("#main")], title


def test_an_unknown_view_and_an_unknown_session_are_told(visit: Visit) -> None:
    visit.expected.add(404)
    for view in ("nothing", f"sessions/ses_{'a' * 26}", f"programs/prg_{'a' * 26}"):
        visit.page.goto("about:blank")
        visit.go(view, wait="[role=alert]")
        assert visit.text("#main h1") == "Problem"


def test_a_mistake_in_a_program_is_marked_at_its_line(visit: Visit) -> None:
    visit.expected.add(422)
    wrong = json.loads(json.dumps(REGRESSION).replace('"xw"', '"xv"', 1))
    text = json.dumps(wrong, indent=1)
    page = visit.go("programs/new")
    page.fill("textarea", text)
    page.wait_for_selector(".mistakes li")
    line = next(n for n, each in enumerate(text.split("\n"), 1) if '"xw"' in each)

    assert f"Line {line}, column" in visit.text(".mistakes li")
    assert "xw" in visit.text(".mistakes li")
    assert page.text_content(".behind mark") == '"xw"'
    assert page.get_attribute("textarea", "aria-invalid") == "true"
    page.click(".mistakes button")
    assert page.evaluate("getSelection().toString()") == '"xw"'

    page.fill("textarea", text[:-3])
    visit.until("document.querySelector('.mistakes li')?.textContent.includes('the end of the text')")
    page.fill("textarea", json.dumps(REGRESSION, indent=1))
    visit.until("document.querySelector('#main').textContent.includes('The program is valid')")
    page.click("button.main")
    page.wait_for_url(f"**/#/programs/{REGRESSION_ID}")


def test_the_graph_shows_the_backward_pass_and_answers_to_keys(visit: Visit) -> None:
    page = visit.go(f"programs/{WHILE_ID}", wait=".legend li >> nth=4")
    assert "gradient" in visit.text(".graph .legend")
    page.focus(".drawing")
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.keyboard.press("n")
    assert visit.text(".details h2") == "fill_constant"
    page.fill(".graph [type=search]", "tanh")
    page.click("button:text-is('Find')")
    assert visit.text(".details h2") == "tanh"
    assert painted(page, ".drawing") > 500
    page.fill("#loss", "")
    page.click("text=Show the backward pass")
    visit.until("!document.querySelector('.graph .legend').textContent.includes('gradient')")


def test_training_from_the_form_moves_the_curve(visit: Visit, session: str) -> None:
    page = visit.go(f"sessions/{session}", wait=".chart")
    points = "Number(document.querySelector('.chart canvas').dataset.points)"
    visit.until(f"{points} === 3")
    before = curve(page)
    page.fill("#steps", "5")
    page.click("form button.main")
    visit.until(f"{points} >= 8")
    visit.until("document.querySelector('#step').textContent >= 8")

    assert curve(page) != before
    assert "last" in page.get_attribute(".chart canvas", "aria-label")
    page.click("button:text-is('Evaluate')")
    page.wait_for_selector(".tensor-shown")


def test_steps_of_another_client_move_the_curve(visit: Visit, session: str) -> None:
    visit.go(f"sessions/{session}", wait=".chart")
    visit.until("document.querySelector('.chart canvas').dataset.points === '3'")
    visit.service.client.post(f"/v1/sessions/{session}/steps", json={"feeds": REGRESSION_FEEDS})
    visit.until("document.querySelector('.chart canvas').dataset.points === '4'")


def test_a_chart_is_read_by_keys_and_has_its_numbers_as_a_table(visit: Visit, session: str) -> None:
    page = visit.go(f"sessions/{session}", wait=".chart")
    visit.until("document.querySelector('.chart canvas').dataset.points === '3'")
    found = visit.service.client.get(f"/v1/sessions/{session}/metrics").json()["columns"]["loss"]
    page.wait_for_timeout(100)
    page.focus(".chart canvas")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert visit.text(".chart .reading").startswith("step 2")
    page.click(".chart summary")
    page.wait_for_selector(".chart tbody tr")
    rows = page.query_selector_all(".chart tbody tr")
    assert [row.inner_text().split("\t")[0] for row in rows] == ["3", "2", "1"]
    assert [float(row.inner_text().split("\t")[1]) for row in rows] == pytest.approx(found[::-1], rel=1e-4)
    drawn = curve(page)
    page.check(".chart [type=checkbox]")
    page.wait_for_timeout(100)
    assert curve(page) != drawn


def test_histograms_of_the_parameters_are_drawn_with_their_numbers(visit: Visit, session: str) -> None:
    page = visit.go(f"sessions/{session}", wait=".histogram >> nth=1")
    labels = [each.get_attribute("aria-label") for each in page.query_selector_all(".histogram svg")]
    assert [label.partition(":")[0] for label in labels] == ["w", "b"]
    assert "2 elements" in labels[0]
    assert page.query_selector(".histogram rect")


def test_a_session_is_opened_changed_and_deleted_with_the_console(visit: Visit) -> None:
    page = visit.go(f"sessions/new?program={REGRESSION_ID}")
    assert page.input_value("#loss") == "loss"
    page.click("form button.main")
    page.wait_for_url("**/#/sessions/ses_*")
    page.wait_for_selector(".chart")
    id = page.url.rpartition("/")[2]
    page.click("button:text-is('Learning rate')")
    page.fill("dialog input", "0.125")
    page.click("dialog button.main")
    visit.until("document.querySelector('.facts').textContent.includes('0.125')")
    assert visit.service.client.get(f"/v1/sessions/{id}").json()["optimizer"]["learning_rate"] == 0.125
    page.click("button:text-is('Delete')")
    page.click("dialog button.main")
    page.wait_for_url("**/#/sessions")
    assert visit.service.client.get(f"/v1/sessions/{id}").status_code == 410


def test_a_gradient_of_given_values_equals_that_of_the_api(visit: Visit) -> None:
    page = visit.go(f"gradient?program={REGRESSION_ID}")
    given = {"x": [[1, 2], [3, 4]], "y": [[1], [0]], "w": [[0.5], [-0.5]], "b": [0.25]}
    for name, value in given.items():
        page.select_option(f"[aria-label='Kind of value of {name}']", "values")
        page.fill(f"[aria-label='{name}: values as nested lists']", json.dumps(value))
    page.click("form button.main")
    page.wait_for_selector(".tensor-shown")
    error = [0.5 - 1.0 + 0.25 - 1.0, 1.5 - 2.0 + 0.25 - 0.0]

    assert f"{sum(e * e for e in error) / 2:.4f}"[:6] in visit.text("#main .facts")
    shown = page.query_selector_all(".tensor-shown")
    assert [each.inner_text().split()[0] for each in shown] == ["w", "b"]
    assert shown[1].query_selector(".scalar").inner_text() == str(sum(error))

    page.fill("[aria-label='x: values as nested lists']", "[[1, 2], [3]]")
    page.click("form button.main")
    visit.until("document.querySelector('.tensor .wrong:not(:empty)')?.textContent.includes('lengths')")


def test_ops_are_found_by_names_of_other_libraries(visit: Visit) -> None:
    page = visit.go("ops", wait="tbody tr")
    page.fill("[type=search]", "clamp")
    visit.until("document.querySelectorAll('tbody tr').length < 10")
    page.click("tbody code:text-is('clip')")
    page.wait_for_url("**/#/ops/clip")
    visit.until("document.querySelector('h1')?.textContent === 'clip'")


def test_two_sessions_are_compared_on_one_chart(visit: Visit, session: str, service: Served) -> None:
    other = service.client.post("/v1/sessions", json=SAMPLE_SETTINGS).headers["location"]
    service.client.post(f"{other}/steps", json={"feeds": REGRESSION_FEEDS})
    page = visit.go(f"compare?ids={session}", wait=".runs input")
    page.check(f".runs label:has(span[title={other.rpartition('/')[2]}]) input")
    visit.until("document.querySelectorAll('.chart:first-of-type .legend li').length === 2")
    visit.until("document.querySelector('.chart canvas').dataset.points === '4'")
    assert other.rpartition("/")[2] in page.url
    service.client.delete(other)


def test_a_job_is_submitted_and_watched_to_its_end(visit: Visit, service: Served) -> None:
    service.client.get(f"/v1/datasets/{SAMPLE_DATASET}")  # makes the sample
    page = visit.go(f"jobs/new?program={REGRESSION_ID}&dataset={SAMPLE_DATASET}")
    page.fill("form .field:has(label:text-is('Name')) input", "line")
    page.click("form button.main")
    page.wait_for_url("**/#/jobs/job_*")
    visit.until("document.querySelector('.title .badge')?.textContent === 'succeeded'", 30.0)
    visit.until("Number(document.querySelector('.chart canvas').dataset.points) > 0")
    found = service.client.get(f"/v1/jobs/{page.url.rpartition('/')[2]}").json()
    assert page.get_attribute("progress", "value") == str(found["steps"])
    visit.until("document.querySelector('#main').innerText.includes('state succeeded')")
    page.click("button:text-is('Delete')")
    page.click("dialog button.main")
    page.wait_for_url("**/#/jobs")
    page.wait_for_selector("#main h1:text-is('Jobs')")


def test_a_dataset_is_uploaded_and_shown_with_its_columns(visit: Visit, service: Served, tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text("a,kind\n1.5,red\n-2,blue\n4,red\n")
    page = visit.go("datasets", wait="[type=file]")
    page.set_input_files("[type=file]", file)
    page.click("form button.main")
    page.wait_for_url("**/#/datasets/dst_*")
    visit.until("document.querySelector('#main h1')?.textContent === 'points.csv'")
    cells = [each.inner_text() for each in page.query_selector_all(".card:has(h2:text-is('Columns')) td")]
    assert cells[:2] == ["a", "float32[]"]
    assert cells[3:7] == ["-2", "4", "1.167", "0"]
    preview = [each.inner_text() for each in page.query_selector_all(".card:has(h2:text-is('Preview')) td")]
    assert preview == ["0", "1.5", "red", "1", "-2", "blue", "2", "4", "red"]
    page.click("button:text-is('Delete')")
    page.click("dialog button.main")
    page.wait_for_url("**/#/datasets")
    page.wait_for_selector("#main h1:text-is('Datasets')")


def test_a_wrong_dataset_is_told_with_its_rows(visit: Visit, tmp_path: Path) -> None:
    visit.expected.add(422)
    file = tmp_path / "points.csv"
    file.write_text("a,b\n1,2\n3\n")
    page = visit.go("datasets", wait="[type=file]")
    page.set_input_files("[type=file]", file)
    page.click("form button.main")
    page.wait_for_selector(".problem li")


def test_text_of_clients_never_becomes_markup(visit: Visit) -> None:
    visit.expected.add(422)
    page = visit.go("programs/new")
    page.fill("textarea", '{"blocks": [{"ops": [{"type": "<img src=x onerror=document.title=1>"}]}]}')
    page.wait_for_selector(".mistakes li")
    assert "<img src=x" in visit.text(".mistakes")
    assert not page.query_selector("#main img")


def painted(page: Any, selector: str) -> int:
    """The number of pixels of a canvas that are not transparent."""
    return page.eval_on_selector(
        selector,
        "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v).length",
    )


def curve(page: Any) -> str:
    return page.eval_on_selector(".chart canvas", "c => c.toDataURL()")
