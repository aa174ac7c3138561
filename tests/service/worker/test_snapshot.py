"""A session that is saved and restored in another worker goes on as if nothing had happened, to the bit."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.ir.errors import CoreError, ExecutionError, InvalidProgram
from core.optim.optimizers import OPTIMIZERS
from core.runtime.sparse_rows import RowArray
from service.objects.tensor_file import mapped
from service.settings import Settings
from service.worker import sessions, snapshot, training
from service.worker.session import WorkerSession
from service.worker.state import WorkerState
from tests.programs import Sketch
from tests.service.prepared import prepared
from tests.service.worker.test_last_step import going

KEY = "checkpoints/a"
RNG = np.random.default_rng(5)
COSINE = {"schedule": "cosine_decay", "learning_rate": 0.05, "decay_steps": 12}


def model(dtype: str = "float32", sparse: bool = True) -> Sketch:
    """A regression with dropout, a table, a bias that is not trained, and a state that counts."""
    s = Sketch()
    s.feed("x", RNG.standard_normal((4, 3)), dtype=dtype)
    s.feed("i", RNG.integers(0, 6, 4), dtype="int64")
    s.param("w", RNG.standard_normal((2, 3)), dtype=dtype)
    s.param("b", RNG.standard_normal(2), dtype=dtype, trainable=False)
    s.param("table", RNG.standard_normal((6, 2)), dtype=dtype)
    s._leaf("state", "seen", 0.0, "float32")
    s.op("increment", "seen", out="seen", step=1)
    line = s.op("add", s.op("dropout", s.op("matmul", "x", s.op("transpose", "w", axes=[1, 0])), p=0.25), "b")
    s.op("mse_loss", line, s.op("embedding", "table", "i", is_sparse=sparse), out="loss")
    return s


class Side:
    """A session in its own worker."""

    def __init__(self, folder: Path, compile: str = "never") -> None:
        found = Settings(compile=compile, data_dir=folder)  # type: ignore[arg-type]
        self.state = WorkerState(
            "w", "cpu", np, found.model_dump(mode="json") | {"objects": prepared(str(folder)).url}, going()
        )
        self.seq = 0

    def create(self, sketch: Sketch, optimizer: dict[str, Any], **more: Any) -> Side:
        asked = {"id": "s", "document": sketch.document, "query": {"loss": "loss"}, "clip": None, "seed": 3}
        values = {n: v for n, v in sketch.values.items() if n not in ("x", "i")}
        sessions.create(self.state, {**asked, "optimizer": optimizer, "initializers": {}, **more}, values)
        return self

    def restored(self, sketch: Sketch, compile: str, **args: Any) -> Side:
        """The session after a save here and a restore in a worker that has never seen it."""
        said, _ = snapshot.save(self.state, {"id": "s", "key": KEY}, {})
        other = Side(Path(self.state.settings["objects"]), compile)
        asked = {"id": "s", "key": KEY, "document": sketch.document, "sha256": said["sha256"], **args}
        restored, _ = snapshot.restore(other.state, asked, {})
        assert {name: restored[name] for name in self.session.about()} == self.session.about()
        other.seq = self.seq
        return other

    @property
    def session(self) -> WorkerSession:
        return self.state.sessions["s"]

    def call(self, handler: Any, tensors: dict[str, Any], **args: Any) -> Any:
        """The answer to a call that changes the session, without the time that it took."""
        self.seq += 1
        plain = {"id": "s", "seq": self.seq, "fetch": [], "require_finite": False, "returned": "all", "tables": {}}
        try:
            said, arrays = handler(self.state, {**plain, "stream": False, "reduction": "sum", **args}, tensors)
        except CoreError as error:
            return str(error)
        said = {name: value for name, value in said.items() if name not in ("compiled", "profile")}
        return said, {name: np.array(value) for name, value in arrays.items()}

    def held(self) -> dict[str, Any]:
        """All values of the session in their order of memory."""
        s = self.session
        found = {**s.parameters, **s.states, **s.slots, "counts": np.array([*s.about().values()])}
        for name, total in s.gradients.sums.items():
            found |= (
                {f"{name}@GRAD": total.values, f"{name}@ROWS": total.rows}
                if isinstance(total, RowArray)
                else {f"{name}@GRAD": total}
            )
        return {name: np.asarray(value) for name, value in found.items()}


def same_bits(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            same_bits(found[name], wanted[name])
    elif isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same_bits(a, b)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()
    else:
        assert found == wanted or (found != found and wanted != wanted)


def feeds(rng: np.random.Generator, dtype: str, batches: int = 0) -> dict[str, np.ndarray]:
    lead = (batches,) if batches else ()
    x = rng.standard_normal((*lead, 4, 3)).astype(model(dtype).values["x"].dtype)
    found = {"x": x, "i": rng.integers(0, 6, (*lead, 4))}
    for value in found.values():
        value.setflags(write=False)
    return found


def act(side: Side, name: str, rng: np.random.Generator, dtype: str, optimizer: str) -> Any:
    """One random call of the kind `name`."""
    if name == "step":
        return side.call(training.step, feeds(rng, dtype))
    if name == "batches":
        return side.call(training.step, feeds(rng, dtype, 3), batches=3, returned="none")
    if name == "accumulated_step":
        return side.call(training.step, feeds(rng, dtype, 2), accumulate=2, reduction="mean")
    if name == "add":
        return side.call(training.gradients, feeds(rng, dtype), accumulate=True)
    if name == "apply":
        return side.call(training.update, {}, learning_rate=0.02)
    if name == "given":
        rows = rng.standard_normal((2, 2)).astype(model(dtype).values["table"].dtype)
        return side.call(training.update, {"grad/table": rows, "rows/table": np.array([4, 1])})
    if name == "discard":
        return side.call(training.discard, {})
    if name == "configure":
        rate = float(rng.choice([0.03, 0.07]))
        words = {"type": optimizer, "attrs": {"learning_rate": COSINE if rng.random() < 0.3 else rate}}
        return side.call(sessions.configure, {}, optimizer=words, shown={"type": optimizer, "learning_rate": rate})
    values = model(dtype).values
    put = {"w": rng.standard_normal((2, 3)).astype(values["w"].dtype), "seen": np.float32(rng.standard_normal())}
    return side.call(sessions.put_parameters, {name: np.asarray(value) for name, value in put.items()})


ACTIONS = ("step", "step", "batches", "accumulated_step", "add", "add", "apply", "given", "discard", "configure", "put")


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
    sparse=st.booleans(),
    scale=st.sampled_from([None, 64.0, {"initial": 2.0**20, "interval": 2}]),
    clip=st.sampled_from([None, {"by": "global_norm", "max_norm": 0.5}]),
    before=st.lists(st.sampled_from(ACTIONS), max_size=8),
    after=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_restored_sessions_go_on_to_the_bit(tmp_path, optimizer, dtype, sparse, scale, clip, before, after, seed):
    rng, sketch = np.random.default_rng(seed), model(dtype, sparse)
    words = {"type": optimizer, "attrs": {"learning_rate": 0.05}}
    side = Side(tmp_path).create(sketch, words, loss_scale=scale, clip=clip)
    for name in before:
        act(side, name, rng, dtype, optimizer)

    other = side.restored(sketch, "never")

    same_bits(other.held(), side.held())
    twin = np.random.default_rng(seed + 1), np.random.default_rng(seed + 1)
    for name in after:
        found, wanted = (act(s, name, r, dtype, optimizer) for s, r in zip((other, side), twin, strict=True))
        same_bits(found, wanted)
    same_bits(other.held(), side.held())


def test_restored_sessions_run_the_same_machine_code(tmp_path):
    dtype = "float32"
    rng, sketch = np.random.default_rng(0), model(dtype, sparse=False)
    side = Side(tmp_path, "always").create(sketch, {"type": "adam", "attrs": {"learning_rate": 0.05}})
    for _ in range(3):
        side.call(training.step, feeds(rng, dtype), returned="none")
    bound = side.session.last_step
    assert bound is not None and bound.bound is not None, "the third step runs on the arrays of the session"

    other = side.restored(sketch, "always")

    twin = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(4):
        both = (
            s.call(training.step, feeds(r, dtype), returned="none") for s, r in zip((other, side), twin, strict=True)
        )
        same_bits(*both)
    same_bits(other.held(), side.held())
    assert side.session.last_step is bound, "saving must not unbind the step"


@pytest.mark.reference
def test_restored_arrays_keep_their_order_in_memory(tmp_path):
    """A product with a transposed matrix rounds differently."""
    s = Sketch()
    s.feed("x", RNG.standard_normal((37, 61)), dtype="float32")
    s.param("w", RNG.standard_normal((61, 29)), dtype="float32")
    s._leaf("state", "m", RNG.standard_normal((29, 61)), "float32")
    s.op("reduce_mean", s.op("square", s.op("matmul", s.op("matmul", "x", "w"), "m")), out="loss")
    s.op("transpose", "w", axes=[1, 0], out="m")
    side = Side(tmp_path).create(s, {"type": "sgd", "attrs": {"learning_rate": 1e-3}})
    x = {"x": s.values["x"]}
    side.call(training.step, x)
    assert not side.held()["m"].flags.c_contiguous

    other = side.restored(s, "never")

    assert other.held()["m"].strides == side.held()["m"].strides
    for _ in range(3):
        same_bits(other.call(training.step, x), side.call(training.step, x))


def test_slots_that_were_never_written_stay_absent(tmp_path):
    sketch = model("bfloat16")
    side = Side(tmp_path).create(sketch, {"type": "adam", "attrs": {}})
    side.call(sessions.put_parameters, {"w": sketch.values["w"]})
    assert "w/rest" not in side.session.slots

    other = side.restored(sketch, "never")

    assert other.session.slots.keys() == side.session.slots.keys()


def restoring(tmp_path: Path, sketch: Sketch, **args: Any) -> Any:
    return snapshot.restore(Side(tmp_path).state, {"id": "s", "key": KEY, "document": sketch.document, **args}, {})


def test_changed_and_missing_files_are_told(tmp_path):
    sketch = model()
    side = Side(tmp_path).create(sketch, {"type": "adam", "attrs": {}})
    said, _ = snapshot.save(side.state, {"id": "s", "key": KEY}, {})
    whole = (tmp_path / KEY).read_bytes()
    assert len(whole) == said["size"]

    (tmp_path / KEY).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ExecutionError, match="digest is wrong") as changed:
        restoring(tmp_path, sketch, sha256=said["sha256"])
    (tmp_path / KEY).unlink()
    with pytest.raises(ExecutionError, match="missing") as missing:
        restoring(tmp_path, sketch)

    assert [changed.value.code, missing.value.code] == ["checkpoint_damaged", "checkpoint_missing"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_never_become_sessions_or_defects(tmp_path, data):
    sketch = model()
    side = Side(tmp_path).create(sketch, {"type": "adam", "attrs": {}})
    side.call(training.gradients, feeds(np.random.default_rng(0), "float32"), accumulate=True)
    said, _ = snapshot.save(side.state, {"id": "s", "key": KEY}, {})
    whole = bytearray((tmp_path / KEY).read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        del whole[at:]
    (tmp_path / KEY).write_bytes(bytes(whole))

    with pytest.raises(CoreError):
        restoring(tmp_path, sketch, sha256=said["sha256"])
    with contextlib.suppress(CoreError):  # without the digest, a changed number is not found
        restoring(tmp_path, sketch)


def test_a_full_disk_leaves_session_and_older_file(tmp_path, monkeypatch):
    sketch = model()
    side = Side(tmp_path).create(sketch, {"type": "adam", "attrs": {}})
    snapshot.save(side.state, {"id": "s", "key": KEY}, {})
    before = (tmp_path / KEY).read_bytes()
    side.call(training.step, feeds(np.random.default_rng(0), "float32"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExecutionError) as error:
        snapshot.save(side.state, {"id": "s", "key": KEY}, {})

    assert error.value.code == "storage_full"
    assert (tmp_path / KEY).read_bytes() == before
    assert [path.name for path in (tmp_path / KEY).parent.iterdir()] == ["a"]
    assert side.session.steps == 1


def test_restoring_into_another_program_names_all_differences(tmp_path):
    side = Side(tmp_path).create(model(), {"type": "adam", "attrs": {}})
    snapshot.save(side.state, {"id": "s", "key": KEY}, {})
    other = Sketch()
    other.feed("x", np.zeros((4, 3)), dtype="float32")
    other.param("w", np.zeros((3, 3)), dtype="float32")
    other.param("v", np.zeros((3, 2)), dtype="float32")
    other.op("reduce_mean", other.op("matmul", other.op("matmul", "x", "w"), "v"), out="loss")

    with pytest.raises(InvalidProgram) as error:
        restoring(tmp_path, other)

    told = {problem.message for problem in error.value.problems}
    assert "parameter 'w' is float32[3, 3], but [2, 3] in the checkpoint" in told
    assert "the checkpoint has no value of parameter 'v'" in told
    assert "the program has no parameter or state 'table'" in told
    assert {problem.pointer for problem in error.value.problems} == {"/from_checkpoint"}


def test_files_open_with_the_public_reader(tmp_path):
    """Parameters have their own names, so that other tools find them."""
    from safetensors.numpy import load_file

    sketch = model()
    side = Side(tmp_path).create(sketch, {"type": "adam", "attrs": {}})
    snapshot.save(side.state, {"id": "s", "key": KEY, "about": {"note": "a"}}, {})

    found = load_file(tmp_path / KEY)

    same_bits({n: found[n] for n in ("w", "b", "table")}, {n: sketch.values[n] for n in ("w", "b", "table")})
    assert mapped(tmp_path / KEY)[1]["note"] == "a"
