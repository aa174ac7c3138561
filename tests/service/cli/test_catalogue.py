"""The pages of docs/ops equal the generated ones, describe every op, and have correct examples."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.ir.registry import OpSpec
from core.wire import read
from core.wire.samples import SAMPLES
from service.cli.catalogue import pages, write_pages
from service.routes.ops import CATALOGUE
from tests.paths import ROOT

FOLDER = ROOT / "docs" / "ops"
PAGES = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
ENTRIES = {
    name: text
    for page in PAGES.values()
    for name, text in re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.M | re.S)
}
EXAMPLES = {
    f"{name}-{i}": json.loads(text)
    for name, entry in sorted(ENTRIES.items())
    for i, text in enumerate(re.findall(r"^```json\n(.*?)^```", entry, re.M | re.S))
}


def array(tensor: dict[str, Any]) -> np.ndarray:
    if "b64" in tensor:
        flat = np.frombuffer(base64.b64decode(tensor["b64"]), tensor["dtype"])
    else:
        flat = np.array(tensor["data"], tensor["dtype"])
    return flat.reshape(tensor["shape"])


def test_the_stored_pages_equal_the_generated_ones() -> None:
    assert pages() == PAGES  # else: make catalogue


def test_pages_of_removed_families_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("a removed family")
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == PAGES.keys()


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_op_is_described_with_its_slots_its_gradient_and_an_example(name: str) -> None:
    spec, entry = CATALOGUE[name], ENTRIES[name]
    for slot in spec.inputs:
        assert f"`{slot.name}`" in entry
    for attr in spec.attrs:
        assert f"* attribute `{attr.name}`: " in entry
    assert ("* gradients of any order" in entry) == spec.differentiable
    assert ("* no gradient: " in entry) != spec.differentiable
    assert "```json\n" in entry and (" -> " in entry or '"request"' in entry)  # shapes


@pytest.mark.parametrize("name", [name for name, each in EXAMPLES.items() if "request" in each])
def test_the_service_gives_the_answer_shown_on_a_page(client: Any, name: str) -> None:
    answer = client.post("/v1/gradients", json=EXAMPLES[name]["request"]).json()
    wanted = EXAMPLES[name]["answer"]
    assert (answer["loss"], answer["gradients"]) == (wanted["loss"], wanted["gradients"])


@pytest.mark.parametrize("name", [name for name, each in EXAMPLES.items() if "op" in each])
def test_an_example_on_a_page_has_the_shown_results(name: str) -> None:
    example = EXAMPLES[name]
    op, given = example["op"], example.get("given", {})
    if any(isinstance(each, list) for each in (*given.values(), *example.get("found", {}).values())):
        pytest.skip("a list of arrays can be neither a feed nor an answer")
    leaves = [{"name": n, "dtype": t["dtype"], "shape": t["shape"], "role": "feed"} for n, t in given.items()]
    program = read({"blocks": [{"idx": 0, "parent_idx": -1, "vars": leaves, "ops": [op]}]})
    names = [name for each in op["outputs"].values() for name in each]
    values = {name: array(tensor) for name, tensor in given.items()}
    found = example.get("found", {})
    fetched = compile_forward(program, list(found)).step(values).fetched if found else {}
    for name, tensor in found.items():
        np.testing.assert_allclose(fetched[name], array(tensor), rtol=1e-4, atol=1e-5)
    wanted = example.get("gradients", {})
    if wanted:
        targets = tuple(n for n in names if program.block.types[n].is_float)
        query = GradientQuery(targets=targets, inputs=tuple(wanted))
        gradients = compile_gradient(program, query).step(values).gradients
        for name, tensor in wanted.items():
            gradient = gradients.get(name, np.zeros_like(values[name]))
            np.testing.assert_allclose(gradient, array(tensor), rtol=1e-4, atol=1e-5)


def moves(spec: OpSpec) -> bool:
    """Whether the outputs of its examples contain only input numbers and 0: the op moves numbers and computes none."""
    for example in spec.example_rule() if spec.example_rule else ():
        came = {0.0, *flat(list(example.inputs))}
        if not came.issuperset(flat(list(example.outputs))):
            return False
    return True


def flat(value: Any) -> list[float]:
    if isinstance(value, list):
        return [x for each in value for x in flat(each)]
    return [] if value is None else np.asarray(value, "float64").reshape(-1).tolist()


@pytest.mark.parametrize("name", sorted(name for name, spec in CATALOGUE.items() if spec.differentiable))
def test_every_op_that_computes_documents_its_formula_or_refers_to_another_op(name: str) -> None:
    spec = CATALOGUE[name]
    named = set(re.findall(r"`(\w+)`", spec.doc)) & CATALOGUE.keys() - {name}
    assert "``" in spec.doc or named or spec.name in SAMPLES or moves(spec)


def test_a_family_has_one_section_for_each_file() -> None:
    files = {spec.body.__module__ for spec in CATALOGUE.values() if spec.family.name == "sequence"}
    sections = re.findall(r"^## (.+)$", PAGES["sequence.md"], re.M)
    assert len(sections) == len(set(sections)) == len(files)
    assert "Linear-chain conditional random fields (Lafferty, McCallum and Pereira 2001)" in sections


def test_the_index_links_to_the_entry_of_every_op() -> None:
    for name, spec in CATALOGUE.items():
        assert f"[{name}]({spec.family.name}.md#{name})" in PAGES["README.md"]
        assert f"[{name}](#{name})" in PAGES[f"{spec.family.name}.md"]
