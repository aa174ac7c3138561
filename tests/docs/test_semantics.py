"""docs/semantics.md: its numbers are stable, its cases have tests, and its examples give the numbers shown."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from core.autodiff.hooks import ACTIONS
from tests.laws.test_cases import CASES as NUMBERED
from tests.names import files_of_tests
from tests.paths import ROOT

PAGE = ROOT / "docs" / "semantics.md"
TEXT = PAGE.read_text()
CASES = re.compile(r'^\| <a id="case-(\d+)"></a>(\d+) \| .* \| (.*) \|$', re.M)
TESTS = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")
EXAMPLES = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", TEXT, re.M | re.S)]


def wrong_links(text: str) -> list[str]:
    """For each wrong link to a test, a sentence with the right path or the nearest names."""
    wrong = []
    files = {
        name: [Path(os.path.relpath(path, PAGE.parent)).as_posix() for path in paths]
        for name, paths in files_of_tests().items()
    }
    for name, path in TESTS.findall(text):
        if name not in files:
            near = difflib.get_close_matches(name, files, n=3, cutoff=0.9)
            wrong.append(f"{name} does not exist; similar names: {', '.join(near) or 'none'}")
        elif path not in files[name]:
            wrong.append(f"{name} is in {' and '.join(files[name])}, not in {path}")
    return wrong


def test_every_link_to_a_test_gives_the_right_file() -> None:
    assert wrong_links(TEXT) == []


def test_the_page_lists_every_action_of_hooks() -> None:
    section = TEXT[TEXT.index("\n## 11. ") : TEXT.index("\n## 12. ")]
    table = section[section.index("| `do` | effect |") :].split("\n\n")[0]

    assert re.findall(r"^\| `(\w+)` \|", table, re.M)[1:] == list(ACTIONS)


def test_a_wrong_link_is_reported_with_the_right_path() -> None:
    name = test_every_link_to_a_test_gives_the_right_file.__name__
    here = Path(os.path.relpath(__file__, PAGE.parent)).as_posix()

    assert wrong_links(f"[`{name}`]({here})") == []
    assert wrong_links(f"[`{name}`](../tests/elsewhere.py)") == [f"{name} is in {here}, not in ../tests/elsewhere.py"]
    assert f"similar names: {name}" in wrong_links(f"[`{name}s`]({here})")[0]


def test_every_case_number_occurs_once_and_links_a_test() -> None:
    cases = CASES.findall(TEXT)

    assert all(anchor == shown for anchor, shown, _ in cases)
    assert sorted(int(number) for number, _, _ in cases) == list(range(1, NUMBERED + 1))
    assert [number for number, _, tests in cases if not TESTS.search(tests)] == []


def test_sections_are_numbered_in_order_and_every_link_inside_the_page_has_a_target() -> None:
    headings = re.findall(r'^<a id="s([\d-]+)"></a>\n##+ ([\d.]+?)\.? ', TEXT, re.M)
    numbers = [tuple(map(int, shown.split("."))) for _, shown in headings]

    assert [anchor.replace("-", ".") for anchor, _ in headings] == [shown for _, shown in headings]
    assert numbers == sorted(set(numbers))
    top = [number[0] for number in numbers if len(number) == 1]
    assert top == list(range(1, len(top) + 1))
    for i, number in enumerate(numbers):
        if len(number) == 2:
            before = numbers[i - 1]
            assert number == (before[0], before[1] + 1 if len(before) == 2 else 1)
    anchors = re.findall(r'<a id="([\w-]+)"></a>', TEXT)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= set(anchors)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_an_example_gives_the_numbers_shown(client: Any, example: dict[str, Any]) -> None:
    answer = client.post("/v1/gradients", json=example["request"])

    assert answer.status_code == example["answer"].get("status", 200), answer.text
    assert differences(answer.json(), example["answer"]) == []


def differences(found: Any, shown: Any, at: str = "") -> list[str]:
    """The places where `found` differs from the page; members that the page leaves out are not compared."""
    if isinstance(shown, dict) and isinstance(found, dict) and shown:
        return [each for key in shown for each in differences(found.get(key), shown[key], f"{at}/{key}")]
    if isinstance(shown, list) and isinstance(found, list) and len(shown) == len(found):
        pairs = enumerate(zip(found, shown, strict=True))
        return [each for i, (one, other) in pairs for each in differences(one, other, f"{at}/{i}")]
    if isinstance(shown, float) and isinstance(found, float):
        same = math.isclose(found, shown, rel_tol=1e-12, abs_tol=1e-15)
    else:
        same = found == shown
    return [] if same else [f"{at}: {found!r}, but the page shows {shown!r}"]


def test_differences_are_found_at_any_depth() -> None:
    shown = {"a": [{"b": 1.0}], "c": {}}

    assert differences({"a": [{"b": 1.0, "more": 2}], "c": {}}, shown) == []
    assert differences({"a": [{"b": 1.5}], "c": {}}, shown) == ["/a/0/b: 1.5, but the page shows 1.0"]
    assert differences({"a": [{"b": 1.0}], "c": {"d": 1}}, shown) == ["/c: {'d': 1}, but the page shows {}"]
    assert differences({"a": [], "c": {}}, shown) == ["/a: [], but the page shows [{'b': 1.0}]"]
