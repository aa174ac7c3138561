"""Random sessions with sparse tables: every executor computes the same, and a recovered session has equal bits.

Each example is a program, an optimiser and a list of calls. Four sessions get the same calls: one whose first step on
each shape is interpreted, one that runs machine code only, one that runs none, and one without sparse gradients. A
fifth one loses its worker again and again, and is rebuilt from a checkpoint and the calls after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.ir.errors import CoreError
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.optim.optimizers import OPTIMIZERS
from service.worker import computed, derive, session, sessions, snapshot, training
from tests.programs import Sketch
from tests.service.worker.test_snapshot import KEY, Side, same_bits

PROGRAM = "prg_a"
TOLERANCE = {"float64": 1e-7, "float32": 4e-3, "bfloat16": 0.1, "float16": 0.05}
KINDS = "step step step step batches accumulated parts add add apply given discard rate put evaluate wrong overflow"
OPEN = (1, 2, 3, 5, 0)
"""Numbers of ids in a step, most often the first ones."""

Call = tuple[Any, dict[str, Any], dict[str, Any]]


class Model:
    """A random program with tables, and random calls. One `rng` draws all of it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.dtype = str(rng.choice([*TOLERANCE], p=[0.5, 0.3, 0.1, 0.1]))
        self.tables = {
            f"E{i}": (int(rng.choice([1, 2, 7, 40])), int(rng.choice([1, 3, 16]))) for i in range(count(rng, 3))
        }
        self.lookups = [self._lookup(n) for n in self.tables for _ in range(count(rng, 3))]
        self.values = {n: rng.standard_normal(shape) for n, shape in self.tables.items()} | {
            "w": rng.standard_normal(3)
        }
        self.optimizer = self._optimizer()
        self.clip = self._clip()
        self.scale = pick(rng, [None, None, 64.0, {"initial": 2.0**10, "interval": 2}])
        if self.dtype == "float16" and isinstance(self.scale, dict):
            # larger gradients overflow in the reference executor alone, where machine code keeps them in float32
            self.scale["most"] = 2.0**11
        self.fetch = pick(rng, [[], [], ["loss"], ["part0"], ["E0@GRAD", "part0@GRAD"]])
        self.hooks = self._hooks()

    def _lookup(self, table: str) -> dict[str, Any]:
        rng, size = self.rng, self.tables[table][0]
        form, ids = str(rng.choice(["open", "pairs", "fixed"])), int(rng.integers(3))
        padding = pick(rng, [None, None, 0, -1, size - 1, size // 2])
        op = str(rng.choice(["embedding", "lookup_table"]))
        return {"table": table, "ids": f"{form}{ids}", "form": form, "op": op, "padding_idx": padding}

    def _optimizer(self) -> dict[str, Any]:
        rng = self.rng
        kind = str(rng.choice(["sgd", "adagrad", *OPTIMIZERS]))
        attrs: dict[str, Any] = {"learning_rate": 0.03}
        decay = pick(rng, [{}, {}, {"weight_decay": 0.01}, {"l1_decay": 0.001}])
        attrs |= {name: value for name, value in decay.items() if name in attrs_of(kind)}
        if rng.random() < 0.2:
            attrs["learning_rate"] = {"schedule": "cosine_decay", "learning_rate": 0.03, "decay_steps": 12}
        if rng.random() < 0.3:
            other = str(rng.choice(["sgd", "adagrad", *OPTIMIZERS]))
            attrs["groups"] = [{"match": "E0", "name": "first", "type": other, "learning_rate": 0.05}]
        return {"type": kind, "attrs": attrs}

    def _clip(self) -> Any:
        clips: list[Any] = [
            None,
            None,
            {"by": "norm", "max_norm": 0.3},
            {"by": "global_norm", "max_norm": 0.3},
            {"by": "value", "max": 0.1},
            {"by": "value", "min": 0.01, "max": 0.1},
        ]
        found = pick(self.rng, clips)
        kinds = {self.optimizer["type"], *(g["type"] for g in self.optimizer["attrs"].get("groups", ()))}
        decays_first = found is not None and self.rng.random() < 0.3 and all("l1_decay" in attrs_of(k) for k in kinds)
        return {**found, "decay_first": True} if decays_first else found

    def _hooks(self) -> list[dict[str, Any]]:
        rng, clips = self.rng, not isinstance(self.scale, dict)
        actions: list[dict[str, Any]] = [{"do": "record"}, {"do": "record"}, {"do": "scale", "factor": 0.5}]
        if clips:  # a dynamic loss scale refuses their bounds
            actions += [{"do": "clip_norm", "max_norm": 0.2}, {"do": "clip_value", "max": 0.1}]
            actions += [{"do": "clip_value", "min": 0.01, "max": 0.1}]
        places = [{"role": "parameter"}, {"variable": "E0"}, {"variable": "part0"}, {"op": "tanh"}]
        return [{"match": pick(rng, places), **pick(rng, actions)} for _ in range(int(rng.choice([0, 0, 1, 2])))]

    def sketch(self, sparse: bool) -> Sketch:
        s = Sketch()
        s.feed("factor", 1.0, dtype=self.dtype)
        for name, value in self.values.items():
            s.param(name, value, dtype=self.dtype)
        s._leaf("state", "seen", 0.0, "float32")
        s.op("increment", "seen", out="seen", step=1)
        parts = []
        for i, each in enumerate(self.lookups):
            if each["ids"] not in s.values:
                self._declare(s, each)
            ids = each["ids"]
            if each["op"] == "lookup_table":
                ids = s.op("unsqueeze", ids, axes=[-1])
            attrs = {name: each[name] for name in ("padding_idx",)} | {"is_sparse": sparse}
            rows = s.op("tanh", s.op(each["op"], each["table"], ids, **attrs))
            parts.append(s.op("reduce_sum", s.op("square", rows), out=f"part{i}"))
        parts.append(s.op("reduce_sum", s.op("square", "w")))
        s.op("mul", s.op("sum", parts), "factor", out="loss")
        return s

    def _declare(self, s: Sketch, each: dict[str, Any]) -> None:
        shape = {"open": [-1], "pairs": [-1, 2], "fixed": [3]}[each["form"]]
        s.feed(each["ids"], np.zeros([max(n, 0) for n in shape]), dtype="int64")
        s.blocks[0]["vars"][-1]["shape"] = shape

    def feeds(self, *lead: int) -> dict[str, np.ndarray]:
        """Feeds of one step, or of several."""
        rng = self.rng
        n = int(rng.choice(OPEN, p=[0.3, 0.3, 0.2, 0.1, 0.1]))
        shapes = {"open": (n,), "pairs": (n, 2), "fixed": (3,)}
        found: dict[str, np.ndarray] = {"factor": np.ones((), as_dtype(self.dtype))}
        for each in self.lookups:
            if each["ids"] not in found:
                size = min(self.tables[e["table"]][0] for e in self.lookups if e["ids"] == each["ids"])
                ids = rng.integers(-size, size, (*lead, *shapes[each["form"]]))
                found[each["ids"]] = np.where(rng.random(ids.shape) < 0.4, pick(rng, [0, size - 1, -1, -size]), ids)
        return found

    def call(self, name: str) -> Call:
        """A random call: handler, tensors, arguments."""
        rng, fetch = self.rng, self.fetch
        returned = pick(rng, ["none", "none", "all", "norms"])
        if name == "step":
            return training.step, self.feeds(), {"returned": returned, "fetch": fetch}
        if name == "batches":
            return training.step, self.feeds(4), {"batches": 4, "returned": "none", "fetch": fetch}
        if name == "accumulated":
            return training.step, self.feeds(2), {"accumulate": 2, "reduction": "mean", "returned": returned}
        if name == "parts":
            return training.step, self.feeds(3, 2), {"batches": 3, "accumulate": 2, "returned": "none"}
        if name == "add":
            return training.gradients, self.feeds(), {"accumulate": True, "returned": "none"}
        if name == "apply":
            return training.update, {}, {"learning_rate": 0.02}
        if name == "given":
            size, width = self.tables["E0"]
            rows = rng.integers(0, size, 3)
            values = rng.standard_normal((3, width)).astype(as_dtype(self.dtype))
            return training.update, {"grad/E0": values, "rows/E0": rows}, {}
        if name == "discard":
            return training.discard, {}, {}
        if name == "rate":
            attrs = {**self.optimizer["attrs"], "learning_rate": float(rng.choice([0.02, 0.04]))}
            words = {"type": self.optimizer["type"], "attrs": attrs}
            return sessions.configure, {}, {"optimizer": words, "shown": {}}
        if name == "put":
            value = rng.standard_normal(self.tables["E0"]).astype(as_dtype(self.dtype))
            return sessions.put_parameters, {"E0": value}, {}
        if name == "evaluate":
            return training.evaluate, self.feeds(), {"fetch": ["loss"]}
        given = self.feeds(*pick(rng, [(), (), (4,)]))
        batches = {"batches": 4} if len(given[self.lookups[0]["ids"]].shape) > self._rank(self.lookups[0]) else {}
        asked = {"returned": "none" if batches else returned, "fetch": fetch, **batches}
        if name == "overflow":
            factor = np.full((4,) if batches else (), np.inf if rng.random() < 0.5 else np.nan)
            if batches:
                factor[0] = 1.0  # the first batch is taken
            given["factor"] = factor.astype(as_dtype(self.dtype))
            return training.step, given, {**asked, "require_finite": self.scale is None and rng.random() < 0.8}
        each = pick(rng, self.lookups)
        ids, size = np.array(given[each["ids"]]), self.tables[each["table"]][0]
        if ids.size:
            ids.reshape(-1)[-1] = pick(rng, [size, -size - 1, 2**40])
        given[each["ids"]] = ids
        return training.step, given, asked

    def _rank(self, lookup: dict[str, Any]) -> int:
        return 2 if lookup["form"] == "pairs" else 1


def attrs_of(optimizer: str) -> set[str]:
    return {each.name for each in lookup(optimizer).attrs}


def count(rng: np.random.Generator, most: int) -> int:
    return int(rng.integers(1, most + 1))


def pick(rng: np.random.Generator, these: list[Any]) -> Any:
    return these[int(rng.integers(len(these)))]


class Trained(Side):
    """A session in its own worker, with an answer for errors: their code."""

    def call(self, handler: Any, tensors: dict[str, Any], **args: Any) -> Any:
        before = self.held() if handler is not training.evaluate else {}
        before = {name: value.copy() for name, value in before.items()}
        self.seq += 1
        plain = {"id": "s", "seq": self.seq, "fetch": [], "require_finite": False, "returned": "all", "tables": {}}
        try:
            said, arrays = handler(self.state, {**plain, "stream": False, "reduction": "sum", **args}, tensors)
        except CoreError as error:
            if before:
                same_bits(self.held(), before)  # a call that fails changes nothing
            return error.code
        if said.get("skipped") is True:
            kept = {n: v for n, v in self.held().items() if n in before and not n.startswith("@") and n != "counts"}
            same_bits(kept, {n: before[n] for n in kept})
        said = {n: v for n, v in said.items() if n not in ("compiled", "profile", "memory")}
        return said, {name: np.array(value) for name, value in arrays.items()}


class Recovered:
    """A session that is rebuilt from its last checkpoint and the calls after it whenever its worker is lost."""

    def __init__(self, model: Model, folder: Path, rng: np.random.Generator) -> None:
        self._model, self._folder, self._rng = model, folder, rng
        self._journal: list[tuple[int, Any, dict[str, Any], dict[str, Any]]] = []
        self.side = opened(model, folder, "auto")
        self._saved: int | None = None

    def call(self, handler: Any, tensors: dict[str, Any], **args: Any) -> Any:
        found = self.side.call(handler, tensors, **args)
        if not isinstance(found, str) and handler is not training.evaluate:
            stopped = found[0].get("stopped")
            args = {**args, "only": found[0]["applied"]} if stopped else args
            self._journal.append((self.side.seq, handler, tensors, args))
        return found

    def disturb(self) -> None:
        event = self._rng.random()
        if event < 0.25:
            snapshot.save(self.side.state, {"id": "s", "key": KEY}, {})
            self._saved = self.side.seq
            self._journal.clear()
        elif event < 0.5:
            self._rebuild()

    def _rebuild(self) -> None:
        seq = self.side.seq
        if self._saved is None:
            self.side = opened(self._model, self._folder, "auto")
        else:
            self.side = other = Trained(self._folder, "auto")
            asked = {"id": "s", "key": KEY, "document": self._model.sketch(True).document, "program_id": PROGRAM}
            if self._rng.random() < 0.5:
                snapshot.restore(other.state, asked, {})
            else:  # a fork without changes, as from the client's own checkpoint
                plain = {"changes": {"query": {}}, "missing": "refuse", "extra": "refuse", "initializers": {}}
                derive.derive(other.state, {**asked, **plain, "optimizer_state": True}, {})
            other.seq = self._saved
        for each, handler, tensors, args in self._journal:
            self.side.seq = each - 1
            assert not isinstance(self.side.call(handler, tensors, **args), str)
        self.side.seq = seq


def opened(model: Model, folder: Path, compile: str, sparse: bool = True) -> Trained:
    sketch = model.sketch(sparse)
    side = Trained(folder, compile)
    query = {"loss": "loss", "hooks": model.hooks}
    asked = {"id": "s", "document": sketch.document, "query": query, "clip": model.clip, "seed": 3}
    held = {n: sketch.values[n].copy() for n in (*model.values, "seen")}
    more = {"optimizer": model.optimizer, "initializers": {}, "loss_scale": model.scale, "program_id": PROGRAM}
    sessions.create(side.state, {**asked, **more}, held)
    return side


def whole(side: Trained) -> dict[str, np.ndarray]:
    """The values of a session, with dense sums of gradients."""
    session = side.session
    found = {**session.parameters, **session.states, **session.slots, "counts": np.array([*session.about().values()])}
    for name, total in session.gradients.sums.items():
        found[f"{name}@GRAD"] = total.whole() if hasattr(total, "whole") else total
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


def written(side: Trained) -> dict[str, np.ndarray]:
    """The values of a session, without rounding remainders of zero: an absent one counts as zero."""
    return {name: value for name, value in side.held().items() if not name.endswith("/rest") or value.any()}


def close(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], tolerance: float, message: str) -> None:
    assert found.keys() == wanted.keys(), message
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=f"{message}: {name}")


def shown(answer: Any) -> dict[str, np.ndarray]:
    """The loss and the fetched and recorded arrays of an answer."""
    arrays = {} if isinstance(answer, str) else answer[1]
    return {
        name: np.asarray(value, np.float64)
        for name, value in arrays.items()
        if name == "loss" or name.startswith(("fetch/", "recorded/"))
    }


def example(seed: int, folder: Path, calls: int = 9) -> None:
    model = Model(seed)
    sides = {name: opened(model, folder, name) for name in ("auto", "always", "never")}
    sides["dense"] = opened(model, folder, "never", sparse=False)
    lost = Recovered(model, folder, np.random.default_rng(seed))
    for number in range(calls):
        name = pick(model.rng, KINDS.split())
        handler, tensors, args = model.call(name)
        for value in tensors.values():
            value.setflags(write=False)  # as arrays from a message
        message = f"seed {seed}, call {number} ({name})"
        answers = {side: each.call(handler, tensors, **args) for side, each in sides.items()}
        codes = {answer if isinstance(answer, str) else None for answer in answers.values()}
        assert len(codes) == 1, f"{message}: {codes}"
        same_bits(lost.call(handler, tensors, **args), answers["auto"])
        same_bits(written(lost.side), written(sides["auto"]))
        for side in ("auto", "always", "dense"):
            close(shown(answers[side]), shown(answers["never"]), TOLERANCE[model.dtype], f"{message}, {side}")
            close(whole(sides[side]), whole(sides["never"]), TOLERANCE[model.dtype], f"{message}, {side}")
        lost.disturb()
        same_bits(written(lost.side), written(sides["auto"]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_added_up_rows_of_a_16_bit_table_update_it_as_a_dense_gradient_does(dtype, tmp_path):
    held = []
    for sparse in (True, False):
        s = Sketch()
        s.feed("i", np.zeros(3), dtype="int64")
        s.param("E", np.linspace(-1, 1, 20).reshape(10, 2), dtype=dtype)
        s.total(s.op("square", s.op("embedding", "E", "i", is_sparse=sparse)))
        side = Side(tmp_path).create(s, {"type": "sgd", "attrs": {"learning_rate": 0.1}})
        for ids in ([1, 9, 1], [0, 1, -1]):
            assert not isinstance(side.call(training.gradients, {"i": np.array(ids)}, accumulate=True), str)

        assert not isinstance(side.call(training.update, {}), str)

        assert not isinstance(side.call(training.step, {"i": np.array([[0, 1, 1], [2, 3, 9]])}, accumulate=2), str)
        held.append(side.held())
    same_bits(*held)


@pytest.mark.parametrize("seed", [3, 2021])
def test_random_sessions_agree(seed, tmp_path):
    example(seed, tmp_path)


@pytest.fixture
def with_room(monkeypatch):
    """From the second shape on steps run on code with room for many sizes, and three times on each shape."""
    for module in (session, computed):
        monkeypatch.setattr(module, "FEW_SHAPES", 1)
    monkeypatch.setattr(session, "RECURRING", 3)
    monkeypatch.setattr(session, "AHEAD", 1)


@pytest.mark.parametrize("seed", [3, 8, 10])
def test_random_sessions_with_room_for_many_sizes_agree(seed, tmp_path, with_room):
    example(seed, tmp_path)


@pytest.mark.slow
def test_many_random_sessions_agree(tmp_path):
    for seed in range(1000, 1300):
        example(seed, tmp_path)


@pytest.mark.slow
def test_many_random_sessions_with_room_agree(tmp_path, with_room):
    for seed in range(1000, 1100):
        example(seed, tmp_path)


def test_checkpoints_without_shapes_are_restored_with_equal_bits(tmp_path, monkeypatch):
    """Files of format 1 have no `seen`: the first step after them is a first one."""
    model = Model(3)
    side = opened(model, tmp_path, "auto")
    given = model.feeds()
    for _ in range(3):
        assert not isinstance(side.call(training.step, given), str)
    assert side.session.seen
    side.session.seen = set()
    monkeypatch.setattr(snapshot, "FORMAT", 1)
    said, _ = snapshot.save(side.state, {"id": "s", "key": KEY}, {})
    content = (tmp_path / KEY).read_bytes()
    assert b"seen" not in content[: content.index(b'"E0"')]
    monkeypatch.undo()

    others = []
    for _ in range(2):
        other = Trained(tmp_path, "auto")
        asked = {"id": "s", "key": KEY, "document": model.sketch(True).document, "program_id": PROGRAM}
        snapshot.restore(other.state, {**asked, "sha256": said["sha256"]}, {})
        for number in range(3):
            assert not isinstance(other.call(training.step, given), str)
            last = other.session.last_step
            assert last is not None and (last.compiled.executable.machine is not None) == (number > 0)
        others.append(other.held())

    same_bits(*others)
