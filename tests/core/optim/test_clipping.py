"""Clipping between backward pass and optimiser, against closed forms in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.compiler.compile import Clip, GradientQuery, Optimizer, compile_training, compile_update
from core.ir.errors import ProgramError
from core.wire import read
from tests.programs import Sketch, close

V, W = np.array([0.5, -2.0]), np.array([[3.0, -0.25], [1.0, 4.0]])
GV, GW = np.array([3.0, -4.0]), np.array([[0.5, 0.0], [-0.1, 12.0]])
SGD = Optimizer("sgd", {"learning_rate": 1.0})


def linear() -> Sketch:
    """loss = sum(gv * v) + sum(gw * w), in float64 and float32: the gradients are the feeds."""
    s = Sketch()
    s.param("v", V)
    s.param("w", W, dtype="float32")
    s.feed("gv", GV)
    s.feed("gw", GW, dtype="float32")
    s.total(s.op("mul", "gv", "v"), out="a")
    s.op("add", "a", s.op("cast", s.total(s.op("mul", "gw", "w"), out="b"), dtype="float64"), out="loss")
    return s


def moves(clip: Clip | None, optimizer: Optimizer = SGD, **feeds: Any) -> tuple[np.ndarray, np.ndarray]:
    """The clipped gradients of v and w: the negative update of a step with sgd and a rate of 1."""
    s = linear()
    exe = compile_training(read(s.document), GradientQuery(loss="loss"), optimizer, clip)
    out = exe.step(s.values | exe.initial_state() | feeds)
    np.testing.assert_array_equal(out.gradients["v"], feeds.get("gv", GV))  # returned without clipping
    assert out.parameters["w"].dtype == np.float32
    return V - out.parameters["v"], W - out.parameters["w"]


def bounded(by: str, **members: Any) -> Clip:
    return Clip.read({"by": by, **members})


def norm(*gradients: np.ndarray) -> float:
    return float(np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients)))


@pytest.mark.parametrize(
    ("clip", "wanted"),
    [
        (bounded("value", max=1.0), (np.clip(GV, -1, 1), np.clip(GW, -1, 1))),
        (bounded("value", min=-0.25, max=5.0), (np.clip(GV, -0.25, 5), np.clip(GW, -0.25, 5))),
        (bounded("value", min=1.0, max=1.0), (np.ones(2), np.ones((2, 2)))),
        (bounded("norm", max_norm=6.0), (GV, GW * 6 / norm(GW))),
        (bounded("norm", max_norm=1.0), (GV / 5, GW / norm(GW))),
        (bounded("global_norm", max_norm=6.0), (GV * 6 / norm(GV, GW), GW * 6 / norm(GV, GW))),
        (bounded("global_norm", max_norm=100.0), (GV, GW)),
    ],
)
def test_a_step_moves_by_the_clipped_gradients(clip, wanted):
    for found, expected in zip(moves(clip), wanted, strict=True):
        close(found, expected, 1e-6)


@pytest.mark.parametrize(
    "clip", [bounded("value", max=1.0), bounded("norm", max_norm=1.0), bounded("global_norm", max_norm=1.0)]
)
def test_clipping_keeps_nonfinite_values_visible(clip):
    with_nan = moves(clip, gv=np.array([np.nan, 4.0]))
    with_inf = moves(clip, gv=np.array([np.inf, 4.0]))

    assert np.isnan(with_nan[0][0])
    if clip.by.name == "value":
        close(with_nan[0][1], 1.0)
        close(with_inf[0], [1.0, 1.0])
    else:
        assert np.isinf(with_inf[0][0]) and with_inf[0][1] == 4.0
        close(with_inf[1], GW if clip.by.name == "global_norm" else GW / norm(GW), 1e-6)


@pytest.mark.parametrize("by", ["norm", "global_norm"])
def test_gradients_of_zero_stay_zero(by):
    for move in moves(bounded(by, max_norm=1.0), gv=np.zeros(2), gw=np.zeros((2, 2), "float32")):
        assert (move == 0).all()


def test_decay_comes_after_clipping_or_before_it_on_request():
    optimizer = Optimizer("sgd", {"learning_rate": 1.0, "weight_decay": 0.5, "l1_decay": 0.25})
    decay_v, decay_w = 0.5 * V + 0.25 * np.sign(V), 0.5 * W + 0.25 * np.sign(W)

    after = moves(bounded("global_norm", max_norm=1.0), optimizer)
    first = moves(bounded("global_norm", max_norm=1.0, decay_first=True), optimizer)

    close(after[0], GV / norm(GV, GW) + decay_v, 1e-6)
    close(after[1], GW / norm(GV, GW) + decay_w, 1e-6)
    total = norm(GV + decay_v, GW + decay_w)
    close(first[0], (GV + decay_v) / total, 1e-6)
    close(first[1], (GW + decay_w) / total, 1e-6)


def test_decay_before_clipping_does_not_change_the_schedule():
    rate = {"schedule": "piecewise_decay", "boundaries": [1], "values": [0.5, 0.1]}
    optimizer = Optimizer("sgd", {"learning_rate": rate, "weight_decay": 0.5})

    close(moves(bounded("value", max=100.0, decay_first=True), optimizer)[0], 0.5 * (GV + 0.5 * V))


@pytest.mark.parametrize("type", ["adamw", "lamb", "ftrl"])
def test_decay_outside_of_the_gradient_cannot_come_before_clipping(type):
    with pytest.raises(ProgramError) as error:
        moves(bounded("value", max=1.0, decay_first=True), Optimizer(type))
    assert error.value.code == "bad_query"


@pytest.mark.parametrize(
    "clip", [bounded("value", max=1.0), bounded("norm", max_norm=1.0), bounded("global_norm", max_norm=1.0)]
)
def test_gradients_from_the_client_are_clipped_in_the_same_way(clip):
    update = compile_update(read(linear().document), ["v", "w"], SGD, clip)
    out = update.step({"v": V, "w": W.astype("float32")}, {"v": GV, "w": GW.astype("float32")}, {})

    for name, before, moved in zip("vw", (V, W), moves(clip), strict=True):
        close(before - out.parameters[name], moved, 1e-6)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"by": "nothing"},
        {"by": "value"},
        {"by": "value", "min": -1.0},
        {"by": "value", "min": 2.0, "max": 1.0},
        {"by": "value", "max": -1.0},
        {"by": "value", "max": 1.0, "max_norm": 1.0},
        {"by": "norm"},
        {"by": "norm", "max_norm": 0.0},
        {"by": "norm", "max_norm": -1.0},
        {"by": "norm", "max_norm": 1.0, "max": 1.0},
        {"by": "global_norm", "max_norm": float("inf")},
        {"by": "global_norm", "max_norm": float("nan")},
        {"by": "value", "max": float("nan")},
        {"by": "global_norm", "max_norm": 1.0, "more": 1},
        {"by": "global_norm", "max_norm": True},
    ],
)
def test_invalid_clips_are_refused(raw):
    with pytest.raises(ProgramError) as error:
        Clip.read(raw)
    assert error.value.code == "bad_query"
