"""Updates apart from their step: the two blocks compute the whole one, and only updates that gain are apart."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads import mlp
from core.compiler.compile import GradientQuery, compile_training
from core.optim.clipping import Clip, GlobalNorm
from core.optim.optimizers import OPTIMIZERS, Optimizer
from core.passes import updates
from core.passes.updates import updates_apart
from core.runtime.executable import Executable
from core.runtime.reference import execute
from core.wire import read


def training(optimizer: str, batch: int = 4, sizes: tuple[int, ...] = (9, 8, 5), **more: object) -> Executable:
    chosen = Optimizer(optimizer, {"learning_rate": 0.1} if optimizer != "adadelta" else {})
    return compile_training(read(mlp("mlp", batch, sizes).program), GradientQuery(loss="loss"), chosen, **more)


def assert_equal_to_the_whole(executable: Executable, found: updates.UpdatesApart) -> None:
    """Run both blocks and the whole one in the reference executor, and compare every result to the bit."""
    block, rng = executable.interpreter.block, np.random.default_rng(1)
    given = {n: rng.random(t.shape).astype(t.dtype) for n, t in zip(block.params, block.param_types, strict=True)}
    given = {n: v if v.dtype.kind == "f" else np.zeros_like(v) for n, v in given.items()}
    made = given | dict(zip(found.step.results, execute(found.step, list(given.values())), strict=True))
    new = execute(found.update, [made[n] for n in found.update.params])
    made |= dict(zip(found.update.results, new, strict=True))
    for name, value in zip(block.results, execute(block, list(given.values())), strict=True):
        np.testing.assert_array_equal(made[name], value)


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(updates, "LEAST_BYTES", 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gives_gradients", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_step_and_update_compute_the_results_of_the_whole_block(optimizer, gives_gradients, of_any_size):
    batch = 4 if gives_gradients else 1
    executable = training(optimizer, batch, gives_gradients=gives_gradients)
    block = executable.interpreter.block

    found = updates_apart(block, executable.updated())

    if optimizer == "lamb":  # a new value needs a norm of the update
        assert found is None
        return
    assert found is not None
    weights = {f"w{i}" for i in (0, 1)} if gives_gradients else {"w0"}
    assert weights <= {block.params[j] for j in found.updated.values()}
    assert_equal_to_the_whole(executable, found)
    assert [block.results[i] for i in found.updated] == list(found.update.results)
    assert [block.params[j] for j in found.updated.values()] == list(found.update.params[: len(found.updated)])


@pytest.mark.parametrize(
    ("batch", "optimizer", "how", "apart"),
    [
        (1, "sgd", {"gives_gradients": False}, True),  # the product of a column and a row belongs to the update
        (4, "sgd", {}, True),
        (600, "sgd", {}, False),  # in the product's epilogue memory is fast enough
        (128, "sgd", {}, False),
        (128, "adam", {}, True),  # three values for each gradient
        (600, "adam", {}, False),
        (600, "sgd", {"gives_gradients": False}, False),
        (600, "sgd", {"clip": Clip(GlobalNorm(1.0))}, True),  # no epilogue: the norm is known after all products
        (600, "adam", {"clip": Clip(GlobalNorm(1.0)), "gives_gradients": False}, True),  # which store the gradients
    ],
)  # fmt: skip
def test_an_update_is_apart_if_that_takes_less_time(batch, optimizer, how, apart):
    executable = training(optimizer, batch, (640, 640), **how)

    found = updates_apart(executable.interpreter.block, executable.updated())

    weights = "w0" in {
        executable.interpreter.block.params[j] for j in ({} if found is None else found.updated).values()
    }
    assert weights is apart


def test_small_values_are_not_updated_apart():
    executable = training("adam")

    assert updates_apart(executable.interpreter.block, executable.updated()) is None


@pytest.mark.parametrize("max_norm", [1e-3, 1e6])
def test_clipped_updates_are_those_of_the_whole_block(max_norm, of_any_size):
    executable = training("adam", clip=Clip(GlobalNorm(max_norm)))
    block = executable.interpreter.block

    found = updates_apart(block, executable.updated())

    assert found is not None
    assert {"w0", "w1", "w0/first"} <= {block.params[j] for j in found.updated.values()}
    assert_equal_to_the_whole(executable, found)
