"""A loop of steps in one process does what the steps of a service do."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads import WORKLOADS
from core.compile import GradientQuery, Optimizer, compile_training
from core.errors import CoreError
from core.trainer import Trainer
from core.wire import read

RATE = {"learning_rate": 0.05}


def executable(workload, optimizer):
    shapes = {k: v.shape for k, v in workload.feeds.items()}
    return compile_training(
        read(workload.program), GradientQuery(loss="loss"), Optimizer(optimizer, RATE), shapes=shapes
    )


@pytest.mark.parametrize("name", ["mlp_small", "rnn_while_10", "branch", "deep_graph"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_of_a_trainer_are_steps(name, optimizer):
    workload = WORKLOADS[name]()
    plain = executable(workload, optimizer)
    values = {**workload.feeds, **workload.parameters, **plain.initial_state()}
    losses = []
    for _ in range(4):
        out = plain.step(values)
        values |= out.parameters | out.optimizer_state
        losses.append(float(out.loss))

    for trainer in (Trainer(plain, workload.parameters), Trainer(plain.compiled(), workload.parameters)):
        found = [trainer.step(workload.feeds) for _ in range(4)]

        np.testing.assert_allclose(found, losses, rtol=1e-4)
        for key, value in trainer.values().items():
            np.testing.assert_allclose(value, values[key], rtol=2e-3, atol=2e-5)


def test_a_step_that_fails_changes_nothing():
    workload = WORKLOADS["mlp_small"]()
    trainer = Trainer(executable(workload, "sgd").compiled(), workload.parameters)
    trainer.step(workload.feeds)
    before = trainer.values()
    wrong = workload.feeds | {"y": workload.feeds["y"] + 100}

    with pytest.raises(CoreError, match="outside 0 to 9"):
        trainer.step(wrong)
    with pytest.raises(CoreError, match="is declared as"):
        trainer.step(workload.feeds | {"x": workload.feeds["x"][:3]})

    for key, value in trainer.values().items():
        np.testing.assert_array_equal(value, before[key])
    assert trainer.step(workload.feeds) > 0
