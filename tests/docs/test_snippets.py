"""The snippets of the documentation: JSON has the form that its page says, commands exist, and Python code is run.

Pages whose snippets other tests run are listed here, so that a new page with snippets fails until something tests it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from safetensors.numpy import load

from service.cli.main import main
from tests.paths import ROOT
from tests.service.conftest import Served
from tests.service.openapi import DOCUMENT

GENERATED = ROOT / "docs" / "ops"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if path.parent != GENERATED
}

ELSEWHERE = {
    "docs/semantics.md": "tests/docs/test_semantics.py",
    "docs/builder.md": "tests/end_to_end/test_builder_page.py",
    "docs/tensors.md": "tests/end_to_end/test_examples.py",
    "README.md": "tests/end_to_end/test_examples.py",
    "docs/frameworks.md": "tests/frameworks/test_recipes.py",
    "docs/onnx.md": "tests/end_to_end/test_getting_started.py",
    "docs/client/administration.md": "tests/service/tenants/test_client.py",
    "docs/client/index.md": "tests/end_to_end/test_getting_started.py",
    "docs/client/service.md": "tests/end_to_end/test_client_operations.py",
    **{
        f"docs/start/{name}.md": "tests/end_to_end/test_getting_started.py"
        for name in ("python", "pytorch", "training_loop")
    },
    **{
        f"docs/{name}.md": "tests/end_to_end/test_getting_started.py"
        for name in ("training", "checkpoints", "jobs", "datasets")
    },
}
"""Pages with Python code, and the tests that run it. Code of a recipe is included from a file of `examples`."""

FORMS = {
    "README.md": ("StreamEvent", "Program"),
    "docs/checkpoints.md": ("CreateSession",),
    "docs/datasets.md": ("Problem/properties/errors/items",),
    "docs/onnx.md": ("GradientsRequest", "CreateSession", "Registration"),
    "docs/precision.md": ("CreateSession", "InlineGradientsRequest"),
    "docs/program.md": ("Program",),
    "docs/sparse.md": ("Op",),
    "docs/tensors.md": ("Tensor",),
    "docs/training.md": ("CreateSession", "CreateSession", "SessionGradientsRequest UpdateRequest"),
}
"""Schemas of the JSON blocks of each page, in order: of a block with several documents, one each or one for all."""


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^ *```{kind}\n(.*?)^ *```$", PAGES[page], re.M | re.S)


def documents(text: str) -> Iterator[Any]:
    """One document, or one in each line."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        found, end = decoder.raw_decode(rest)
        yield found
        rest = rest[end:].strip()


def shown(value: Any) -> Any:
    """`value` without the members that the page leaves out, which end with dots."""
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items() if not str(each).endswith("...")}
    return [shown(each) for each in value] if isinstance(value, list) else value


def mistakes(schema: str, value: Any) -> list[str]:
    """The mistakes of a part of a document: members may be absent, and those that are there must be known and valid."""
    place = f"#/components/schemas/{schema}"
    validator = Draft202012Validator({"$ref": place, "components": DOCUMENT["components"]})
    return [e.message for e in validator.iter_errors(value) if not (e.validator == "required" and not e.path)]


def test_every_json_block_has_the_form_that_its_page_says():
    with_json = {page for page in PAGES if blocks(page, "json")}
    assert with_json == FORMS.keys() | {"docs/semantics.md"}

    for page, schemas in FORMS.items():
        for schema, block in zip(schemas, blocks(page, "json"), strict=True):
            found = list(documents(block))
            names = schema.split()
            for name, each in zip(names * (len(found) if len(names) == 1 else 1), found, strict=True):
                assert mistakes(name, shown(each)) == [], (page, block)


@pytest.mark.parametrize("wrong", [{"feed": {}}, {"loss": 1}, {"feeds": {"x": {"dtype": "f32"}}}])
def test_the_law_about_json_finds_unknown_members_and_wrong_values(wrong: dict[str, Any]):
    assert mistakes("GradientsRequest", wrong)


def test_every_page_with_python_code_has_a_test_that_runs_it():
    with_code = {page for page in PAGES if blocks(page, "python") and not page.startswith("docs/recipes/")}

    assert with_code == ELSEWHERE.keys() - {"docs/semantics.md"}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), (page, test)


# --- commands -----------------------------------------------------------------------------------------------------

FENCES = re.compile(r"^ *```(?:|sh|bash)\n(.*?)^ *```$", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")


def commands(pattern: re.Pattern[str], program: str) -> set[tuple[str, ...]]:
    """The words after `program` in each line of code, up to a comment or the next command of the line."""
    found = set()
    for text in PAGES.values():
        for line in "\n".join(pattern.findall(text)).splitlines():
            match = re.match(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?{program} +(.+)", line.strip())
            if match:
                found.add(tuple(shlex.split(re.split(r" {2,}|[;|>]|&&", match[1])[0])))
    return found


def test_every_command_of_the_service_can_be_parsed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("service.cli.main._run", lambda chosen: 0)
    whole, mentioned = commands(FENCES, "backpass"), commands(INLINE, "backpass")
    assert ("keys", "list") in whole and ("backup", "TO") in mentioned

    for words in whole | {(*words, "--help") for words in mentioned}:
        with contextlib.suppress(SystemExit):
            main(words)
        assert capsys.readouterr().err == "", words


def test_every_target_of_make_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    shown = commands(FENCES, "make") | {words for words in commands(INLINE, "make") if len(words) == 1}
    seen = {word for words in shown for word in words if re.fullmatch("[a-z-]+", word)}

    assert "serve" in seen
    assert seen <= targets


def test_every_module_that_python_shall_run_exists():
    shown = commands(FENCES, "python") | commands(INLINE, "python")
    seen = {words[1] for words in shown if words[0] == "-m" and len(words) > 1}

    assert "bench.jobs" in seen
    assert [name for name in seen - {"pip"} if importlib.util.find_spec(name) is None] == []


# --- what the snippets give ---------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_of_the_page_about_datasets_store_one(service: Served, tmp_path: Path):
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    script = "\n".join(blocks("docs/datasets.md", "bash")).replace("http://localhost:8080", service.url)
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["name"], found["rows"]) == ("iris", 150)
    assert [column["name"] for column in found["columns"]] == ["x", "species"]


def test_the_mistake_of_a_file_is_the_one_that_the_page_shows(client: httpx.Client):
    rows = "".join(f"{age},1\n" for age in [30, 31, 32, 33, 34, 35, "", 37])
    answer = client.post("/v1/datasets", content=f"age,y\n{rows}", headers={"content-type": "text/csv"})
    (block,) = blocks("docs/datasets.md", "json")
    example = json.loads(block)
    (found,) = answer.json()["errors"]

    assert found["detail"].startswith(example["detail"].removesuffix("..."))
    assert {**found, "detail": ""} == {**example, "detail": ""}


def test_a_program_is_stored_with_the_values_that_the_page_about_onnx_shows(client: httpx.Client):
    request = json.loads(blocks("docs/onnx.md", "json")[2])
    answer = client.post("/v1/programs", json=request)

    assert answer.status_code in (200, 201), answer.text
    stored = client.get(answer.json()["values"]["content"]).content
    assert load(stored)["w"].ravel().tolist() == np.array([0.1, -0.2], "float32").tolist()


def test_the_stream_of_the_readme_has_the_lines_that_it_shows(client: httpx.Client):
    request = json.loads((ROOT / "examples/gradients_line.json").read_text())
    answer = client.post("/v1/gradients", json=request, headers={"accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in answer.text.splitlines()]

    for found, example in zip(lines, documents(blocks("README.md", "json")[0]), strict=True):
        assert example.items() <= found.items()


def test_the_stored_requests_are_those_that_the_readme_shows():
    stored = [json.loads((ROOT / f"examples/gradients_{name}.json").read_text()) for name in ("line", "loop")]
    sent = re.search(r"-d '(.*?)'$", blocks("README.md", "sh")[0], re.M | re.S)
    assert sent is not None

    assert json.loads(sent[1]) == stored[0]
    assert json.loads(blocks("README.md", "json")[1]) == stored[1]["program"]
