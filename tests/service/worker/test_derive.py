"""Sessions from the values of a checkpoint: other settings, other programs, and all differences told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.ir.errors import CoreError, InvalidProgram, ProgramError
from service.objects.tensor_file import chunks
from service.worker import derive, optimizer_state, sessions, snapshot, training
from tests.programs import Sketch
from tests.service.prepared import prepared
from tests.service.worker.test_last_step import going
from tests.service.worker.test_snapshot import KEY, Side, feeds, model, same_bits

ADAM = {"type": "adam", "attrs": {"learning_rate": 0.05}}
PLAIN: dict[str, Any] = {"changes": {"query": {}}, "missing": "refuse", "extra": "refuse", "initializers": {}}


def trained(tmp_path: Path, steps: int = 3, **more: Any) -> Side:
    side = Side(tmp_path).create(model(), ADAM, program_id="prg_a", **more)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        side.call(training.step, feeds(rng, "float32"))
    side.call(training.gradients, feeds(rng, "float32"), accumulate=True)
    return side


def derived(side: Side, sketch: Sketch, tensors: Any = None, program_id: str = "prg_a", **args: Any) -> Side:
    snapshot.save(side.state, {"id": "s", "key": KEY}, {})
    other = Side(Path(side.state.settings["objects"]))
    asked = {"id": "s", "key": KEY, "document": sketch.document, "program_id": program_id, "optimizer_state": True}
    derive.derive(other.state, {**asked, **PLAIN, **args}, tensors or {})
    other.seq = side.seq
    return other


def with_head() -> Sketch:
    """The model with another head: it has `w` of the checkpoint, and `head`, but no table."""
    s = Sketch()
    s.feed("x", np.zeros((4, 3)), dtype="float32")
    s.param("w", np.zeros((2, 3)), dtype="float32")
    s.param("head", np.zeros((2, 5)), dtype="float32")
    hidden = s.op("matmul", "x", s.op("transpose", "w", axes=[1, 0]))
    s.op("reduce_mean", s.op("square", s.op("matmul", hidden, "head")), out="loss")
    return s


def test_without_changes_a_derived_session_equals_the_saved_one(tmp_path):
    side = trained(tmp_path)
    other = derived(side, model())

    same_bits(other.held(), side.held())
    for rng in (np.random.default_rng(1), np.random.default_rng(2)):
        given = feeds(rng, "float32")
        same_bits(other.call(training.step, given), side.call(training.step, given))


def test_another_learning_rate_keeps_the_optimizer_state(tmp_path):
    side = trained(tmp_path)
    slower = {"type": "adam", "attrs": {"learning_rate": 0.001}}
    other = derived(side, model(), changes={"query": {}, "optimizer": slower, "seed": 9})

    same_bits(other.held(), side.held())
    assert (other.session.optimizer.attrs["learning_rate"], other.session.seed) == (0.001, 9)


def test_without_optimizer_state_training_starts_anew_from_the_parameters(tmp_path):
    side = trained(tmp_path)
    other = derived(
        side, model(), changes={"query": {}, "optimizer": {"type": "sgd", "attrs": {}}}, optimizer_state=False
    )

    assert other.session.about() == {"version": 0, "step": 0, "seq": 0, "accumulated": 0}
    assert other.session.slots == {}
    same_bits(other.session.parameters, side.session.parameters)


@pytest.mark.parametrize("other", ["sgd", "adamw", "lamb", "momentum"])
def test_optimizer_state_of_another_type_is_refused_by_parameter(tmp_path, other):
    """Also if the slots have the same names: their meanings may differ."""
    with pytest.raises(InvalidProgram) as error:
        derived(trained(tmp_path), model(), changes={"query": {}, "optimizer": {"type": other, "attrs": {}}})

    told = [problem.message for problem in error.value.problems]
    advice = "to start without its state, send optimizer_state: false"
    assert told == [f"{name!r} was trained by adam, not {other}; {advice}" for name in ("table", "w")]


def test_a_16_bit_parameter_given_anew_starts_without_the_rounding_remainder_of_the_old_value(tmp_path):
    s = Sketch()
    s.feed("x", np.ones(1), dtype="bfloat16")
    s.param("w", [1000.0], dtype="bfloat16")
    s.total(s.op("mul", "w", "x"))
    side = Side(tmp_path)
    asked = {"id": "s", "document": s.document, "query": {"loss": "loss"}, "clip": None, "seed": 3}
    rate = {"type": "sgd", "attrs": {"learning_rate": 1.0}}
    asked |= {"optimizer": rate, "initializers": {}, "program_id": "prg_a"}
    sessions.create(side.state, asked, {"w": s.values["w"]})
    side.call(training.step, {"x": s.values["x"]})
    assert side.session.slots["w/rest"] == -1.0  # 999 in bfloat16 is 1000

    other = derived(side, s, {"w": np.zeros_like(s.values["w"])})
    other.call(training.step, {"x": np.zeros_like(s.values["x"])})

    assert not other.session.parameters["w"].any()


def test_another_loss_scale_begins_with_its_own_factor(tmp_path):
    side = trained(tmp_path, loss_scale={"initial": 4096.0})
    changes = {"query": {}, "loss_scale": {"initial": 8.0, "most": 64.0}}

    said, _ = derived(side, model(), changes=changes).call(training.step, feeds(np.random.default_rng(1), "float32"))

    assert said["loss_scale"] == 8.0


def test_fine_tuning_names_all_missing_and_extra_tensors(tmp_path):
    with pytest.raises(InvalidProgram) as error:
        derived(trained(tmp_path), with_head(), program_id="prg_b", optimizer_state=False)

    told = [problem.message.partition(";")[0] for problem in error.value.problems]
    assert told == [
        "the checkpoint has no value of parameter 'head'",
        "the program has no parameter or state 'b'",
        "the program has no parameter or state 'seen'",
        "the program has no parameter or state 'table'",
    ]


@pytest.mark.parametrize("keeps", [False, True])
def test_fine_tuning_draws_the_head_and_keeps_the_rest(tmp_path, keeps):
    side = trained(tmp_path)
    tuned = derived(side, with_head(), program_id="prg_b", missing="initialize", extra="ignore", optimizer_state=keeps)

    same_bits(tuned.session.parameters["w"], side.session.parameters["w"])
    assert np.any(tuned.session.parameters["head"] != 0) and tuned.session.parameters.keys() == {"w", "head"}
    slots = tuned.session.slots
    assert slots.keys() == {f"{p}/{slot}" for p in ("w", "head") for slot in ("first", "second", "step")}
    wanted = side.session.slots["w/first"] if keeps else np.zeros((2, 3), "float32")
    same_bits(np.asarray(slots["w/first"]), np.asarray(wanted))
    assert not np.any(slots["head/first"])
    assert tuned.session.steps == (side.session.steps if keeps else 0)
    assert tuned.session.gradients.count == 0, "added-up gradients belong to the other program"


def test_given_values_replace_those_of_the_checkpoint(tmp_path):
    side = trained(tmp_path)
    head = np.ones((2, 5), "float32")
    tuned = derived(side, with_head(), {"head": head}, program_id="prg_b", extra="ignore", optimizer_state=False)

    same_bits(tuned.session.parameters["head"], head)


def test_plain_files_of_parameters_start_a_session(tmp_path):
    sketch = model()
    values = {name: value for name, value in sketch.values.items() if name not in ("x", "i")}
    prepared(str(tmp_path)).write(KEY, chunks(values, {}))
    other = Side(tmp_path)
    settings = {"query": {"loss": "loss"}, "optimizer": ADAM, "clip": None, "loss_scale": None, "seed": 1}
    args = {"id": "s", "key": KEY, "document": sketch.document, "optimizer_state": False, **PLAIN, "changes": settings}
    derive.derive(other.state, args, {})

    same_bits({**other.session.parameters, **other.session.states}, values)
    with pytest.raises(ProgramError, match="no optimizer state") as error:
        derive.derive(other.state, {**args, "optimizer_state": True}, {})
    assert error.value.pointer == "/optimizer_state"


def test_a_refused_derivation_leaves_no_session(tmp_path):
    side = trained(tmp_path)
    snapshot.save(side.state, {"id": "s", "key": KEY}, {})
    state = Side(tmp_path).state
    state.stop = going("canceled")
    args = {"id": "s", "key": KEY, "document": model().document, "optimizer_state": True, **PLAIN}

    with pytest.raises(CoreError, match="stop"):
        derive.derive(state, args, {})

    assert state.sessions == {}


# --- optimiser state ----------------------------------------------------------------------------------------------


def test_optimizer_state_moves_to_another_session(tmp_path):
    """A session with the parameters, the optimiser state and the step of another one goes on as that one."""
    side = trained(tmp_path)
    side.call(training.discard, {})
    said, slots = optimizer_state.get_optimizer(side.state, {"id": "s", "names": None}, {})
    other = Side(tmp_path).create(model(), ADAM, program_id="prg_a")
    other.session.parameters |= {name: value.copy() for name, value in side.session.parameters.items()}
    other.session.states |= side.session.states
    for value in slots.values():
        value.setflags(write=False)
    optimizer_state.put_optimizer(other.state, {"id": "s", "member": "/slots", "step": said["step"]}, dict(slots))

    other.seq = side.seq
    for seed in range(3):
        given = feeds(np.random.default_rng(seed), "float32")
        found, wanted = other.call(training.step, given), side.call(training.step, given)
        same_bits(found[1], wanted[1])


def test_optimizer_state_is_read_by_parameter_and_by_slot(tmp_path):
    side = trained(tmp_path)

    def names(*asked: str) -> set[str]:
        return set(optimizer_state.get_optimizer(side.state, {"id": "s", "names": list(asked)}, {})[1])

    assert names("w") == {"w/first", "w/second", "w/step"}
    assert names("w/first", "table/step") == {"w/first", "table/step"}
    with pytest.raises(InvalidProgram) as error:
        names("w/frist", "w")
    assert [p.pointer for p in error.value.problems] == ["/names/0"]
    assert "w/first" in (error.value.problems[0].suggestion or "")


def test_wrong_optimizer_state_changes_nothing_and_is_told_at_once(tmp_path):
    side = trained(tmp_path)
    before = {name: np.array(value) for name, value in side.held().items()}
    wrong = {"w/first": np.zeros((3, 2), "float32"), "w/second": np.zeros((2, 3)), "v/first": np.zeros(1)}
    right = {"table/first": np.zeros((6, 2), "float32")}

    with pytest.raises(InvalidProgram) as error:
        optimizer_state.put_optimizer(side.state, {"id": "s", "member": "/slots", "step": 0}, wrong | right)

    assert [p.pointer for p in error.value.problems] == [
        "/slots/w~1first/shape",
        "/slots/w~1second/dtype",
        "/slots/v~1first",
    ]
    same_bits(side.held(), before)


@pytest.mark.parametrize("first", ["schedule", "number"])
def test_a_step_sets_the_position_of_a_schedule(tmp_path, first):
    """Also of one that has not counted an update, because it has just replaced a number."""
    cosine = {"schedule": "cosine_decay", "learning_rate": 0.1, "decay_steps": 10}
    scheduled = {"type": "sgd", "attrs": {"learning_rate": cosine}}
    plain = {"type": "sgd", "attrs": {"learning_rate": 0.1}}
    side = Side(tmp_path).create(model(), scheduled if first == "schedule" else plain)
    side.call(training.step, feeds(np.random.default_rng(0), "float32"))
    sessions.configure(side.state, {"id": "s", "optimizer": scheduled, "shown": {}}, {})

    optimizer_state.put_optimizer(side.state, {"id": "s", "member": "/slots", "step": 5}, {})

    said, _ = side.call(training.step, feeds(np.random.default_rng(0), "float32"))
    assert said["learning_rate"] == pytest.approx(0.1 * (1 + np.cos(np.pi * 5 / 10)) / 2, rel=1e-6)
    assert said["step"] == 6
