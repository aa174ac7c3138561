"""A step with room for many sizes has the results of steps that are compiled for each of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from bench import workloads
from bench.classes import recurrence, tables
from bench.classes.made import Symbols, made, normal
from bench.workload import OPTIMIZERS, Workload
from core.autodiff.hooks import Hook
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, Optimizer, append_backward, compile_gradient, compile_training
from core.compiler.room import room_for
from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.plan.partition import plan_parts
from core.wire import read, write
from tests.programs import Sketch, whole

SIZES = (1, 2, 7, 16)


def dropout(batch: int, inputs: int, hidden: int) -> Workload:
    rng = np.random.default_rng(0)
    feeds = {"x": normal(rng, batch, inputs), "y": normal(rng, batch, hidden)}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        return bp.mse_loss(bp.dropout(bp.tanh(given["x"] @ p["w"]), p=0.5), given["y"])

    return made("dropout", loss, feeds, {"w": normal(rng, inputs, hidden)})


FIRST = {
    "mlp": lambda: workloads.mlp("mlp", 5, (7, 70, 3)),
    "dropout": lambda: dropout(6, 5, 40),
    "convnet": lambda: workloads.convnet(2),
    "lstm": lambda: recurrence.lstm_lengths(12, 3, 4, 5, 3),
    "language model": lambda: recurrence.language_model(6, 3, 20, 8),
    "word2vec": lambda: tables.word2vec(7, 4, 3),
    "factorisation": lambda: tables.factorisation(7, 4, 3),
}
"""Workloads whose first axis of feeds is open here."""


def opened(workload: Workload, size: int, axes: tuple[int, ...]) -> Program:
    """The program of a workload, with an open size where a feed has `size` elements along one of `axes`."""
    document = copy.deepcopy(workload.program)
    for variable in document["blocks"][0]["vars"]:
        if variable["name"] in workload.feeds:
            shape = workload.feeds[variable["name"]].shape
            variable["shape"] = [-1 if i in axes and n == size else n for i, n in enumerate(shape)]
    return read(document)


def resized(value: np.ndarray, size: int, to: int, axes: tuple[int, ...]) -> np.ndarray:
    for axis in axes:
        if axis < value.ndim and value.shape[axis] == size:
            value = np.take(value, np.arange(to) % size, axis)
    return value


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FIRST)
def test_a_step_equals_that_of_the_reference_executor_for_every_size(name):
    workload: Workload = FIRST[name]()
    size = next(iter(workload.feeds.values())).shape[0]
    program = opened(workload, size, (0,))
    optimizer = Optimizer(workload.optimizer, dict(OPTIMIZERS[workload.optimizer]))

    def step(feeds: dict[str, Any], **how: Any) -> Any:
        executable = compile_training(program, GradientQuery(loss="loss"), optimizer, **how)
        ready = executable.compiled() if executable.packs else executable
        values = {**feeds, **workload.parameters, **executable.initial_state()}
        return ready, ready.step(ready.packs(values) if ready.packs else values, seed=3, step=5)

    codes = set()
    for to in SIZES:
        feeds = {name: resized(value, size, to, (0,)) for name, value in workload.feeds.items()}
        if "lengths" in feeds:
            feeds["lengths"] = np.minimum(feeds["lengths"], to)
        shapes = {name: value.shape for name, value in feeds.items()}
        _, expected = step(feeds, shapes=shapes)
        room = room_for(program, shapes)
        codes.add(room.key)
        code, found = step(feeds, room=room)
        parts = plan_parts(code.interpreter.block, CPU_TARGET)

        assert [*parts.refused.values(), *(each.reason for plan in parts.regions for each in plan.interpreted)] == []
        np.testing.assert_allclose(found.loss, expected.loss, 1e-5)
        updated = whole(found.parameters)
        for each, value in whole(expected.parameters).items():
            np.testing.assert_allclose(updated[each], value, 1e-4, 1e-6, err_msg=f"{each} for {to}")
    assert len(codes) == 1


@pytest.mark.parametrize(
    "workload",
    [lambda: recurrence.language_model(70, 2, 7, 3), lambda: recurrence.seq2seq(70, 2, 7, 3, 4)],
    ids=["language model", "seq2seq"],
)
def test_the_results_of_a_scan_have_room_for_all_that_it_scans(workload):
    made = workload()
    program = read(made.program)
    room = room_for(program, {name: value.shape for name, value in made.feeds.items()})

    code = compile_training(program, GradientQuery(loss="loss"), Optimizer("sgd", dict(OPTIMIZERS["sgd"])), room=room)

    region = code.compiled().machine.region
    assert region is not None
    assert {shape[0] for shape in region.plan.expected.values()} <= {128}


def test_feeds_that_fill_their_room_are_not_copied():
    workload = workloads.mlp("mlp", 16, (7, 70, 3))
    program = opened(workload, 16, (0,))
    room = room_for(program, {name: value.shape for name, value in workload.feeds.items()})

    packed = room.packed(workload.feeds)

    assert all(np.shares_memory(packed[f"{name}@ROOM"], value) for name, value in workload.feeds.items())


def sentences(batch: int, time: int) -> Workload:
    """The mean of embedded words, with a net between."""
    rng = np.random.default_rng(1)
    feeds = {"words": rng.integers(0, 9, (batch, time)), "y": normal(rng, batch, 5)}
    parameters = {"table": normal(rng, 9, 4), "w": normal(rng, 4, 5)}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.tanh(bp.embedding(p["table"], given["words"]) @ p["w"])
        return bp.mse_loss(h.mean(1), given["y"])

    return made("sentences", loss, feeds, parameters, {"words": {0: "batch", 1: "time"}, "y": {0: "batch"}})


def test_several_open_sizes_have_room_in_one_step():
    first = sentences(3, 5)
    program = read(first.program)
    optimizer = Optimizer("sgd", dict(OPTIMIZERS["sgd"]))
    room = room_for(program, {name: value.shape for name, value in first.feeds.items()})
    code = compile_training(program, GradientQuery(loss="loss"), optimizer, room=room).compiled()
    assert room.shapes == {"words": (16, 16), "y": (16, 5)} and code.machine.region is not None

    for batch, time in ((3, 5), (1, 16), (16, 2), (7, 11), (2, 1)):
        workload = sentences(batch, time)
        shapes = {name: value.shape for name, value in workload.feeds.items()}
        values = {**workload.feeds, **workload.parameters}
        assert room_for(program, shapes).key == room.key

        exact = compile_training(program, GradientQuery(loss="loss"), optimizer, shapes=shapes)
        found, expected = code.step(code.packs(values)), exact.step(values)

        for name, value in expected.parameters.items():
            np.testing.assert_allclose(found.parameters[name], value, 1e-5, 1e-6, err_msg=f"{name} {batch} {time}")


def test_labels_along_two_open_sizes_give_the_gradient_of_each_row_to_its_place():
    rng = np.random.default_rng(2)
    feeds = {"x": normal(rng, 3, 5, 4), "label": rng.integers(0, 6, (3, 5, 1))}
    dims = {"x": {0: "batch", 1: "time"}, "label": {0: "batch", 1: "time"}}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        return bp.softmax_with_cross_entropy(given["x"] @ p["w"], given["label"]).mean()

    workload = made("labels", loss, feeds, {"w": normal(rng, 4, 6)}, dims)
    program, w = read(workload.program), workload.parameters["w"]
    room = room_for(program, {name: value.shape for name, value in feeds.items()})
    code = compile_training(program, GradientQuery(loss="loss"), Optimizer("sgd", dict(OPTIMIZERS["sgd"])), room=room)

    found = code.compiled().step(code.packs({**feeds, "w": w})).gradients["w"]

    logits = feeds["x"] @ w
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = np.einsum("bti,btc->ic", feeds["x"], shares - (feeds["label"] == np.arange(6))) / 15
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


def test_gradients_are_ready_at_the_ops_of_the_program_with_its_backward_pass():
    workload = sentences(3, 5)
    program = read(workload.program)
    room = room_for(program, {name: value.shape for name, value in workload.feeds.items()})

    code = compile_training(program, GradientQuery(loss="loss"), Optimizer("sgd", dict(OPTIMIZERS["sgd"])), room=room)

    assert code.ready_at == append_backward(program, "loss").ready_at


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chosen", [0, 2, 3])
def test_a_mask_of_known_size_chooses_rows_of_an_open_number(chosen):
    b = BlockBuilder()
    x, mask = b.param(TensorType((-1, 2), "float64"), "x"), b.param(TensorType((3,), "bool"), "mask")
    w = b.param(TensorType((), "float64"), "w")
    yes, no = b.emit("split_by_mask", x * w, mask)
    loss = b.emit("reduce_sum", b.emit("square", yes)) - b.emit("reduce_sum", no)
    roles = ("feed", "feed", "parameter")
    program = Program(b.build([]), tuple(Variable(v.name, v.type, r) for v, r in zip((x, mask, w), roles, strict=True)))
    values = {"x": np.arange(1.0, 7.0).reshape(3, 2), "mask": np.arange(3) < chosen, "w": np.array(0.5)}
    room, query = room_for(program, {"x": (3, 2)}), GradientQuery(loss=loss.name)
    parts, optimizer = (yes.name, no.name), Optimizer("sgd", {"learning_rate": 1.0})

    code = compile_training(program, query, optimizer, fetch=parts, room=room).compiled()

    found = code.step(code.packs(values))
    split = values["x"][:chosen], values["x"][chosen:]
    for name, rows in zip(parts, split, strict=True):
        np.testing.assert_allclose(found.fetched[name], 0.5 * rows)
    np.testing.assert_allclose(found.loss, 0.25 * (split[0] ** 2).sum() - 0.5 * split[1].sum())
    np.testing.assert_allclose(found.gradients["w"], (split[0] ** 2).sum() - split[1].sum())


def test_a_product_of_no_rows_with_a_matrix_of_an_open_size_is_empty():
    b = BlockBuilder()
    x, y = b.param(TensorType((0, 3), "float64"), "x"), b.param(TensorType((-1, 5), "float64"), "y")
    w = b.param(TensorType((), "float64"), "w")
    out = b.emit("matmul", x, y * w)
    loss = b.emit("reduce_sum", out) + b.emit("reduce_sum", y * w)
    roles = ("feed", "feed", "parameter")
    program = Program(b.build([]), tuple(Variable(v.name, v.type, r) for v, r in zip((x, y, w), roles, strict=True)))
    values = {"x": np.ones((0, 3)), "y": np.ones((3, 5)), "w": np.array(0.5)}
    query, optimizer = GradientQuery(loss=loss.name), Optimizer("sgd", {"learning_rate": 1.0})

    code = compile_training(program, query, optimizer, fetch=[out.name], room=room_for(program, {"y": (3, 5)}))

    found = code.compiled().step(code.packs(values))
    assert found.fetched[out.name].shape == (0, 5) and found.loss == 7.5 and found.gradients["w"] == 15


def test_axes_of_one_size_are_told_apart_from_axes_of_several():
    program = read(sentences(3, 5).program)

    keys = {room_for(program, {"words": shape, "y": (shape[0], 5)}).key for shape in ((3, 5), (9, 4), (4, 4), (3, 17))}

    assert len(keys) == 3


@pytest.mark.parametrize("match", [{"role": "feed"}, {"op": "dynamic_slice"}, {"variable": "x"}])
@pytest.mark.parametrize("action", [{"do": "scale", "factor": 3.0}, {"do": "record"}])
def test_a_hook_acts_on_the_feeds_of_the_program_and_not_on_the_ops_that_cut_them(match, action):
    b = BlockBuilder()
    x = b.param(TensorType((-1, 2), "float64"), "x")
    loss = b.emit("reduce_sum", x * x).name
    program = Program(b.build([]), (Variable("x", x.type, "feed"),))
    hook = Hook.read({"match": match, **action})
    value = np.arange(6.0).reshape(3, 2)
    acts, records = "op" not in match, action["do"] == "record"

    query = GradientQuery(targets=(loss,), inputs=("x",), hooks=(hook,))
    code = compile_gradient(program, query, room=room_for(program, {"x": (3, 2)})).compiled()
    assert code.packs is not None
    found = code.step(code.packs({"x": value}))

    np.testing.assert_allclose(found.gradients["x"], value * (6 if acts and not records else 2))
    assert [key.partition(":")[2] for key in found.recorded] == (["x"] if acts and records else [])


NAMING = {
    "inputs": lambda name: {"inputs": (name,)},
    "targets": lambda name: {"targets": (name,)},
    "no_grad_set": lambda name: {"no_grad_set": (name,)},
    "checkpoints": lambda name: {"checkpoints": (name,)},
    "hooks": lambda name: {"hooks": (Hook.read({"match": {"variable": name}, "do": "record"}),)},
}
"""Option of a query -> its value that names a variable."""


def refusal(program: Program, fetch: tuple[str, ...], options: dict[str, Any], **how: Any) -> tuple[Any, ...]:
    query = GradientQuery(**{"targets": ("loss",), "inputs": ("x",), **options})
    with pytest.raises(ProgramError) as caught:
        compile_gradient(program, query, fetch, **how)
    return caught.value.code, caught.value.message, caught.value.suggestion, caught.value.pointer


@pytest.mark.parametrize("option", [*NAMING, "fetch"])
def test_a_step_with_room_refuses_the_names_of_its_own_variables_as_other_steps_do(option):
    s = Sketch()
    s.feed("x", np.ones((3, 2)), shape=[-1, 2])
    s.total("x")
    program = read(s.document)
    room = room_for(program, {"x": (3, 2)})
    own = set(room.of(program).block.types) - set(program.block.types)

    assert len(own) == 5
    for name in own:
        fetch, options = ((name,), {}) if option == "fetch" else ((), NAMING[option](name))
        assert refusal(program, fetch, options, room=room) == refusal(program, fetch, options)


@pytest.mark.parametrize("name", ["x@ROOM", "x@ROOM@START"])
def test_no_program_has_the_names_of_variables_that_cut_feeds(name):
    s = Sketch()
    s.feed("x", 1.0)
    s.total(s.op("square", "x", out="y"))
    text = json.dumps(write(read(s.document)))
    assert read(json.loads(text.replace('"y"', '"y@GRAD"'))).block.types["y@GRAD"]

    with pytest.raises(ProgramError) as caught:
        read(json.loads(text.replace('"y"', f'"{name}"')))

    assert {problem.code for problem in caught.value.problems} == {"reserved_name"}


def test_the_names_of_a_program_do_not_meet_those_of_the_ops_that_cut_its_feeds():
    b = BlockBuilder()
    x, y = (b.param(TensorType((-1, 4), "float64"), name) for name in ("x", "y"))
    w = b.param(TensorType((), "float64"), "w")
    offset = b.constant(2.0, "float64") + b.constant(0.5, "float64")
    joined = b.emit("concat", x, y, axis=1)
    loss = b.emit("reduce_sum", joined * w) + offset
    roles = ("feed", "feed", "parameter")
    program = Program(b.build([]), tuple(Variable(v.name, v.type, r) for v, r in zip((x, y, w), roles, strict=True)))
    values = {"x": np.ones((3, 4)), "y": np.ones((3, 4)), "w": np.array(2.0)}
    room = room_for(program, {"x": (3, 4), "y": (3, 4)})

    code = compile_training(program, GradientQuery(loss=loss.name), Optimizer("sgd", {"learning_rate": 1.0}), room=room)

    for step in (code, code.compiled()):
        found = step.step(code.packs(values))
        assert found.loss == 2 * 24 + 2.5 and found.loss.shape == ()
        assert found.parameters["w"] == 2 - 24
