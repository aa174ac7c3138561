"""Loss scaling: gradients that underflow in float16, skipped updates, and a dynamic scale."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.hooks import ACTIONS, Hook
from core.compiler.compile import GradientQuery, LossScale, Optimizer, compile_gradient, compile_training
from core.ir.errors import ProgramError
from core.runtime.sparse_rows import RowArray
from core.wire import read
from tests.core.autodiff.test_hooks import EXAMPLES
from tests.programs import Sketch, close

QUERY = GradientQuery(loss="loss")


def tiny(dtype: str = "float16", loss_dtype: str = "float32") -> Sketch:
    """loss = sum(w * x * y), where products with y underflow in float16; the gradient is x * y."""
    s = Sketch()
    s.param("w", [1.0, 2.0], dtype)
    s.feed("x", [2.0**-13, 2.0**-14], dtype)
    s.feed("y", [2.0**-13, 2.0**-13], dtype)
    weighted = s.op("mul", s.op("mul", "w", "x"), "y")
    s.total(s.op("cast", weighted, dtype=loss_dtype))
    return s


TRUE = np.array([2.0**-26, 2.0**-27])


def test_a_loss_scale_preserves_gradients_that_float16_loses():
    s = tiny()
    lost = compile_training(read(s.document), QUERY, Optimizer("sgd", {"learning_rate": 1.0}))
    kept = compile_training(
        read(s.document), QUERY, Optimizer("sgd", {"learning_rate": 1.0}), loss_scale=LossScale.read(2.0**14)
    )

    out = lost.step(s.values | lost.initial_state())
    scaled = kept.step(s.values | kept.initial_state())

    assert not out.gradients["w"].any()
    assert (scaled.scaling["loss_scale"], bool(scaled.scaling["skipped"])) == (2.0**14, False)
    moved = s.values["w"] - scaled.parameters["w"] - scaled.optimizer_state["w/rest"]
    np.testing.assert_allclose(moved, TRUE, rtol=2**-24 / TRUE.min())  # the precision of float32 next to 1
    close(float(scaled.loss), float(out.loss), 0)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("clip", [None, "global_norm"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_power_of_two_as_loss_scale_changes_no_bit(optimizer, clip, dtype):
    from core.compiler.compile import Clip

    s = Sketch()
    s.param("w", [[0.5, -1.0], [0.25, 2.0]], dtype)
    s.feed("x", [[1.0, 2.0], [3.0, -1.0]], dtype)
    s.op("matmul", "x", "w", out="h")
    s.op("mean", s.op("square", "h"), out="loss")
    given = (read(s.document), QUERY, Optimizer(optimizer), Clip.read({"by": clip, "max_norm": 0.1}) if clip else None)
    plain, scaled = compile_training(*given), compile_training(*given, loss_scale=LossScale.read(1024.0))

    a, b = (exe.step(s.values | exe.initial_state()) for exe in (plain, scaled))

    for name in a.parameters:
        np.testing.assert_array_equal(a.parameters[name], b.parameters[name])
        np.testing.assert_array_equal(a.gradients[name], b.gradients[name])
    for name in a.optimizer_state:
        np.testing.assert_array_equal(a.optimizer_state[name], b.optimizer_state[name])


def by_hand(scale: LossScale, finite: list[bool]) -> list[float]:
    """The scale before each step, by its definition."""
    number, streak, seen = scale.initial, 0, []
    for good in finite:
        seen.append(number)
        streak = streak + 1 if good else 0
        if not good:
            number = max(number * scale.backoff, scale.least)
        elif streak == scale.interval:
            number, streak = min(number * scale.growth, scale.most), 0
    return seen


def test_an_overflow_skips_the_update_and_lowers_the_scale_until_it_grows_again():
    s = Sketch()
    s.param("w", [1.0], "float16")
    s.feed("x", [1.0], "float16")
    s.values["seen"] = np.zeros(1, "float32")
    s.blocks[0]["vars"].append({"name": "seen", "dtype": "float32", "shape": [1], "role": "state"})
    s.op("mul", "w", "x", out="h")
    s.op("add", "seen", s.op("cast", "h", dtype="float32"), out="seen")
    s.total(s.op("cast", "h", dtype="float32"))
    scale = LossScale(256.0, interval=3, growth=4.0, least=2.0, most=4096.0)
    rate = {
        "learning_rate": {"schedule": "exponential_decay", "learning_rate": 1e-3, "decay_steps": 1, "decay_rate": 0.5}
    }
    exe = compile_training(read(s.document), QUERY, Optimizer("adam", rate), loss_scale=scale)
    r = np.random.default_rng(2)
    values, finite, numbers = s.values | exe.initial_state(), [], []
    for x in np.where(r.random(40) < 0.25, 60000.0, 1.0):
        values["x"] = np.array([x], "float16")
        out = exe.step(values)
        overflows = x * float(out.scaling["loss_scale"]) > 65504
        new = (
            out.parameters
            | out.states
            | {name: v for name, v in out.optimizer_state.items() if not name.startswith("@LOSS_SCALE")}
        )
        assert bool(out.scaling["skipped"]) == overflows
        assert all(np.array_equal(v, values[name]) for name, v in new.items()) == overflows
        assert (new["@STEPS"] == values["@STEPS"]) == (new["seen"] == values["seen"]).all() == overflows
        numbers.append(float(out.scaling["loss_scale"]))
        finite.append(not overflows)
        values |= out.parameters | out.states | out.optimizer_state

    assert not all(finite) and any(finite)
    assert numbers == by_hand(scale, finite)


def test_a_gradient_query_returns_unscaled_gradients():
    s = tiny("float16")
    s.blocks[0]["vars"][0]["dtype"] = "float32"
    s.values["w"] = s.values["w"].astype("float32")
    s.blocks[0]["ops"].insert(
        0, {"type": "cast", "inputs": {"x": ["w"]}, "outputs": {"out": ["w16"]}, "attrs": {"dtype": "float16"}}
    )
    s.blocks[0]["ops"][1]["inputs"]["x"] = ["w16"]
    exe = compile_gradient(read(s.document), QUERY, loss_scale=LossScale.read(2.0**14))

    np.testing.assert_array_equal(exe.step(s.values).gradients["w"], TRUE)


def test_the_scale_of_a_float16_loss_is_limited_by_its_range():
    s = tiny("float16", "float16")
    exe = compile_training(read(s.document), QUERY, Optimizer("sgd"), loss_scale=LossScale.read("dynamic"))

    assert float(exe.step(s.values | exe.initial_state()).scaling["loss_scale"]) == 2.0**15
    with pytest.raises(ProgramError, match="cannot be multiplied by"):
        compile_training(read(s.document), QUERY, Optimizer("sgd"), loss_scale=LossScale.read(65536.0))


@pytest.mark.parametrize(
    "raw",
    [0, -1, float("inf"), "static", {"initial": 2.0, "interval": 0}, {"growth": 1.0}, {"backoff": 1.0},
     {"initial": 0.5}, {"initial": 8.0, "most": 4.0}, {"size": 1}, {"interval": 1.5}, True],
)  # fmt: skip
def test_wrong_scales_are_refused(raw):
    with pytest.raises(ProgramError) as error:
        LossScale.read(raw)
    assert error.value.code == "bad_query"


@pytest.mark.parametrize("loss", ["nothing", "w", "n"])
def test_an_invalid_loss_gives_the_same_error_with_and_without_a_scale(loss):
    s = tiny()
    s.feed("n", 1, "int64")
    told = []
    for scale in (None, LossScale.read(8.0)):
        with pytest.raises(ProgramError) as error:
            compile_training(read(s.document), GradientQuery(loss=loss), Optimizer("sgd"), loss_scale=scale)
        told.append((error.value.code, error.value.message))
    assert told[0] == told[1]


def looped(sparse: bool) -> Sketch:
    """h = tanh(h * w) for three trips from a row of a table: a variable with a gradient in each of its places."""
    s = Sketch()
    s.param("table", [[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]], "float32")
    s.param("w", [0.5, 0.7], "float32")
    s.feed("row", 1, "int64")
    s.op("embedding", "table", "row", is_sparse=sparse, out="h")
    with s.repeat(3):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total(s.op("square", "h", out="q"))
    return s


def whole(value: np.ndarray | RowArray) -> np.ndarray:
    return value.whole() if isinstance(value, RowArray) else value


@pytest.mark.sampled(2, each="do")
@pytest.mark.parametrize("scale", [1024.0, "dynamic"])
@pytest.mark.parametrize("when", ["after_accumulation", "each_contribution"])
@pytest.mark.parametrize("match", [{"role": "parameter"}, {"variable": "1:h"}, {"op": "square"}], ids=str)
@pytest.mark.parametrize("do", EXAMPLES)
@pytest.mark.parametrize("sparse", [False, True])
def test_hooks_and_fetched_gradients_see_those_of_the_unscaled_loss(do, match, when, scale, sparse):
    if when == "each_contribution" and ACTIONS[do].returned:
        pytest.skip("such a hook is refused")
    s = looped(sparse)
    query = GradientQuery(loss="loss", hooks=(Hook.read({"match": match, "do": do, "when": when, **EXAMPLES[do]}),))
    fetch = ["q@GRAD", "w@GRAD", "table@GRAD"]
    given = (read(s.document), query, Optimizer("sgd", {"learning_rate": 1.0}), None, fetch)
    plain = compile_training(*given)
    if scale == "dynamic" and do.startswith("clip"):
        with pytest.raises(ProgramError, match="cannot follow a dynamic loss scale"):
            compile_training(*given, loss_scale=LossScale.read(scale))
        return
    scaled = compile_training(*given, loss_scale=LossScale.read(scale))

    a, b = (exe.step(s.values | exe.initial_state()) for exe in (plain, scaled))

    for place in ("gradients", "fetched", "recorded", "parameters"):
        assert getattr(a, place).keys() == getattr(b, place).keys()
        for name, expected in getattr(a, place).items():
            np.testing.assert_allclose(whole(getattr(b, place)[name]), whole(expected), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "loss, raw",
    [
        ("float32", 1e-50),
        ("float16", 1e-6),
        ("float16", {"initial": 65536.0, "least": 65536.0}),
        ("float32", {"initial": 1.0, "least": 1e-50}),
    ],
)
def test_a_scale_that_the_loss_cannot_hold_is_refused(loss, raw):
    """As zero it would make every gradient NaN; above the range it would skip every step."""
    with pytest.raises(ProgramError, match="cannot be multiplied by"):
        compile_training(read(tiny("float16", loss).document), QUERY, Optimizer("sgd"), loss_scale=LossScale.read(raw))
