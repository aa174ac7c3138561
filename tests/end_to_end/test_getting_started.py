"""The pages for the first steps and those of the guide: their commands and their code run word for word.

Where a page shows an output, it is the one that its code prints.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.paths import ROOT
from tests.service.conftest import serve

START = ROOT / "docs" / "start"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("data")) as served:
        yield served.url


def blocks(name: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", (START / name).read_text(), re.M | re.S)


def examples(name: str) -> list[tuple[str, str]]:
    """(Python code, the output that the page shows after it, if it shows one)."""
    found = re.findall(r"^```python\n(.*?)^```$(?:\n\n^```\n(.*?)^```$)?", (START / name).read_text(), re.M | re.S)
    assert found
    return found


def run_page(name: str, url: str) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for code, shown in examples(name):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code.replace("http://127.0.0.1:8080", url), namespace)  # noqa: S102
        assert printed.getvalue().split() == shown.split(), code


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_with_curl_work_unchanged(url: str, tmp_path: Path) -> None:
    separator = "\necho; echo ----\n"
    script = separator.join(blocks("curl.md", "sh")).replace("http://127.0.0.1:8080", url)

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
    ready, gradient, mistake, backward, steps, parameters, deleted = done.stdout.split("----")
    assert json.loads(ready)["status"]
    found = json.loads(gradient)
    assert found["loss"]["data"] == [0.625]
    assert found["gradients"]["w"]["data"] == [0.5, 0.0]
    problem = json.loads(mistake)
    assert problem["code"] == "invalid-program"
    assert (
        problem["errors"][0]["pointer"].endswith("/blocks/0/ops/2") and "square" in problem["errors"][0]["suggestion"]
    )
    assert "w@GRAD" in backward
    losses = [float(each) for each in re.findall(r'"loss":\{"dtype":"float64","shape":\[\],"data":\[([^\]]+)\]', steps)]
    assert len(losses) == 3 and losses[2] < losses[0]
    assert json.loads(parameters)["parameters"]["w"]["shape"] == [2]
    assert deleted.strip() == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_the_page_about_javascript_prints_what_it_shows(url: str, tmp_path: Path) -> None:
    found = re.findall(
        r"^```js\n(.*?)^```$(?:\n\n^```\n(.*?)^```$)?", (START / "javascript.md").read_text(), re.M | re.S
    )
    script = tmp_path / "page.mjs"
    script.write_text('console.log("----");\n'.join(code for code, _ in found).replace("http://127.0.0.1:8080", url))

    done = subprocess.run(["node", script], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert [part.split() for part in done.stdout.split("----")] == [shown.split() for _, shown in found]


@pytest.mark.parametrize("page", ["python.md", "training_loop.md"])
def test_a_page_about_python_prints_what_it_shows(
    url: str, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    run_page(page, url)


GIVEN = """
import numpy as np
import backpass_client as bp

@bp.program
def network(x: bp.f32["batch", 4], y: bp.f32["batch"]):
    error = x @ bp.parameter("w", [4]) - y
    return {"loss": (error**2).mean(), "accuracy": bp.cast(bp.abs(error) < 1, dtype="float32").mean()}

service = other_service = bp.Service("http://127.0.0.1:8080")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
feeds = {"x": x, "y": x.sum(1)}
document, program, dataset = network.document(), service.programs.create(network), service.datasets.upload(feeds)
images, labels = np.ones((4, 8, 8)), np.arange(4)
session, other = (service.create_session(network, optimizer={"type": "adam"}) for _ in range(2))
batch = feeds
send_to_the_others = lambda name, gradient: None
"""
"""What the code of the pages below leaves to its reader."""


def small_model() -> onnx.ModelProto:
    """logits = flat(input) weight, of any number of images of 8 by 8."""
    double, batch = onnx.TensorProto.DOUBLE, "batch"
    weight = onnx.numpy_helper.from_array(np.zeros((64, 10)), "weight")
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Flatten", ["input"], ["flat"]),
            onnx.helper.make_node("MatMul", ["flat", "weight"], ["logits"]),
        ],
        "small",
        [onnx.helper.make_tensor_value_info("input", double, [batch, 8, 8])],
        [onnx.helper.make_tensor_value_info("logits", double, [batch, 10])],
        [weight],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def run(code: str, namespace: dict[str, Any]) -> None:
    """Execute code that may await."""
    left = eval(compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)  # noqa: S307
    if left is not None:
        asyncio.run(left)


PAGES = ["training.md", "checkpoints.md", "jobs.md", "datasets.md", "onnx.md", "client/index.md"]


@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page_runs_with_a_program_a_session_and_a_dataset(
    name: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iris.csv").write_text("sepal_length,petal_length,species\n1.0,2.0,setosa\n")
    onnx.save(small_model(), tmp_path / "model.onnx")
    codes = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.M | re.S)
    namespace: dict[str, Any] = {}

    for code in (GIVEN, *codes):
        run(re.sub(r"http://(127.0.0.1|localhost):8080", url, code), namespace)

    assert codes
    namespace["service"].close()


@pytest.mark.slow
def test_the_page_about_pytorch_prints_what_it_shows(url: str) -> None:
    missing = [name for name in ("torch", "onnxscript") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    run_page("pytorch.md", url)
