"""The analysis of a program before it runs, compared with its run."""

from __future__ import annotations

import numpy as np
import pytest

from core.analysis import analyse, check_gradients, predict_memory
from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read
from tests.core.passes.loops import POLICIES, layers, tanh_loop
from tests.core.wire.constructs import custom
from tests.programs import Sketch, traced_peak


def mlp(batch: int = 64, width: int = 256) -> Sketch:
    r = np.random.default_rng(0)
    s = Sketch()
    s.feed("x", r.standard_normal((batch, width)))
    for i in range(3):
        s.param(f"w{i}", r.standard_normal((width, width)) / 16)
    h = "x"
    for i in range(3):
        h = s.op("tanh", s.op("matmul", h, f"w{i}"))
    s.op("mean", h, out="loss")
    return s


def wide_chain() -> Sketch:
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, 20_000))
    h = "w"
    for _ in range(40):
        h = s.op("sin", s.op("mul", h, "w"))
    s.total(h)
    return s


def predicted(s: Sketch, trips: int = 1, **query: object) -> int:
    exe = compile_gradient(read(s.document), GradientQuery(loss="loss", **query))  # type: ignore[arg-type]
    return predict_memory(exe.interpreter.block, trips).peak


@pytest.mark.reference
@pytest.mark.parametrize("s", [mlp(), wide_chain()], ids=["mlp", "chain"])
@pytest.mark.parametrize("checkpoints", [(), "auto"])
def test_the_predicted_peak_equals_the_measured_peak(s, checkpoints):
    assert predicted(s, checkpoints=checkpoints) == pytest.approx(traced_peak(s, checkpoints=checkpoints), rel=0.15)


@pytest.mark.sampled(1)
@pytest.mark.reference
@pytest.mark.parametrize("policy", POLICIES)
def test_the_predicted_peak_of_a_loop_is_near_the_measured_one_under_every_memory_policy(policy):
    s = tanh_loop(300, 5000)

    assert predicted(s, 300, loop_memory=policy) == pytest.approx(traced_peak(s, loop_memory=policy), rel=0.25)


def test_the_report_counts_work_and_lists_residuals_with_their_readers():
    s = mlp(8, 16)
    report = analyse(read(s.document), GradientQuery(loss="loss"))

    # forward three products; backward one for each weight, and one for each input but x
    assert report["flops"]["by_op"]["matmul"] == (3 + 3 + 2) * 2 * 8 * 16 * 16
    assert report["ops"]["forward"] == {"matmul": 3, "tanh": 3, "mean": 1}
    assert report["memory"]["parameters"] == 3 * 16 * 16 * 8
    kept = {each["variable"]: each for each in report["kept"]}
    assert len(kept) == 3
    for each in kept.values():
        assert each["made_by"]["type"] == "tanh"
        assert {reader["of"]["type"] for reader in each["read_by"]} <= {"tanh", "matmul"}
    assert report["memory"]["kept"] == 3 * 8 * 16 * 8
    assert set(report["ready_at"]) == {"w0", "w1", "w2"}


def test_bytes_of_open_feeds_follow_the_given_shapes():
    fixed, opened = mlp(8, 16), mlp(8, 16)
    opened.blocks[0]["vars"][0]["shape"] = [-1, 16]
    query = GradientQuery(loss="loss")

    found, wanted = analyse(read(opened.document), query, {"x": (8, 16)}), analyse(read(fixed.document), query)

    assert found["memory"] == wanted["memory"]
    assert [(each["variable"], each["type"], each["bytes"]) for each in found["kept"]] == [
        (each["variable"], each["type"], each["bytes"]) for each in wanted["kept"]
    ]
    assert found["memory"]["feeds"] == 8 * 16 * 8


def test_95_a_missing_gradient_has_a_reason_and_the_location_where_its_path_ends():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("v", [0.5, 0.7])
    s.total(s.op("mul", s.op("cast", s.op("argmax", "w"), dtype="float64"), "v"))
    report = analyse(read(s.document), GradientQuery(loss="loss"))

    assert report["missing"]["w"] == {
        "reason": "non_differentiable_op:argmax",
        "cut_at": {"block": 0, "op": 0, "type": "argmax", "backward": False},
    }


def test_contributions_name_the_ops_that_compute_them():
    report = analyse(read(layers().document), GradientQuery(loss="loss"))

    assert [part["of"]["type"] for part in report["contributions"]["w"]] == ["mul"] * 4
    assert len(report["contributions"]["x"]) == 1


def test_91_a_wrong_gradient_is_found():
    good = check_gradients(read(custom(2.0).document), "loss", custom(2.0).values)
    bad = check_gradients(read(custom(-1.0).document), "loss", custom(-1.0).values)

    assert good["w"].passed
    assert not bad["w"].passed
    assert bad["w"].numeric == pytest.approx(8 * custom(2.0).values["w"][bad["w"].worst], rel=1e-5)


def test_the_check_passes_on_a_loop_and_detects_kinks():
    found = check_gradients(read(tanh_loop(3).document), "loss", {})
    assert all(each.passed and each.kinks == 0 for each in found.values())

    s = Sketch()
    s.param("w", [0.0, 1.0])
    s.total(s.op("abs", "w"))
    found = check_gradients(read(s.document), "loss", s.values)
    assert found["w"].kinks == 1
    assert found["w"].passed
