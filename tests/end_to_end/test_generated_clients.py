"""Clients that generators make from the OpenAPI document reach every route and train the digits."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from examples.digits import BATCH, Digits, load
from examples.models import digits_mlp
from tests.paths import ROOT

pytestmark = pytest.mark.slow

DOCUMENT = ROOT / "openapi" / "openapi.json"
SOURCES = Path(__file__).parent / "generated"
EPOCHS = 20


def tensors(feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        name: {"dtype": value.dtype.name, "shape": list(value.shape), "data": value.ravel().tolist()}
        for name, value in feeds.items()
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with what a client needs to train the digits."""
    train, test = load()
    order, batches = np.random.default_rng(0), []
    for _ in range(EPOCHS):
        rows = order.permutation(len(train))
        batches += [rows[i : i + BATCH] for i in range(0, len(rows) - BATCH + 1, BATCH)]
    path = tmp_path_factory.mktemp("digits") / "digits.json"
    whole = {
        "program": digits_mlp(),
        "optimizer": {"type": "adam", "learning_rate": 0.005},
        "batches": [tensors(Digits.feeds(train, rows, image=False)) for rows in batches],
        "test": tensors(test.feeds(slice(None), image=False)),
    }
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture(scope="module")
def losses(url: str, data: Path) -> list[float]:
    """The losses of the same steps, as requests that no client writes."""
    given = json.loads(data.read_text())
    with httpx.Client(base_url=url, timeout=60, verify=False) as client:
        session = {"program": given["program"], "loss": "loss", "optimizer": given["optimizer"], "init": {"seed": 0}}
        path = client.post("/v1/sessions", json=session).headers["location"]
        return [
            client.post(f"{path}/steps", json={"feeds": feeds}).json()["loss"]["data"][0] for feeds in given["batches"]
        ]


def ran(command: Sequence[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`command`, which must exit with status 0."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done


def check(printed: str, losses: list[float]) -> None:
    found = json.loads(printed.splitlines()[-1])
    assert found["losses"] == losses
    assert found["accuracy"] >= 0.95


# --- openapi-python-client ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python_client(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the package `generated`, and the messages of the generator."""
    pytest.importorskip("openapi_python_client")
    folder = tmp_path_factory.mktemp("python")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(DOCUMENT)]
    command += ["--output-path", str(folder / "generated"), "--meta", "none"]
    command += ["--config", str(SOURCES / "openapi-python-client.yaml")]
    done = ran(command, folder)
    return folder, done.stdout + done.stderr


def test_the_python_client_has_every_operation_and_every_answer(python_client: tuple[Path, str]) -> None:
    folder, messages = python_client
    operations = [each for methods in json.loads(DOCUMENT.read_text())["paths"].values() for each in methods.values()]

    assert "WARNING" not in messages, messages
    made = {(path.parent.name, path.stem): path.read_text() for path in folder.glob("generated/api/*/[a-z]*.py")}
    assert made.keys() == {(each["tags"][0], each["operationId"]) for each in operations}
    for each in operations:
        code = made[each["tags"][0], each["operationId"]]
        handled = set(re.findall(r"status_code == (\d+)", code) + re.findall(r"return response_(default)", code))
        assert handled == set(each["responses"]), each["operationId"]


def test_the_python_client_trains_the_digits(
    python_client: tuple[Path, str], url: str, data: Path, losses: list[float]
) -> None:
    folder, _ = python_client

    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    printed = ran([sys.executable, str(SOURCES / "digits.py"), url, str(data)], folder, PYTHONPATH=path)

    check(printed.stdout, losses)


# --- openapi-typescript -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources, the pinned packages and the generated types."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("typescript")
    for source in (*SOURCES.glob("*.json"), *SOURCES.glob("*.ts")):
        shutil.copy(source, folder)
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the packages: {installed.stderr[-500:]}")
    ran(["node_modules/.bin/openapi-typescript", str(DOCUMENT), "--output", "schema.ts"], folder)
    return folder


def test_the_typescript_client_compiles_and_trains_the_digits(
    typescript: Path, url: str, data: Path, losses: list[float]
) -> None:
    ran(["node_modules/.bin/tsc", "--project", "."], typescript)

    check(ran(["node", "built/digits.js", url, str(data)], typescript).stdout, losses)


def test_the_typescript_compiler_refuses_a_wrong_request(typescript: Path) -> None:
    """The types are not `any`."""
    source = (typescript / "digits.ts").read_text()
    wrong = source.replace("body: { feeds, seq: losses.length + 1 }", 'body: { feeds, seq: "first" }')
    assert wrong != source
    (typescript / "wrong").mkdir()
    for name in ("schema.ts", "tsconfig.json", "package.json"):
        shutil.copy(typescript / name, typescript / "wrong")
    (typescript / "wrong" / "digits.ts").write_text(wrong)

    command = ["node_modules/.bin/tsc", "--project", "wrong"]
    done = subprocess.run(command, cwd=typescript, capture_output=True, text=True, timeout=120)

    assert done.returncode != 0
    assert "Type 'string' is not assignable to type 'number" in done.stdout, done.stdout
