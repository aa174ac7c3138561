"""Several batches in one call, and accumulated gradients, equal separate calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.ir.errors import CoreError, ExecutionError
from core.runtime.sparse_rows import RowArray
from service.settings import Settings
from service.worker import sessions, training
from service.worker.gradient_sum import GradientSum
from service.worker.session import WorkerSession
from service.worker.state import WorkerState
from tests.programs import Sketch
from tests.service.worker.test_last_step import going

RNG = np.random.default_rng(3)
K = 5
COSINE = {"schedule": "cosine_decay", "learning_rate": 0.1, "decay_steps": 10}
ADAM = {"type": "adam", "attrs": {"learning_rate": 0.05}}
GROUPS = {
    "type": "adam",
    "attrs": {"learning_rate": 0.05, "groups": [{"match": "b", "type": "sgd", "learning_rate": COSINE}]},
}
ADAGRAD = {"type": "adagrad", "attrs": {"learning_rate": 0.05}}
X = RNG.standard_normal((K, 4, 3)).astype("float32")
IDS = RNG.integers(0, 6, (K, 4))


def model(sparse: bool = False, dtype: str = "float32") -> Sketch:
    """A regression with dropout, a table, a bias and a state that counts."""
    s = Sketch()
    s.feed("x", X[0], dtype=dtype)
    s.feed("i", IDS[0], dtype="int64")
    s.param("w", RNG.standard_normal((3, 2)), dtype=dtype)
    s.param("b", np.zeros(2), dtype=dtype)
    s.param("table", RNG.standard_normal((6, 2)), dtype=dtype)
    s._leaf("state", "seen", 0.0, "float32")
    s.op("increment", "seen", out="seen", step=1)
    line = s.op("add", s.op("dropout", s.op("matmul", "x", "w"), p=0.25), "b", out="line")
    rows = s.op("embedding", "table", "i", is_sparse=sparse)
    s.op("mse_loss", line, rows, out="loss")
    return s


class Side:
    """A session in its own worker state."""

    def __init__(self, sketch: Sketch, compile: str, optimizer: dict[str, Any] = ADAM, **more: Any) -> None:
        settings = Settings(compile=compile).model_dump(mode="json")  # type: ignore[arg-type]
        self.state = WorkerState("w", "cpu", np, settings, going())
        asked = {
            "id": "s",
            "document": sketch.document,
            "query": {"loss": "loss"},
            "optimizer": optimizer,
            "clip": None,
        }
        given = {n: v.copy() for n, v in sketch.values.items() if n not in ("x", "i")}  # a session writes to tables
        sessions.create(self.state, {**asked, "seed": 3, "initializers": {}, **more}, given)
        self.seq = 0

    @property
    def session(self) -> WorkerSession:
        return self.state.sessions["s"]

    def call(self, handler: Any, feeds: dict[str, Any], **args: Any) -> Any:
        self.seq += 1
        plain = {"id": "s", "seq": self.seq, "fetch": [], "require_finite": False, "returned": "none", "tables": {}}
        said, arrays = handler(self.state, {**plain, "stream": False, "reduction": "sum", **args}, feeds)
        return said, {name: np.array(value) for name, value in arrays.items()}

    def step(self, feeds: dict[str, Any], **args: Any) -> Any:
        return self.call(training.step, feeds, **args)

    def held(self) -> dict[str, np.ndarray]:
        s = self.session
        return {k: np.array(v) for each in (s.parameters, s.states, s.slots) for k, v in each.items()}


def feeds(i: Any = slice(None), dtype: str = "float32") -> dict[str, Any]:
    return {"x": X[i].astype(dtype), "i": IDS[i]}


def equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", [ADAM, GROUPS, ADAGRAD], ids=["adam", "groups", "adagrad"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("compile", ["always", "never"])
def test_batches_in_one_call_equal_separate_steps_to_the_bit(compile, sparse, optimizer):
    sketch = model(sparse)
    one, each = Side(sketch, compile, optimizer), Side(sketch, compile, optimizer)
    for _ in range(2):  # the second call starts from a bound step
        said, arrays = one.step(feeds(), batches=K, fetch=["line"], returned="all")

        answers = [each.step(feeds(i), fetch=["line"], returned="all") for i in range(K)]
        for name in ("loss", "fetch/line", "grad/w", "grad/b"):
            np.testing.assert_array_equal(arrays[name], np.stack([a[name] for _, a in answers]), err_msg=name)
        assert said["gradient_norms"]["global"] == [s["gradient_norms"]["global"] for s, _ in answers]
        rates = [s["learning_rate"] for s, _ in answers]
        if optimizer is GROUPS:
            assert said["learning_rate"] == {name: [r[name] for r in rates] for name in ("b", "default")}
        else:
            assert said["learning_rate"] == rates == [0.05] * K
        equal(one.held(), each.held())
        assert (said["applied"], said["stopped"], said["step"]) == (K, None, each.session.steps)
    bound = one.session.last_step is not None and one.session.last_step.bound is not None
    assert bound == (compile == "always")


def test_a_feed_of_the_declared_rank_is_the_same_in_all_batches():
    sketch = model()
    one, each = Side(sketch, "never"), Side(sketch, "never")

    one.step({"x": X, "i": IDS[2]}, batches=K)

    for i in range(K):
        each.step({"x": X[i], "i": IDS[2]})
    equal(one.held(), each.held())


@pytest.mark.parametrize("compile", ["always", "never"])
@pytest.mark.parametrize(("wrong", "code"), [("index", "index_out_of_range"), ("nan", "not_finite")])
@pytest.mark.parametrize("at", [1, 3])
def test_a_batch_that_fails_leaves_the_earlier_ones_applied(compile, wrong, code, at):
    sketch = model()
    one, each = Side(sketch, compile), Side(sketch, compile)
    given = {"x": X.copy(), "i": IDS.copy()}
    if wrong == "index":
        given["i"][at, 0] = 99
    else:
        given["x"][at] = np.nan

    said, arrays = one.step(given, batches=K, require_finite=True)

    for i in range(at):
        each.step(feeds(i))
    equal(one.held(), each.held())
    assert (said["applied"], said["stopped"]["batch"], said["stopped"]["code"], said["step"]) == (at, at, code, at)
    assert len(arrays["loss"]) == at
    assert one.session.seq == 1
    one.step(feeds(0))
    each.step(feeds(0))
    equal(one.held(), each.held())


def test_a_first_batch_that_fails_changes_nothing():
    one = Side(model(), "never")
    before = one.held()

    with pytest.raises(CoreError):
        one.step({"x": X, "i": IDS + 99}, batches=K)

    equal(one.held(), before)
    assert one.session.seq == 0


@pytest.mark.parametrize("compile", ["always", "never"])
def test_a_deadline_between_batches_keeps_those_before_it(compile):
    one = Side(model(), compile)
    one.step(feeds(), batches=K)
    left = [4]

    def check() -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise ExecutionError("late", "deadline_exceeded")

    stop = going()
    one.state.stop = SimpleNamespace(check=check, deadline=stop.deadline, should_stop=lambda: False)  # type: ignore[assignment]
    said, arrays = one.step(feeds(), batches=K)

    assert said["stopped"]["code"] == "deadline_exceeded"
    assert 0 < said["applied"] < K
    assert said["step"] == K + said["applied"]
    assert len(arrays["loss"]) == said["applied"]


def test_batches_of_another_size_are_refused():
    one = Side(model(), "never")

    with pytest.raises(CoreError, match=r"'x' is declared as float32\[4, 3\], after axes of \[4\] batches"):
        one.step(feeds(), batches=4)


@pytest.mark.parametrize("optimizer", [ADAM, GROUPS], ids=["adam", "groups"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_accumulated_calls_and_one_accumulating_step_are_the_same(reduction, sparse, optimizer):
    sketch = model(sparse)
    step, calls = Side(sketch, "never", optimizer), Side(sketch, "never", optimizer)

    said, arrays = step.step(feeds(), accumulate=K, reduction=reduction, returned="all")
    for i in range(K):
        added, nothing = calls.call(training.gradients, feeds(i), accumulate=True)
        assert (added["accumulated"], added["step"], nothing.keys()) == (i + 1, 0, {"loss"})
    updated, _ = calls.call(training.update, {}, reduction=reduction)

    equal(step.held(), calls.held())
    assert step.held()["seen"] == K
    assert (updated["accumulated"], updated["step"], said["step"]) == (0, 1, 1)
    assert arrays["loss"].shape == (K,)
    assert updated["learning_rate"] == said["learning_rate"]


@pytest.mark.parametrize("compile", ["always", "never"])
@pytest.mark.parametrize("sparse", [False, True])
def test_batches_of_an_accumulating_call_equal_separate_calls(compile, sparse):
    sketch = model(sparse)
    one, each = Side(sketch, compile), Side(sketch, compile)
    for side in (one, each):
        side.call(training.gradients, feeds(2), accumulate=True)

    said, arrays = one.call(training.gradients, feeds(), accumulate=True, batches=K, fetch=["line"])
    singles = [each.call(training.gradients, feeds(i), accumulate=True, fetch=["line"]) for i in range(K)]
    for side in (one, each):
        side.call(training.update, {}, reduction="mean")

    assert said["accumulated"] == K + 1
    for name in ("loss", "fetch/line"):
        np.testing.assert_array_equal(arrays[name], np.stack([a[name] for _, a in singles]))
    equal(one.held(), each.held())
    assert one.held()["seen"] == K + 1


def test_an_accumulating_call_that_fails_in_a_later_batch_adds_nothing():
    side = Side(model(), "never")
    side.call(training.gradients, feeds(0), accumulate=True)
    before, ids = {n: np.array(v) for n, v in side.session.gradients.sums.items()}, IDS.copy()
    ids[3] = 99

    with pytest.raises(CoreError):
        side.call(training.gradients, {"x": X, "i": ids}, accumulate=True, batches=K)

    equal(side.session.gradients.sums, before)
    assert (side.session.gradients.count, side.held()["seen"]) == (1, 1)


def linear() -> Sketch:
    """A loss that is a mean over rows, without random ops."""
    s = Sketch()
    s.feed("x", X.reshape(-1, 3)[:4].astype("float64"))
    s.blocks[0]["vars"][0]["shape"] = [-1, 3]
    s.param("w", RNG.standard_normal((3, 2)))
    s.op("mean", s.op("square", s.op("matmul", "x", "w")), out="loss")
    return s


def test_the_mean_over_batches_is_the_gradient_of_one_large_batch():
    sketch = linear()
    optimizer = {"type": "sgd", "attrs": {"learning_rate": 0.1}}
    parts, whole = Side(sketch, "never", optimizer), Side(sketch, "never", optimizer)
    x = X.astype("float64")

    _, arrays = parts.step({"x": x}, accumulate=K, reduction="mean", returned="all")
    _, wanted = whole.step({"x": x.reshape(-1, 3)}, returned="all")

    w = sketch.values["w"]
    by_hand = 2 * x.reshape(-1, 3).T @ (x.reshape(-1, 3) @ w) / (4 * K * 2)
    np.testing.assert_allclose(arrays["grad/w"], by_hand, rtol=1e-12)
    np.testing.assert_allclose(wanted["grad/w"], by_hand, rtol=1e-12)
    np.testing.assert_allclose(parts.held()["w"], w - 0.1 * by_hand, rtol=1e-12)
    assert arrays["loss"].mean() == pytest.approx(float(wanted["loss"]))


@pytest.mark.parametrize(("batches", "axes"), [({}, 0), ({"batches": 2}, 1)])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_feed_without_an_axis_of_batches_is_the_same_in_all_of_them(parts, batches, axes):
    """No feed says how many there are: only the call does."""
    sketch = linear()
    one, each = Side(sketch, "never"), Side(sketch, "never")
    x = X[0].astype("float64")

    _, arrays = one.step({"x": x}, accumulate=parts, **batches)
    for _ in range(batches.get("batches", 1)):
        each.step({"x": np.stack([x] * parts)}, accumulate=parts)

    equal(one.held(), each.held())
    assert arrays["loss"].shape == (2,) * axes + (parts,)


def test_equal_batches_of_an_accumulating_call_are_as_many_as_it_says():
    side = Side(linear(), "never")

    said, arrays = side.call(training.gradients, {"x": X[0].astype("float64")}, accumulate=True, batches=3)

    assert (said["accumulated"], arrays["loss"].shape) == (3, (3,))


def test_batches_of_accumulated_batches_equal_accumulating_steps():
    sketch = model()
    one, each = Side(sketch, "never"), Side(sketch, "never")
    given = {"x": X[:4].reshape(2, 2, 4, 3), "i": IDS[:4].reshape(2, 2, 4)}

    _, arrays = one.step(given, batches=2, accumulate=2)

    for i in range(2):
        each.step({name: value[i] for name, value in given.items()}, accumulate=2)
    equal(one.held(), each.held())
    assert arrays["loss"].shape == (2, 2)


def test_steps_and_updates_with_gradients_leave_the_sum_as_it_is():
    side = Side(linear(), "never")
    x = {"x": X[0].astype("float64")}
    side.call(training.gradients, x, accumulate=True)
    kept = np.array(side.session.gradients.sums["w"])

    side.step(x)
    said, _ = side.call(training.update, {"grad/w": np.ones((3, 2))})

    assert said["accumulated"] == 1
    np.testing.assert_array_equal(side.session.gradients.sums["w"], kept)
    assert side.call(training.discard, {})[0]["accumulated"] == 0
    with pytest.raises(CoreError, match="none is accumulated"):
        side.call(training.update, {})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_gradients_are_not_rounded(dtype):
    """4096 gradients of 1/4 and one of 1/4096: in float16 the sum would stop growing."""
    total = GradientSum()
    from core.ops.common.types import as_dtype

    for value in [0.25] * 4096 + [2.0**-12]:
        total.add({"w": np.full(2, value, as_dtype(dtype))}, {"w"})

    np.testing.assert_array_equal(total.sums["w"], np.full(2, 1024 + 2.0**-12, "float32"))
    np.testing.assert_array_equal(total.reduced("mean")["w"], np.full(2, (1024 + 2.0**-12) / 4097, "float32"))


def test_rows_and_dense_gradients_of_one_table_are_added():
    rng = np.random.default_rng(0)
    dense, total = np.zeros((7, 2)), GradientSum()
    for kind in ("rows", "rows", "dense", "rows"):
        values = rng.standard_normal((3, 2))
        rows = np.sort(rng.permutation(7)[:3])
        part = RowArray(rows, values, (7, 2))
        dense[rows] += values
        total.add({"E": part if kind == "rows" else part.whole()}, {"E"})

    found = total.sums["E"]
    np.testing.assert_allclose(found.whole() if isinstance(found, RowArray) else found, dense, rtol=1e-13)


@pytest.mark.parametrize("accumulate", [True, False])
def test_an_overflow_skips_the_update_and_lowers_the_loss_scale(accumulate):
    """The factor grows after two finite updates and halves after one that overflows, in both ways of training."""
    scale = {"initial": 2.0**10, "interval": 2}
    s = Sketch()
    s.feed("x", np.ones(2), dtype="float32")
    s.param("w", np.ones(2), dtype="float32")
    s.op("mean", s.op("mul", "w", "x"), out="loss")
    side = Side(s, "never", {"type": "sgd", "attrs": {"learning_rate": 0.5}}, loss_scale=scale)
    seen = []
    for x in (1.0, 1.0, np.inf, 1.0):
        given = {"x": np.full(2, x, "float32")}
        if accumulate:
            side.call(training.gradients, given, accumulate=True)
            said, _ = side.call(training.update, {})
        else:
            said, _ = side.step(given)
        seen.append((said["loss_scale"], said["skipped"], float(side.held()["w"][0])))

    assert seen == [(1024, False, 0.75), (1024, False, 0.5), (2048, True, 0.5), (1024, False, 0.25)]
