"""Every example, run as a process with a running service."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from examples import models, regression
from examples.client import Backpass, Refused
from tests.end_to_end.scalar_engine import Number, backward, mean_squared_error, network
from tests.paths import ROOT


def run_example(name: str, url: str, *options: str) -> str:
    """The output of the example, which must exit with status 0."""
    command = [sys.executable, "-m", f"examples.{name}", "--url", url, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_both_networks_learn_the_digits(url: str) -> None:
    printed = run_example("digits", url)

    reached = {name: float(value) for name, value in re.findall(r"^(\w+): test accuracy ([\d.]+)", printed, re.M)}
    assert reached.keys() == {"mlp", "convnet"}
    assert min(reached.values()) >= 0.95
    assert "d loss / d w1" in printed


def test_the_digits_example_fails_below_its_target_accuracy(url: str) -> None:
    command = [sys.executable, "-m", "examples.digits", "--url", url, "--mlp-epochs", "1", "--convnet-epochs", "0"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "below 0.95" in done.stdout


def test_a_job_learns_the_digits(url: str) -> None:
    printed = run_example("train_job", url)

    accuracy = float(re.search(r"test digits: ([\d.]+)", printed).group(1))  # type: ignore[union-attr]
    assert accuracy >= 0.93
    assert "validation" in printed


@pytest.mark.slow
def test_the_character_rnn_learns_with_a_new_number_of_trips_each_step(url: str) -> None:
    printed = run_example("rnn_text", url, "--steps", "150", "--characters", "12")

    before, after = map(float, re.search(r"([\d.]+) -> ([\d.]+) bits", printed).groups())  # type: ignore[union-attr]
    assert after < before - 1


def test_36_two_hundred_steps_of_gradient_descent_fit_the_surface(url: str) -> None:
    printed = run_example("regression", url)

    assert re.search(r"loss 0\.\d+ -> 0\.0\d+ in 200 steps", printed)


def test_a_checkpoint_helps_to_learn_another_task_from_few_examples(url: str) -> None:
    printed = run_example("fine_tuning", url)

    told = re.search(r"without options: (.*)", printed)
    assert told is not None and "'head.w'" in told[1]
    found = {name: float(value) for value, name in re.findall(r"even: accuracy ([\d.]+) from (\w+ \w+)", printed)}
    assert found["the checkpoint"] > found["random weights"]


def test_the_tape_example_agrees_with_the_formula(url: str) -> None:
    printed = run_example("tape", url)

    assert printed.count("differs from the formula by") == 2


def test_a_network_without_a_path_to_the_loss_is_not_played_back(url: str) -> None:
    printed = run_example("pruned", url)

    assert "104 ops recorded, 4 played back" in printed
    assert "big.2 has no gradient: not_on_path_to_loss" in printed


@pytest.mark.slow
def test_a_python_loop_learns_words_of_several_lengths(url: str) -> None:
    printed = run_example("words", url)

    before, after = map(float, re.search(r"([\d.]+) -> ([\d.]+)$", printed, re.M).groups())  # type: ignore[union-attr]
    assert after > max(before, 0.75)
    compiled = re.search(r"(\d+) of them new", printed)
    assert compiled is not None and int(compiled[1]) <= 7


def test_36_gradients_of_the_scalar_network_equal_those_of_a_scalar_engine(url: str) -> None:
    data, weights = regression.surface(examples=16), regression.initial()
    parameters = {name: Number(float(value)) for name, value in weights.items()}
    points = zip(data["x0"], data["x1"], strict=True)
    predicted = [network(parameters, regression.SIZES, [Number(a), Number(b)]) for a, b in points]
    expected = mean_squared_error(predicted, data["y"])
    backward(expected)

    with Backpass(url) as service:
        known = service.register(models.scalar_network(regression.SIZES))
        loss, gradients, _ = service.gradients(known, "loss", data, weights)

    assert math.isclose(loss, expected.value, rel_tol=1e-13)
    assert gradients.keys() == parameters.keys()
    found = np.array([gradients[name] for name in parameters])
    np.testing.assert_allclose(found, [p.gradient for p in parameters.values()], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("gradients_*.json")), ids=lambda path: path.stem)
def test_the_stored_requests_get_the_expected_answers(url: str, path: Path) -> None:
    answer = httpx.post(
        f"{url}/v1/gradients", content=path.read_bytes(), headers={"content-type": "application/json"}, timeout=60
    )

    assert answer.status_code == 200, answer.text
    found = answer.json()
    expected = EXPECTED[path.stem]
    np.testing.assert_allclose(found["loss"]["data"], expected["loss"], rtol=1e-12)
    for name, gradient in expected["gradients"].items():
        np.testing.assert_allclose(found["gradients"][name]["data"], gradient, rtol=1e-12)


def _tanh_three_times(w: float) -> tuple[float, float]:
    """h <- tanh(h w), three times, from h = 1: (h, dh/dw), where dh/dw follows the product rule."""
    h, slope = 1.0, 0.0
    for _ in range(3):
        slope = (slope * w + h) * (1 - math.tanh(h * w) ** 2)
        h = math.tanh(h * w)
    return h, slope


LOOP = [_tanh_three_times(w) for w in (0.5, 0.7)]
EXPECTED: dict[str, Any] = {
    # loss = mean((x w - y)^2) with x = [[1, 2], [3, 4]], w = [0.5, -0.25], y = [1, 0]: errors -1 and 0.5
    "gradients_line": {"loss": [0.625], "gradients": {"w": [0.5, 0.0]}},
    "gradients_loop": {"loss": [LOOP[0][0] + LOOP[1][0]], "gradients": {"w": [LOOP[0][1], LOOP[1][1]]}},
}


@pytest.mark.parametrize("name", models.stored())
def test_the_stored_programs_equal_those_of_the_examples(url: str, name: str) -> None:
    path = ROOT / "examples" / "programs" / f"{name}.json"

    answer = httpx.post(
        f"{url}/v1/programs", content=path.read_bytes(), headers={"content-type": "application/json"}, timeout=60
    ).raise_for_status()

    assert path.read_text() == models.text_of(models.stored()[name])  # if not, run: python -m examples.models
    with Backpass(url) as service:
        assert answer.json()["id"] == service.register(models.stored()[name])


def test_a_refused_program_is_reported_with_the_place_of_each_problem(url: str) -> None:
    wrong = models.tape()
    wrong["blocks"][0]["ops"][1]["inputs"]["y"] = ["nowhere"]

    with Backpass(url) as service, pytest.raises(Refused) as refusal:
        service.register(wrong)

    assert "/program/blocks/0/ops/1/inputs/y" in str(refusal.value)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_shell_commands_of_the_readme_work_unchanged(url: str) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    script = "\n".join(block for block in blocks if "curl " in block).replace("http://127.0.0.1:8080", url)

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert '"status"' not in done.stdout  # no answer is a problem document


def run_python_of(page: str, url: str, folder: Path) -> str:
    """The output of the Python blocks of a page, run unchanged as one script."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert blocks
    for package in ("examples", "backpass_client", "core"):
        (folder / package).symlink_to(ROOT / package)
    script = "\n".join(blocks).replace("http://127.0.0.1:8080", url)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_code_of_the_readme_works_unchanged(url: str, tmp_path: Path) -> None:
    printed = re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", run_python_of("README.md", url, tmp_path))

    x, w, batch = np.array([1.0, 2.0, 3.0]), np.array([0.5, -0.25]), np.array([[1.0, 2.0], [3.0, 4.0]])
    t = np.tanh(0.5)
    expected = [(np.tanh(x) * x).sum(), *(np.tanh(x) + x * (1 - np.tanh(x) ** 2)), 1 - t**2, -2 * t * (1 - t**2)]
    expected += (batch.T @ (batch @ w - [1, 0])).tolist()
    numbers = np.array(printed, float)
    np.testing.assert_allclose(numbers[:8], expected, rtol=1e-6)
    assert numbers[8] == 0.625 and numbers[9] < 0.625  # three losses, then two weights
    assert numbers[13:].tolist() == [6.0, -2.0]


def test_the_safetensors_example_of_the_documentation_works_unchanged(url: str, tmp_path: Path) -> None:
    assert run_python_of("docs/tensors.md", url, tmp_path).split() == ["0.625", "[0.5", "0.", "]", "True"]
