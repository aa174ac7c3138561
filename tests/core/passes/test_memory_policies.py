"""Memory policies of loops and checkpoints: they change peak memory and recomputation, but no gradient."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from core.backward.append_backward import Options, append_backward
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ProgramError
from core.wire import read, write
from tests.core.passes.loops import POLICIES, layers, tanh_loop
from tests.core.wire.constructs import elman
from tests.programs import Sketch, check, close, grads, step, traced_peak


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 7])
def test_73_all_policies_give_the_same_gradient(policy, trips):
    s = tanh_loop(trips)
    wanted = grads(s)

    found = check(s, loop_memory=policy)

    for name, value in found.items():
        close(value, wanted[name], 1e-14)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("reverse", [False, True])
def test_73_a_scan_has_the_same_gradient_under_every_policy(policy, reverse):
    s = elman("all", reverse, "scan")
    s.blocks[0]["ops"][0]["attrs"]["memory"] = policy
    wanted = grads(elman("all", reverse, "scan"))

    for name, value in check(s).items():
        close(value, wanted[name], 1e-14)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loop_in_a_loop_in_a_branch_has_the_same_gradient_under_every_policy(policy):
    def program() -> Sketch:
        s = Sketch()
        s.param("w", [0.5, 0.7])
        s.param("x", [1.0, 2.0])
        s.feed("c", True, "bool")
        s.op("assign", "x", out="h")
        with s.block() as yes, s.repeat(4):
            s.op("tanh", s.op("mul", "h", "w"), out="h")
            with s.repeat(3):
                s.op("sin", s.op("add", "h", "w"), out="h")
        s.branch("c", yes, None)
        s.total("h")
        return s

    wanted = grads(program())
    for name, value in check(program(), loop_memory=policy).items():
        close(value, wanted[name], 1e-13)


@pytest.mark.reference
def test_73_the_peak_falls_as_promised():
    trips, size = 400, 2000
    one = 8 * size
    s = tanh_loop(trips, size)
    peaks = {policy: traced_peak(s, loop_memory=policy) for policy in POLICIES}

    assert peaks["store"] > 2 * trips * one
    assert peaks["recompute"] < 0.75 * peaks["store"]
    runs = (2 * trips) ** 0.5
    assert peaks["sqrt"] < 6 * runs * one
    assert peaks["binomial"] < peaks["sqrt"]


def test_a_loop_does_not_record_constants_of_a_known_shape():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.param("x", [1.0, 2.0])
    s.op("assign", "x", out="h")
    with s.repeat(3):
        s.op("mul", s.op("tanh", s.op("div", "h", s.op("full_like", "h", value=2.0))), "w", out="h")
    s.total("h")
    check(s)

    block = compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block
    body = next(op for op in block.ops if op.type == "loop").attrs["sub_block"]
    filled = {name for op in body.ops if op.type in ("full_like", "fill_constant") for name in op.outputs}

    assert filled and filled.isdisjoint(body.results)


def test_a_loop_does_not_record_views_of_values_that_no_trip_changes():
    w = np.array([[0.5, -0.3], [0.2, 0.7]])
    x = np.array([[1.0], [2.0]])
    s = Sketch()
    s.param("w", w)
    s.param("x", x)
    s.op("assign", "x", out="h")
    with s.repeat(3):
        turned = s.op("transpose", s.op("reshape", "w", shape=[2, 2]), axes=[1, 0])
        s.op("tanh", s.op("matmul", turned, "h"), out="h")
    s.total("h")
    check(s)

    block = compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block
    forward, _ = (op.attrs["sub_block"] for op in block.ops if op.type == "loop")
    views = {name for op in forward.ops if op.type in ("reshape", "transpose") for name in op.outputs}
    states = [x]
    for _ in range(3):
        states.append(np.tanh(w.T @ states[-1]))
    ct, sums = np.ones_like(x), np.zeros_like(w)
    for before, after in reversed(list(pairwise(states))):
        ct = ct * (1 - after**2)
        sums += before @ ct.T
        ct = w @ ct

    assert views and views.isdisjoint(forward.results)
    found = grads(s)
    close(found["w"], sums, 1e-14)
    close(found["x"], ct, 1e-14)


@pytest.mark.parametrize(("trips", "most"), [(1_000, 3e6), pytest.param(10_000, 10e6, marks=pytest.mark.slow)])
def test_73_many_trips_fit_a_small_budget(trips, most):
    assert traced_peak(tanh_loop(trips, 1000), loop_memory="sqrt") < most


# --- checkpoints -----------------------------------------------------------------------------------------------


def test_84_checkpoints_change_no_bit_and_report_the_recomputed_ops():
    s = layers()
    wanted = grads(s)

    b = append_backward(read(s.document), "loss", options=Options(checkpoints=("h1", "h0")))
    found = grads(s, checkpoints=("h1", "h0"))

    for name, value in found.items():
        assert value.tobytes() == wanted[name].tobytes()
    again = [op.type for op in b.program.block.ops if any("@AGAIN" in n for n in op.outputs) and op.type != "barrier"]
    # the backward pass reads one freed value of each segment: the product before h0, and the product before h1
    assert b.checkpoints == ("h0", "h1")
    assert len(again) == sum(op.type == "mul" for op in b.program.block.ops[:0]) + len(again)
    assert f"{len(again)} ops of the forward part run again in the backward pass" in b.rewrites
    blocks = write(b.program)["blocks"]
    assert len(blocks) == 1
    check(s, checkpoints=("h1", "h0"))


def test_84_the_ops_of_a_segment_run_again_once():
    s = Sketch()
    s.param("w", [0.5, 0.7])
    h = s.op("sin", "w", out="a")
    h = s.op("sin", h, out="b")
    h = s.op("sin", h, out="c")
    h = s.op("sin", h, out="d")
    s.total(s.op("sin", h))

    b = append_backward(read(s.document), "loss", options=Options(checkpoints=("c",)))

    again = [op.outputs[0] for op in b.program.block.ops if any("@AGAIN" in n for n in op.outputs)]
    # the backward pass takes cos of w, a and b in the segment that ends at c: a and b are recomputed
    assert again == ["w@AGAIN0", "a@AGAIN", "b@AGAIN"]
    close(grads(s, checkpoints=("c",))["w"], grads(s)["w"])
    assert grads(s, checkpoints="auto")["w"].tobytes() == grads(s)["w"].tobytes()


def test_85_recomputation_draws_the_same_mask_and_updates_running_statistics_once():
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, 12).reshape(4, 3))
    s.param("gain", [1.0, 2.0, 0.5])
    s.param("shift", [0.1, 0.2, 0.3])
    for name, value in (("running_mean", np.zeros(3)), ("running_variance", np.ones(3))):
        s._leaf("state", name, value, "float64")
    h = s.op("dropout", s.op("tanh", "w"), p=0.5)
    bn = ("y", "running_mean", "running_variance")
    s.op("batch_norm", h, "gain", "shift", "running_mean", "running_variance", out=bn)
    s.op("sin", s.op("dropout", "y", p=0.5), out="end")
    s.total(s.op("square", "end"))

    plain, again = step(s), step(s, checkpoints=("end",))
    auto = step(s, checkpoints="auto")

    for other in (again, auto):
        for name, value in plain.gradients.items():
            assert other.gradients[name].tobytes() == value.tobytes()
        for name, value in plain.states.items():
            assert other.states[name].tobytes() == value.tobytes()


def test_86_variables_inside_branches_and_loop_bodies_may_be_checkpoints():
    def program() -> Sketch:
        s = Sketch()
        s.param("w", [0.5, 0.7])
        s.param("x", [1.0, 2.0])
        s.feed("c", True, "bool")
        s.op("assign", "x", out="h")
        with s.repeat(3):
            s.op("tanh", s.op("sin", s.op("mul", "h", "w"), out="m"), out="h")
        with s.block() as yes:
            s.op("tanh", s.op("sin", s.op("mul", "h", "w"), out="k"), out="h")
        s.branch("c", yes, None)
        s.total("h")
        return s

    wanted = grads(program())
    found = check(program(), checkpoints=("1:m", "2:k"))
    for name, value in found.items():
        close(value, wanted[name], 1e-14)
    document = write(append_backward(read(program().document), "loss", options=Options(checkpoints=("1:m",))).program)
    loop = next(op for op in document["blocks"][0]["ops"] if op["type"] == "loop")
    assert [n for n in loop["outputs"]["out"] if "@STACK" in n] == ["h@STACK", "m@STACK"]


@pytest.mark.parametrize("name", ["nothing", "1:nothing", "7:h"])
def test_86_an_unknown_checkpoint_is_an_error(name):
    with pytest.raises(ProgramError) as error:
        grads(tanh_loop(3), checkpoints=(name,))
    assert error.value.code == "checkpoint_unknown"


@pytest.mark.reference
def test_checkpoints_lower_the_peak_of_a_deep_network():
    s = Sketch()
    s.param("w", np.linspace(0.5, 0.7, 20_000))
    h = "w"
    for _ in range(100):
        h = s.op("sin", s.op("mul", h, "w"))
    s.total(h)

    assert traced_peak(s, checkpoints="auto") < 0.35 * traced_peak(s)
