"""The small tasks train every parameter, with the losses of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from bench.small_tasks import TASKS, played
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.wire import read
from tests.beside_torch.installed import MISSING, torch


def losses_of(name: str, steps: int) -> list[float]:
    """The losses of the first steps."""
    task = TASKS[name]()
    batches = task.batches(steps)
    attrs = {key: value for key, value in task.optimizer.items() if key != "type"}
    step = compile_training(read(task.program), GradientQuery(loss="loss"), Optimizer("adam", attrs))
    values, losses = {**task.parameters, **step.initial_state()}, []
    for i in range(steps):
        out = step.step({**values, **{key: value[i] for key, value in batches.items()}}, step=i)
        assert not out.missing
        values |= out.parameters | out.optimizer_state
        losses.append(float(out.loss))
    moved = [key for key, value in task.parameters.items() if np.array_equal(values[key], value)]
    # the last bias of a critic cancels in its loss
    assert [key for key in moved if key != "d_b2"] == []
    return losses


@pytest.mark.parametrize("name", ["gan", "vae", "pinn"])
def test_every_parameter_of_a_task_is_trained(name):
    assert np.isfinite(losses_of(name, 2)).all()


def test_the_bandit_pays_for_the_largest_of_the_first_numbers():
    state = np.array([[0.0, 3.0, 1.0, 2.0, 9.0], [5.0, 3.0, 1.0, 2.0, 9.0]])
    policy = np.full((2, 4), 0.25)

    action, reward = played(policy, state, np.array([0.3, 0.99]))

    assert action.tolist() == [1, 3]
    assert reward.tolist() == [1.0, -0.25]


@pytest.mark.slow
@pytest.mark.skipif(torch is None, reason=MISSING)
@pytest.mark.parametrize("name", ["gan", "vae", "pinn"])
def test_pytorch_has_the_same_losses(name):
    from bench.peers.torch_small import Training

    task = TASKS[name]()

    np.testing.assert_allclose(losses_of(name, 4), Training(task).run(task.batches(4), 4), rtol=2e-3)
