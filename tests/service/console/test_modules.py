"""Modules of the console that need no browser: places in JSON, scales of charts, values of forms. They need Node.js."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
from typing import Any

import pytest

from service.formats.graph_text import COLOURS
from service.schemas.jobs import CreateJob
from tests.paths import ROOT

CONSOLE = ROOT / "service/static/console"


def answer(module: str, expression: str, given: Any) -> Any:
    """The value of a JavaScript expression over `m`, the module, and `given`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    script = f"""
import * as m from "{(CONSOLE / module).as_uri()}";
let text = "";
for await (const piece of process.stdin) text += piece;
const given = JSON.parse(text);
console.log(JSON.stringify({expression}));
"""
    run = subprocess.run(
        [node, "--input-type=module", "-e", script], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def generated(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 5)
    if kind >= 5:
        size = rng.randrange(4)
        if kind == 5:
            return [generated(rng, depth - 1) for _ in range(size)]
        names = ["a", "b/c", "d~e", "é\n", '"', ""]
        return {rng.choice(names) + str(i): generated(rng, depth - 1) for i in range(size)}
    return [None, True, -1.5e-7, 'text \\ " ü \u2028', 123][kind]


def pointers(value: Any, at: str = "") -> dict[str, Any]:
    found = {at: value}
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in members:
        found |= pointers(each, f"{at}/{str(name).replace('~', '~0').replace('/', '~1')}")
    return found


def test_every_pointer_leads_to_the_text_of_its_value():
    rng = random.Random(3)
    values = [generated(rng, 5) for _ in range(60)]
    texts = [json.dumps(each, indent=rng.choice([None, 1, 4]), ensure_ascii=rng.random() < 0.5) for each in values]
    sliced = "([at, place]) => [at, text.slice(place.start, place.end)]"
    expression = f"given.map((text) => [...m.places(text)].map({sliced}))"
    for value, found in zip(values, answer("json-place.js", expression, texts), strict=True):
        assert {at: json.loads(text) for at, text in found} == pointers(value)


def test_a_syntax_error_is_placed_where_python_finds_it():
    rng = random.Random(4)
    wrong = []
    while len(wrong) < 60:
        text = json.dumps(generated(rng, 4), indent=1)
        at = rng.randrange(len(text) + 1)
        broken = text[:at] + rng.choice(["", ",", "}", "]", '"', "x", ":"]) + text[at + rng.randrange(2) :]
        try:
            json.loads(broken, parse_constant=lambda name: math.nan)
        except json.JSONDecodeError as error:
            wrong.append((broken, error.pos))
    expression = "given.map((text) => { try { m.places(text); return null; } catch (error) { return error.offset; } })"
    found = answer("json-place.js", expression, [text for text, _ in wrong])

    assert None not in found
    near = sum(abs(offset - pos) <= 2 for offset, (_, pos) in zip(found, wrong, strict=True))
    assert near >= 0.7 * len(wrong)  # Python names the beginning of a string that does not end, and the comma before }


def test_deep_nesting_does_not_overflow_the_stack():
    assert answer("json-place.js", "m.places('['.repeat(given) + ']'.repeat(given)).size", 50_000) == 50_000


def test_ticks_are_round_and_cover_the_range():
    rng = random.Random(5)
    spans = [(low, low + 10 ** rng.uniform(-6, 9)) for low in (rng.uniform(-100, 100) for _ in range(50))]
    for (low, high), found in zip(
        spans, answer("scale.js", "given.map(([low, high]) => m.ticks(low, high, 5))", spans), strict=True
    ):
        assert 2 <= len(found) <= 11
        slack = (high - low) * 1e-6
        assert low - slack <= found[0] and found[-1] <= high + slack


def test_smoothing_keeps_constants_and_gaps():
    found = answer("scale.js", "m.smoothed(given, 0.9)", [2.0, 2.0, None, 2.0])

    assert found[2] is None
    assert [each for each in found if each is not None] == pytest.approx([2.0, 2.0, 2.0])


def test_the_pixels_of_a_long_curve_keep_its_extremes():
    ys = [math.sin(i / 50) for i in range(20_000)]
    ys[12_345], ys[7] = 9.0, -9.0
    found = answer("scale.js", "m.pixels(given.map((_, i) => i), given, (x) => x / 50, (y) => y)", ys)

    assert len(found) <= 4 * 402
    assert max(y for _, y in found) == 9.0
    assert min(y for _, y in found) == -9.0


def test_nested_lists_become_flat_data_with_their_shape():
    good = [[[1, 2], [3, 4]], 5, [], [[[1]]]]
    assert answer("tensor-form.js", "given.map((each) => m.flattened(each))", good) == [
        {"shape": [2, 2], "data": [1, 2, 3, 4]},
        {"shape": [], "data": [5]},
        {"shape": [0], "data": []},
        {"shape": [1, 1, 1], "data": [1]},
    ]
    bad = [[[1, 2], [3]], [[1], 2], [1, [2]]]
    told = answer(
        "tensor-form.js", "given.map((each) => { try { m.flattened(each); return null; } catch { return 1; } })", bad
    )
    assert told == [1, 1, 1]


def test_the_console_and_the_graph_page_use_the_same_colours():
    text = (CONSOLE / "program-graph.js").read_text()
    for kind, colour in COLOURS.items():
        assert f'{kind}: "{colour}"' in text


FORM = {
    "program": "prg_a",
    "dataset": "dst_a",
    "feeds": {"x": "x"},
    "loss": " loss ",
    "optimizer": "adam",
    "rate": "0.5",
}
FORM |= {"epochs": "3", "batch": "", "seed": "7", "priority": "5", "fraction": "", "patience": "", "keep": ""}
FORM |= {"shuffle": True, "name": "a"}


@pytest.mark.parametrize(
    ("field", "text", "member", "value"),
    [
        ("batch", "16", "batch_size", 16),
        ("fraction", "0.25", "validation", {"fraction": 0.25}),
        ("patience", "2", "early_stop", {"patience": 2}),
        ("keep", "100", "save_every", {"steps": 100}),
    ],
)
def test_the_form_of_a_job_makes_a_request_that_the_service_takes(field, text, member, value):
    bare = answer("job-request.js", "m.jobRequest(given)", FORM)
    full = answer("job-request.js", "m.jobRequest(given)", {**FORM, field: text})

    assert full == {**bare, member: value}
    for body in (bare, full):
        asked = CreateJob.model_validate_json(json.dumps(body))
        assert (asked.loss, asked.epochs, asked.dataset_id) == ("loss", 3, "dst_a")
    assert member not in bare
