"""Training on a stored dataset equals single steps on the same batches, however the calls divide them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.ir.errors import CoreError, ExecutionError, ProgramError
from service.objects.tensor_file import chunks
from service.sampling import Sampling
from service.settings import Settings
from service.worker import fit, fit_check, sessions, training
from service.worker.columns import is_lossless
from service.worker.session import WorkerSession
from service.worker.state import WorkerState
from tests.programs import Sketch
from tests.service.prepared import prepared
from tests.service.worker.test_last_step import going

RNG = np.random.default_rng(11)
ROWS = 45
KEY = "datasets/one"
COLUMNS: dict[str, np.ndarray] = {
    "x": RNG.standard_normal((ROWS, 3)).astype("float32"),
    "label": RNG.integers(0, 4, ROWS),
    "wide": RNG.standard_normal(ROWS),
    "small": RNG.integers(0, 9, (ROWS, 3)).astype("int16"),
    "flag": RNG.integers(0, 2, ROWS).astype(bool),
    **{f"c{i}": RNG.standard_normal(ROWS).astype("float32") for i in range(3)},
}
ADAM = {"type": "adam", "attrs": {"learning_rate": 0.05}}
COSINE = {"schedule": "cosine_decay", "learning_rate": 0.1, "decay_steps": 10}
MOMENTUM = {"type": "momentum", "attrs": {"learning_rate": COSINE, "groups": [{"match": "b", "learning_rate": 0.5}]}}


def classifier(batch: int = -1, dtype: str = "float32") -> Sketch:
    """A classifier with dropout and a state that counts."""
    s = Sketch()
    s.feed("x", np.zeros((1, 3)), dtype=dtype)
    s.feed("label", np.zeros(1), dtype="int64")
    for var in s.blocks[0]["vars"]:
        var["shape"][0] = batch
    s.param("w", np.linspace(-1, 1, 12).reshape(3, 4), dtype=dtype)
    s.param("b", np.zeros(4), dtype=dtype)
    s._leaf("state", "seen", 0.0, "float32")
    s.op("increment", "seen", out="seen", step=1)
    logits = s.op("add", s.op("matmul", s.op("dropout", "x", p=0.25), "w"), "b", out="logits")
    s.op("softmax_with_cross_entropy", logits, "label", reduction="mean", out="loss")
    s.op("accuracy", logits, "label", out="accuracy")
    return s


class Side:
    """A session in its own worker state, with one stored dataset."""

    def __init__(self, root: Path, sketch: Sketch, optimizer: dict[str, Any] = ADAM, compile: str = "auto") -> None:
        settings = Settings(compile=compile, data_dir=root).model_dump(mode="json")  # type: ignore[arg-type]
        self.state = WorkerState("w", "cpu", np, settings, going())
        made = {"id": "s", "document": sketch.document, "query": {"loss": "loss"}, "optimizer": optimizer}
        given = {n: v for n, v in sketch.values.items() if n not in ("x", "label")}
        sessions.create(self.state, {**made, "clip": None, "seed": 3, "initializers": {}}, given)
        self.seq = 0

    @property
    def session(self) -> WorkerSession:
        return self.state.sessions["s"]

    def fit(self, data: dict[str, Any], start: int, batches: int, **more: Any) -> dict[str, Any]:
        self.seq += 1
        args = {"id": "s", "seq": self.seq, "data": data, "start": start, "batches": batches}
        return fit.fit(self.state, {**args, "metrics": ["accuracy"], "require_finite": True, **more}, {})[0]

    def step(self, feeds: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        self.seq += 1
        args = {"id": "s", "seq": self.seq, "fetch": ["accuracy"], "returned": "norms", "require_finite": False}
        said, arrays = training.step(self.state, args, feeds)
        return said, {name: np.array(value) for name, value in arrays.items()}

    def check(self, feeds: Any = None, **more: Any) -> dict[str, Any]:
        asked = {"id": "s", "data": {"key": KEY, "rows": ROWS, "holdout": 0}, "feeds": feeds or {}, "metrics": []}
        asked |= {"validation": None, "batch_size": None, "drop_last": None}
        return fit_check.check_fit(self.state, {**asked, **more}, {})[0]

    def held(self) -> dict[str, np.ndarray]:
        s = self.session
        return {name: np.array(value) for name, value in (s.parameters | s.states | s.slots).items()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    prepared(str(tmp_path / "objects")).write(KEY, chunks(COLUMNS, {}))
    return tmp_path


def described(size: int = 8, *, drop: bool = False, shuffle: bool = True, holdout: int = 0, **columns: Any) -> Any:
    found = {"x": ["x"], "label": ["label"], **columns}
    data = {"key": KEY, "rows": ROWS, "columns": found, "batch_size": size, "drop_last": drop}
    return {**data, "shuffle": shuffle, "seed": 9, "holdout": holdout}


def batches(data: Any, count: int, take: Any) -> list[Any]:
    """The feeds of the first `count` batches, gathered row by row."""
    sampling, found = fit.sampling_of(data), []
    for position in range(count):
        epoch, index = divmod(position, sampling.batches)
        rows = sampling.epoch(epoch)
        whole = np.arange(ROWS)[rows] if isinstance(rows, slice) else rows
        at = index * sampling.batch_size
        found.append(take(whole[at : at + sampling.size(position)]))
    return found


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


PLAIN = lambda rows: {"x": COLUMNS["x"][rows], "label": COLUMNS["label"][rows]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("compile", ["never", "auto"])
@pytest.mark.parametrize("optimizer", [ADAM, MOMENTUM], ids=["adam", "groups"])
@pytest.mark.parametrize(("drop", "shuffle", "holdout"), [(True, True, 0), (False, True, 5), (False, False, 4)])
def test_a_fit_equals_single_steps_on_the_same_batches(root, compile, optimizer, drop, shuffle, holdout):
    data = described(drop=drop, shuffle=shuffle, holdout=holdout)
    one, other = (Side(root, classifier(), optimizer, compile) for _ in range(2))
    count = 2 * fit.sampling_of(data).batches + 3

    said = one.fit(data, 0, count)
    steps = [other.step(feeds) for feeds in batches(data, count, PLAIN)]

    assert same(one.held(), other.held())
    curves = said["curves"]
    assert curves["loss"] == [float(arrays["loss"]) for _, arrays in steps]
    assert curves["metric/accuracy"] == [float(arrays["fetch/accuracy"]) for _, arrays in steps]
    assert curves["gradient_norm"] == pytest.approx([each["gradient_norms"]["global"] for each, _ in steps], rel=1e-5)
    rates = [each["learning_rate"] for each, _ in steps]
    if isinstance(rates[0], dict):
        assert {f"learning_rate/{n}": [each[n] for each in rates] for n in rates[0]}.items() <= curves.items()
    else:
        assert curves["learning_rate"] == rates
    assert (said["applied"], said["stopped"], said["step"]) == (count, None, count)
    assert said["samples"] == sum(fit.sampling_of(data).size(at) for at in range(count))


@pytest.mark.parametrize("parts", [[17], [1] * 17, [2, 9, 1, 5]])
def test_the_lengths_of_the_calls_change_no_number(root, parts):
    data, one, whole = described(), Side(root, classifier()), Side(root, classifier())
    expected = whole.fit(data, 0, 17)["curves"]
    found: dict[str, list[Any]] = {}
    at = 0
    for count in parts:
        for name, values in one.fit(data, at, count)["curves"].items():
            found.setdefault(name, []).extend(values)
        one.session.last_step = None  # as after a restart
        at += count
    assert found == expected
    assert same(one.held(), whole.held())


def test_columns_become_feeds_without_loss(root):
    """A smaller integer, a column of numbers in place of one axis, and several columns side by side."""
    for columns, take in [
        ({"x": ["small"]}, lambda rows: {"x": COLUMNS["small"][rows].astype("float64")}),
        ({"x": ["wide", "c1", "flag"]}, lambda rows: {"x": np.stack(
            [COLUMNS[n][rows].astype("float64") for n in ("wide", "c1", "flag")], axis=1)}),
    ]:  # fmt: skip
        one, other = (Side(root, classifier(dtype="float64")) for _ in range(2))
        data = described(**columns)
        one.fit(data, 0, 7)
        for feeds in batches(data, 7, lambda rows, take=take: {**take(rows), "label": COLUMNS["label"][rows]}):
            other.step(feeds)
        assert same(one.held(), other.held()), columns


def test_a_failure_between_steps_keeps_the_earlier_ones_and_tells_their_number(root):
    side = Side(root, classifier())
    checks = []

    def check() -> None:
        checks.append(1)
        if len(checks) > 12:
            raise ExecutionError("the deadline of the call has passed", "deadline_exceeded")

    side.state.stop.check = check  # type: ignore[method-assign]
    said = side.fit(described(), 0, 1000)
    assert said["stopped"]["code"] == "deadline_exceeded"
    assert said["applied"] == said["step"] == len(said["curves"]["loss"]) == said["stopped"]["batch"] > 0

    other = Side(root, classifier())
    for feeds in batches(described(), said["applied"], PLAIN):
        other.step(feeds)
    assert same(side.held(), other.held())


def test_a_value_that_is_not_finite_stops_before_its_step(root):
    columns = {**COLUMNS, "x": COLUMNS["x"].copy()}
    columns["x"][20] = np.nan
    prepared(str(root / "objects")).write("datasets/bad", chunks(columns, {}))
    data = {**described(shuffle=False), "key": "datasets/bad"}
    strict = Side(root, classifier())
    said = strict.fit(data, 0, 5)
    assert (said["applied"], said["stopped"]["code"]) == (2, "not_finite")
    assert all(np.isfinite(value).all() for value in strict.held().values())
    with pytest.raises(ExecutionError) as caught:
        strict.fit(data, 2, 1)
    assert caught.value.code == "not_finite"
    assert strict.session.steps == 2

    free = Side(root, classifier())
    said = free.fit(data, 0, 5, require_finite=False)
    assert (said["applied"], said["finite"], said["curves"]["loss"][2:]) == (5, False, [None] * 3)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_validation_runs_as_a_test_on_the_rows_that_are_kept(root, shuffle, drop):
    """On all of them, also if the training leaves out rows that do not fill a batch."""
    side = Side(root, classifier())
    data = described(holdout=13, shuffle=shuffle, drop=drop)
    before = side.held()
    args = {"id": "s", "data": data, "metrics": ["loss", "accuracy"]}
    whole = fit.evaluate_on(side.state, {**args, "start": 0, "batches": 100}, {})[0]
    parts = [fit.evaluate_on(side.state, {**args, "start": at, "batches": 1}, {})[0] for at in range(2)]
    assert (whole["rows"], whole["batches"]) == ([8, 5], 2)
    assert [each["values"][0] for each in parts] == whole["values"]
    assert same(before, side.held())

    sampling = Sampling(ROWS, 8, False, shuffle, 9, 13)
    rows = np.arange(ROWS)[sampling.validation()]
    logits = COLUMNS["x"][rows].astype("float64") @ side.session.parameters["w"] + side.session.parameters["b"]
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = -logs[np.arange(13), COLUMNS["label"][rows]].mean()
    right = (logits.argmax(axis=1) == COLUMNS["label"][rows]).mean()
    mean = [math.fsum(v[i] * n for v, n in zip(whole["values"], whole["rows"], strict=True)) / 13 for i in range(2)]
    assert mean == pytest.approx([loss, right], rel=1e-5)


def test_the_validation_leaves_out_rows_where_the_feeds_declare_the_size_of_a_batch(root):
    side = Side(root, classifier(8))
    args = {"id": "s", "data": described(holdout=13, drop=True), "metrics": ["loss"], "start": 0, "batches": 9}

    assert fit.evaluate_on(side.state, args, {})[0]["rows"] == [8]


@pytest.mark.parametrize("dtype, size", [("float64", 1e200), ("float32", 1e-24), ("float32", 1e30)])
def test_a_gradient_whose_square_its_dtype_cannot_hold_is_no_error(root, dtype, size):
    s = Sketch()
    s.feed("c0", np.zeros(1), dtype="float32")
    s.blocks[0]["vars"][0]["shape"] = [-1]
    s.param("w", np.zeros(4), dtype=dtype)
    total = s.op("scale", s.op("reduce_sum", "w"), scale=size)
    s.op("add", total, s.op("cast", s.op("scale", s.op("reduce_mean", "c0"), scale=0.0), dtype=dtype), out="loss")
    del s.values["c0"]
    side = Side(root, s, {"type": "sgd", "attrs": {"learning_rate": 0.0}})

    said = side.fit(described(c0=["c0"]) | {"columns": {"c0": ["c0"]}}, 0, 3, metrics=[])

    assert (said["applied"], said["finite"]) == (3, True)
    wanted = 2 * size if size < 1e150 else None  # its square is beyond float64, too
    assert said["curves"]["gradient_norm"] == [wanted if wanted is None else pytest.approx(wanted, rel=1e-6)] * 3


# --- the check ---------------------------------------------------------------------------------------------------


def refused(side: Side, **asked: Any) -> set[tuple[str, str]]:
    with pytest.raises(ProgramError) as caught:
        side.check(**asked)
    return {(each.pointer, each.code) for each in caught.value.problems}


def test_the_check_finds_the_columns_and_the_batch_size(root):
    side = Side(root, classifier())
    found = side.check()
    assert found.items() >= {"columns": {"x": ["x"], "label": ["label"]}, "batch_size": 32, "drop_last": False}.items()
    assert side.check({"x": ["c0", "c1", "c2"]}, batch_size=5)["columns"]["x"] == ["c0", "c1", "c2"]
    assert side.check({"x": "small"})["columns"]["x"] == ["small"]
    fixed = Side(root, classifier(batch=9)).check()
    assert (fixed["batch_size"], fixed["drop_last"]) == (9, True)


def test_the_check_tells_all_mistakes_at_once(root):
    side = Side(root, classifier(batch=9))
    asked = {"feeds": {"x": ["c0", "wide", "nope"], "label": "wide", "z": "x"}, "metrics": ["logits", "nothing"]}
    assert refused(side, **asked, batch_size=8, drop_last=False) == {
        ("/feeds/x/1", "feed_dtype"),
        ("/feeds/x/2", "feed_unknown"),
        ("/feeds/label", "feed_dtype"),
        ("/feeds/z", "feed_unknown"),
        ("/metrics/0", "bad_query"),
        ("/metrics/1", "bad_query"),
        ("/batch_size", "feed_shape"),
    }


@pytest.mark.parametrize(
    ("asked", "mistake"),
    [
        ({"feeds": {"x": "c0"}}, ("/feeds/x", "feed_shape")),
        ({"feeds": {"x": ["c0", "c1"]}}, ("/feeds/x", "feed_shape")),
        ({"feeds": {"x": ["x", "c1"]}}, ("/feeds/x", "feed_shape")),
        ({"feeds": {"label": "x"}}, ("/feeds/label", "feed_dtype")),
        ({"batch_size": 50, "drop_last": True}, ("/batch_size", "feed_shape")),
    ],
)
def test_the_check_refuses_what_does_not_fit(root, asked, mistake):
    assert mistake in refused(Side(root, classifier()), **asked)


def test_the_check_tries_the_size_of_every_batch(root):
    """The last batch of an epoch and of the validation may be smaller than the others."""
    s = classifier()
    s.op("reshape", "label", shape=[8], out="eight")
    s.op("reduce_sum", s.op("cast", "eight", dtype="float32"), out="counted")
    side = Side(root, s)

    assert side.check(batch_size=8, drop_last=True, metrics=["counted"])["batch_size"] == 8
    for more in ({"drop_last": False}, {"drop_last": True, "data": {"key": KEY, "rows": ROWS, "holdout": 5}}):
        with pytest.raises(ProgramError):
            side.check(batch_size=8, metrics=["counted"], **more)


def test_the_check_refuses_sizes_that_the_ops_refuse(root):
    s = Sketch()
    s.feed("x", np.zeros((1, 3)), dtype="float32")
    s.blocks[0]["vars"][0]["shape"] = [-1, -1]
    s.param("w", np.zeros((4, 1)), dtype="float32")
    s.op("mean", s.op("matmul", "x", "w"), out="loss")
    assert refused(Side(root, s)) == {("/feeds/x/shape", "feed_shape")}


@pytest.mark.parametrize(
    ("values", "dtype", "exact"),
    [
        (np.array([2**24, -3]), "float32", True),
        (np.array([2**24 + 1]), "float32", False),
        (np.array([2**63 - 1]), "float64", False),
        (np.array([-1]), "uint8", False),
        (np.array([300]), "uint8", False),
        (np.array([0.5, np.nan, np.inf, -0.0]), "float32", True),
        (np.array([0.1]), "float32", False),
        (np.array([1e300]), "float32", False),
        (np.array([1.0, 7.0]), "int64", True),
        (np.array([1.5]), "int64", False),
        (np.array([np.nan]), "int64", False),
        (np.array([1e19]), "int64", False),
        (np.array([0, 1]), "bool", False),
        (np.array([True, False]), "float32", True),
    ],
)
def test_a_conversion_is_lossless_if_every_value_comes_back(tmp_path, values, dtype, exact):
    prepared(str(tmp_path / "objects")).write(KEY, chunks({"v": values}, {}))
    state = WorkerState("w", "cpu", np, Settings(data_dir=tmp_path).model_dump(mode="json"), going())
    assert is_lossless(state, KEY, "v", np.dtype(dtype)) is exact


def test_a_lost_file_is_an_error_of_the_call(root):
    side = Side(root, classifier())
    with pytest.raises(CoreError) as caught:
        side.fit({**described(), "key": "datasets/gone"}, 0, 1)
    assert caught.value.code == "dataset_unavailable"
