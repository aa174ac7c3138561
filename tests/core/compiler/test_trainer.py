"""A trainer's steps in one process equal separate steps of the executable."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from bench.workloads import WORKLOADS
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.compiler.trainer import Trainer
from core.ir.errors import CoreError, ProgramError
from core.wire import read
from tests.programs import Sketch

RATE = {"learning_rate": 0.05}


def executable(workload, optimizer):
    shapes = {k: v.shape for k, v in workload.feeds.items()}
    return compile_training(
        read(workload.program), GradientQuery(loss="loss"), Optimizer(optimizer, RATE), shapes=shapes
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["mlp_small", "rnn_while_10", "branch", "deep_graph"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_of_a_trainer_equal_steps_of_the_executable(name, optimizer):
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


def test_a_failed_step_changes_no_value():
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


FEEDS = {
    "as it is": lambda: np.zeros((4, 3)),
    "turned": lambda: np.zeros((3, 4)).T,
    "every second row": lambda: np.zeros((8, 3))[::2],
    "unaligned": lambda: np.zeros(97, np.uint8)[1:].view(np.float64).reshape(4, 3),
    "of a class of its own": lambda: np.zeros((4, 3)).view(np.matrix),
}


@pytest.mark.parametrize("make", FEEDS.values(), ids=FEEDS.keys())
def test_a_step_reads_the_current_values_of_a_feed(make):
    sketch = Sketch()
    sketch.feed("x", np.zeros((4, 3)))
    sketch.param("w", [[0.5], [-0.25], [1.0]])
    sketch.total(sketch.op("square", sketch.op("mul", "x", sketch.op("transpose", "w", axes=[1, 0]))))
    plain = compile_training(
        read(sketch.document), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.0})
    )

    for executable in (plain, plain.compiled()):
        trainer, x = Trainer(executable, {"w": sketch.values["w"]}), make()
        for step in range(5):
            x[...] = step
            assert trainer.step({"x": x}) == 4 * step**2 * (0.25 + 0.0625 + 1)


def test_a_feed_whose_shape_was_changed_in_place_is_refused():
    sketch = Sketch()
    sketch.feed("x", np.zeros((4, 3)))
    sketch.param("w", np.ones((4, 3)))
    sketch.total(sketch.op("mul", "x", "w"))
    step = compile_training(read(sketch.document), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.1}))
    trainer, x = Trainer(step.compiled(), {"w": sketch.values["w"]}), np.ones((4, 3))
    trainer.step({"x": x})

    x.shape = (3, 4)
    with pytest.raises(ProgramError) as error:
        trainer.step({"x": x})
    assert error.value.code == "feed_shape"


def test_a_trainer_returns_states_that_no_step_reads():
    sketch = Sketch()
    sketch.feed("x", [1.0, 2.0])
    sketch.param("w", [0.5, 0.25])
    sketch._leaf("state", "last", np.zeros(2), "float64")
    sketch.op("scale", "x", scale=3.0, out="last")
    sketch.total(sketch.op("mul", "x", "w"))
    held = {name: sketch.values[name] for name in ("w", "last")}
    plain = compile_training(read(sketch.document), GradientQuery(loss="loss"), Optimizer("sgd", RATE))

    for trainer in (Trainer(plain, held), Trainer(plain.compiled(), held)):
        for x in (1.0, 2.0, 3.0):
            trainer.step({"x": np.array([x, 2.0])})
            np.testing.assert_array_equal(trainer.values()["last"], [3 * x, 6.0])


@pytest.mark.parametrize("wrong", [{"v": np.zeros(2)}, {"x": None}, {}])
def test_a_trainer_names_a_missing_feed_at_its_first_step(wrong):
    sketch = Sketch()
    sketch.feed("x", [1.0, 2.0])
    sketch.param("w", [0.5, 0.25])
    sketch.total(sketch.op("mul", "x", "w"))
    training = compile_training(read(sketch.document), GradientQuery(loss="loss"), Optimizer("sgd", RATE))
    trainer = Trainer(training.compiled(), {"w": sketch.values["w"]})

    with pytest.raises(CoreError):
        trainer.step(wrong)


def test_a_trainer_refuses_values_of_another_dtype():
    workload = WORKLOADS["mlp_small"]()
    wrong = {name: value.astype("float64") for name, value in workload.parameters.items()}

    with pytest.raises(CoreError, match="is declared as"):
        Trainer(executable(workload, "sgd").compiled(), wrong).step(workload.feeds)


def table_trainer(optimizer: str, ids: list[int], sparse: bool, native: bool) -> Trainer:
    s = Sketch()
    s.param("E", np.arange(12.0).reshape(6, 2) / 10)
    s.param("w", [0.5, 0.9])
    s.feed("ids", ids, dtype="int64")
    s.total(s.op("square", s.op("mul", s.op("embedding", "E", "ids", is_sparse=sparse), "w")))
    plain = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer(optimizer, RATE))
    return Trainer(plain.compiled() if native else plain, {name: s.values[name] for name in ("E", "w")})


@pytest.mark.parametrize(
    ("optimizer", "steps"),
    [
        ("sgd", [[1, 4, 1], [0, 5, 5], [2, 3, 1]]),
        ("adagrad", [[1, 4, 1], [0, 5, 5], [2, 3, 1]]),
        ("adam", [[0, 1, 2, 3, 4, 5]] * 3),  # it moves rows with a zero gradient too, so each step reads all rows
    ],
)
@pytest.mark.parametrize("native", [False, True])
def test_a_trainer_of_a_sparse_table_takes_the_steps_of_a_dense_one(optimizer, steps, native):
    trainers = [table_trainer(optimizer, steps[0], sparse, native) for sparse in (False, True)]

    for ids in steps:
        dense, rows = (trainer.step({"ids": np.array(ids)}) for trainer in trainers)
        np.testing.assert_allclose(rows, dense, rtol=1e-12)

    dense, rows = (trainer.values() for trainer in trainers)
    assert rows.keys() == dense.keys()
    for name, value in rows.items():
        assert value.dtype == dense[name].dtype
        np.testing.assert_allclose(value, dense[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("native", [False, True])
def test_a_failed_step_changes_no_row_of_a_sparse_table(native):
    trainer = table_trainer("sgd", [1, 4, 1], sparse=True, native=native)
    start = trainer.values()
    trainer.step({"ids": np.array([1, 4, 1])})
    before = trainer.values()

    with pytest.raises(CoreError):
        trainer.step({"ids": np.array([1, 6, 1])})

    for name, value in trainer.values().items():
        np.testing.assert_array_equal(value, before[name])
    changed = (before["E"] != start["E"]).any(axis=1)
    np.testing.assert_array_equal(changed, [False, True, False, False, True, False])


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_step_as_machine_code_copies_no_table(optimizer):
    s = Sketch()
    s.param("E", np.ones((200_000, 8)))
    s.feed("ids", [[3, 199_999], [-1, 5]], dtype="int64")
    s.total(s.op("square", s.op("embedding", "E", "ids", is_sparse=True)))
    plain = compile_training(read(s.document), GradientQuery(loss="loss"), Optimizer(optimizer, RATE))
    trainer = Trainer(plain.compiled(), {"E": s.values["E"]})
    trainer.step({"ids": s.values["ids"]})

    tracemalloc.start()
    for _ in range(3):
        trainer.step({"ids": s.values["ids"]})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000  # the table has 12.8 MB
    changed = (trainer.values()["E"] != 1.0).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [3, 5, 199_999]
