"""The peers of the benchmarks compute the same step as Backpass, and are skipped if they are not installed."""

from __future__ import annotations

import ast
import io
import os
from importlib.util import find_spec

import numpy as np
import pytest

from bench.classes import CLASSES
from bench.peers import backpass
from bench.peers.messages import receive, send
from bench.peers.process import BEFORE, OWN, started
from bench.steps import disagreement, drawn_apart, measured
from bench.workload import OPTIMIZERS
from bench.workloads import WORKLOADS, mlp, of_family
from core.compiler.compile import GradientQuery, compile_gradient
from core.runtime.sparse_rows import RowArray
from core.wire import read
from tests.beside_torch.installed import MISSING, torch
from tests.paths import ROOT

SMALL = mlp("mlp", 4, (5, 6, 3))


def test_a_received_message_equals_the_sent_one():
    pipe = io.BytesIO()
    arrays = {"scalar": np.asarray(3), "turned": np.arange(6.0, dtype="float32").reshape(2, 3).T}

    send(pipe, {"do": "run", "steps": 3}, arrays)
    pipe.seek(0)
    said, got = receive(pipe)

    assert said == {"do": "run", "steps": 3}
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype
        assert np.array_equal(got[name], array)
        assert got[name].shape == array.shape


def test_a_truncated_message_raises_eof_error():
    pipe = io.BytesIO()
    send(pipe, {"do": "run"})

    with pytest.raises(EOFError):
        receive(io.BytesIO(pipe.getvalue()[:-1]))


def one_step(workload):
    """Loss and updated parameters of one step: gradients of the reference executor, update written out here."""
    shapes = {name: value.shape for name, value in workload.feeds.items()}
    step = compile_gradient(read(workload.program), GradientQuery(loss="loss"), shapes=shapes).step
    outputs = step({**workload.feeds, **workload.parameters})
    gradients = {
        name: value.whole() if isinstance(value, RowArray) else value for name, value in outputs.gradients.items()
    }
    moved = {name: value - moves(workload, gradients[name]) for name, value in workload.parameters.items()}
    return float(outputs.loss), moved


def moves(workload, gradient):
    """The first step of SGD or of Adam, whose corrected means are the gradient and its square."""
    attributes = OPTIMIZERS[workload.optimizer]
    if workload.optimizer == "sgd":
        return attributes["learning_rate"] * gradient
    return attributes["learning_rate"] * gradient / (np.abs(gradient) + attributes["epsilon"])


def test_a_benchmark_step_is_a_gradient_descent_step():
    training = backpass.Training(SMALL)

    loss = training.run(1)

    assert disagreement(SMALL, one_step(SMALL), (loss, training.parameters())) is None


@pytest.mark.parametrize("wrong", ["loss", "w1"])
def test_the_comparison_detects_an_error_of_half_a_percent(wrong):
    loss, parameters = one_step(SMALL)
    other = dict(parameters)
    if wrong != "loss":
        other[wrong] = SMALL.parameters[wrong] + 1.005 * (parameters[wrong] - SMALL.parameters[wrong])

    found = disagreement(SMALL, (loss, parameters), (loss * (1.005 if wrong == "loss" else 1), other))

    assert found is not None
    assert wrong in found


def test_a_peer_that_cannot_be_imported_is_skipped_with_the_reason(capsys):
    with started(["no_such_framework"], os.sched_getaffinity(0)) as peers:
        assert not peers

    assert "no_such_framework is left out: ModuleNotFoundError" in capsys.readouterr().out


def test_backpass_alone_is_measured_without_a_ratio(capsys):
    with started([OWN], sorted(os.sched_getaffinity(0))[:1]) as peers:
        found = measured(peers, "1", ["mlp_small"], rounds=2)

    assert set(found["mlp_small"]) == {OWN}
    assert all(seconds > 0 for seconds in found["mlp_small"][OWN].values())
    assert "geometric mean" not in capsys.readouterr().out


def test_another_checkout_is_measured_as_a_peer():
    with started([OWN], sorted(os.sched_getaffinity(0))[:1], before=ROOT) as peers:
        found = measured(peers, "1", ["mlp_small"], rounds=2)

    assert set(found["mlp_small"]) == {OWN, BEFORE}


@pytest.mark.slow
@pytest.mark.skipif(torch is None, reason=MISSING)
@pytest.mark.parametrize("name", WORKLOADS)
def test_pytorch_takes_the_same_step(name):
    from bench.peers import torch_eager

    workload = WORKLOADS[name]()
    training = torch_eager.Training(workload)

    loss = training.run(1)

    compare = drawn_apart if workload.random else disagreement
    assert compare(workload, one_step(workload), (loss, training.parameters())) is None


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="tensorflow is not installed; `make bench-peers` installs it"
)
@pytest.mark.parametrize("compiled", [False, True], ids=["function", "xla"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_tensorflow_takes_the_same_step(name, compiled):
    from bench.peers import tf_function

    workload = WORKLOADS[name]()
    training = tf_function.Training(workload, compiled)

    loss = training.run(1)

    compare = drawn_apart if workload.random else disagreement
    assert compare(workload, one_step(workload), (loss, training.parameters())) is None


@pytest.mark.parametrize("framework", ["torch", "jax", "tf"])
def test_every_workload_of_a_class_is_written_for_every_framework(framework):
    """Read from the sources, as the frameworks may be absent: a missing loss would only be a dash in a table."""
    written = {}
    for path in (ROOT / "bench" / "classes").glob(f"*_{framework}.py"):
        written |= dict.fromkeys(families_in(path))

    for name in CLASSES:
        of_family(written, name)


def families_in(path):
    """The keys of the dictionary `LOSSES` of a module."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "LOSSES":
            return [key.value for key in statement.value.keys]
    return []
