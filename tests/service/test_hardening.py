"""Rules for the sources and the interface of the service that keep whole classes of attacks out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.settings import Settings
from tests.paths import ROOT

SOURCES = sorted([*(ROOT / "service").rglob("*.py"), *(ROOT / "core").rglob("*.py")])
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
SUSPICIOUS = re.compile(rf"\b({'|'.join(FORBIDDEN_MODULES | FORBIDDEN_CALLS)}|allow_pickle)\b")
TYPED = re.compile(r"\.(decode|convert|Decoder)\b")
"""Words without which a module needs no closer look."""


def with_words(pattern: re.Pattern[str]) -> Any:
    """The modules with some words, as cases of a test."""
    paths = [path for path in SOURCES if pattern.search(path.read_text())]
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT)))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module.partition(".")[0]


@with_words(SUSPICIOUS)
def test_no_module_loads_objects_or_code_from_data(path: Path) -> None:
    tree = ast.parse(path.read_text())

    assert not FORBIDDEN_MODULES & set(imported(tree))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not FORBIDDEN_CALLS & called
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant) and node.value.value is False


@with_words(TYPED)
def test_typed_decoders_are_made_at_import(path: Path) -> None:
    """msgspec reads half-made type information, and crashes, if threads use a type for the first time together."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    typed = any(keyword.arg == "type" for keyword in node.keywords)
                    assert not (node.func.attr in ("decode", "convert") and typed), node.lineno
                    assert node.func.attr != "Decoder", node.lineno


def test_no_request_names_a_url_to_fetch() -> None:
    def formats(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("format"), str):
                yield value["format"]
            for each in value.values():
                yield from formats(each)
        elif isinstance(value, list):
            for each in value:
                yield from formats(each)

    document = create_app(Settings.model_construct()).openapi()

    assert not {"uri", "url", "iri", "uri-reference"} & set(formats(document))


def test_the_service_imports_no_client_of_http() -> None:
    clients = {"httpx", "requests", "aiohttp", "urllib3"}
    for path in (ROOT / "service").rglob("*.py"):
        if any(name in (text := path.read_text()) for name in clients):
            assert not clients & set(imported(ast.parse(text))), path


def test_every_pinned_requirement_has_a_hash() -> None:
    for name in ("run", "dev", "build", "gpu"):
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ").splitlines()
        pinned = [line for line in lines if "==" in line]
        assert pinned and all("--hash=sha256:" in line for line in pinned), name
