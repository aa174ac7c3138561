"""Variables of inner blocks, named ``"1:h"`` with the client's number of the block, wherever a question names them."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from core.backward import Options, append_backward
from core.errors import ProgramError
from core.hooks import Hook
from core.wire import read, write
from tests.programs import Sketch, close, grads, step

W, X = np.array([0.5, 0.7]), np.array([1.0, 2.0])


def in_a_net(trips: int = 2) -> Sketch:
    """A loop, block 1, whose body starts with a net, block 2: t = h * w there, h = sin(t) in the body."""
    s = Sketch()
    s.param("w", W)
    s.op("assign", "w", out="h")
    with s.repeat(trips):
        with s.block() as block:
            s.declare("t")
            s.op("mul", "h", "w", out="t")
            s.op("sin", "t", out="u")
        s.construct("net", {}, {}, sub_block=block)
        s.op("tanh", "u", out="h")
    s.total("h")
    return s


def by_hand(stopped: str | None, trips: int = 2) -> tuple[np.ndarray, list[np.ndarray]]:
    """dw, and the gradients of h after each trip; `stopped` says through which variable of a trip nothing flows."""
    hs = [W]
    for _ in range(trips):
        hs.append(np.tanh(np.sin(hs[-1] * W)))
    ct, dw, seen = np.ones(2), np.zeros(2), []
    for h in reversed(hs[:-1]):
        seen.append(ct)
        d = ct * (1 - np.tanh(np.sin(h * W)) ** 2) * np.cos(h * W)
        if stopped is not None:
            d = 0 * d
        ct, dw = d * W, dw + d * h
    return dw + ct, seen[::-1]


@pytest.mark.parametrize("name", ["1:h", "1:u", "2:t", "2:u"])
def test_nothing_flows_through_a_variable_that_a_body_shares_with_a_net(name):
    close(grads(in_a_net())["w"], by_hand(None)[0])
    close(grads(in_a_net(), no_grad_set=(name,), unconnected="zeros")["w"], by_hand(name)[0])


@pytest.mark.parametrize("name", ["1:nothing", "2:h2", "7:h", "1:w9"])
def test_an_inner_name_that_there_is_not_is_an_error(name):
    with pytest.raises(ProgramError) as error:
        grads(in_a_net(), no_grad_set=(name,))
    assert error.value.code == "bad_no_grad_set"


def test_what_hooks_record_there():
    hook = Hook.read({"match": {"variable": "1:h"}, "do": "record"})
    inside = Hook.read({"match": {"variable": "2:t"}, "do": "record"})

    found = step(in_a_net(), hooks=(hook, inside)).recorded

    close(found["1:h"], by_hand(None)[1])
    h = np.tanh(np.sin(W * W))
    close(found["2:t"][1], (1 - np.tanh(np.sin(h * W)) ** 2) * np.cos(h * W))


def test_a_name_that_a_net_has_for_itself_is_not_the_one_around_it():
    s = Sketch()
    s.param("w", W)
    s.op("scale", "w", out="t", scale=3.0)
    with s.block() as block:
        s.declare("t")
        s.op("square", "w", out="t")
        s.op("sin", "t", out="u")
    s.construct("net", {}, {}, sub_block=block)
    s.total(s.op("mul", "t", "u"))

    hooks = tuple(Hook.read({"match": {"variable": n}, "do": "record"}) for n in ("t", "1:t"))
    found = step(s, hooks=hooks).recorded

    close(found["0:t"], np.sin(W**2))
    close(found["1:t"], 3 * W * np.cos(W**2))
    close(grads(s, no_grad_set=("1:t",))["w"], 3 * np.sin(W**2))
    close(grads(s, no_grad_set=("t",))["w"], 3 * W * np.cos(W**2) * 2 * W)


@pytest.mark.parametrize("name", ["1:h", "1:u", "2:t"])
def test_a_checkpoint_there(name):
    wanted = grads(in_a_net(3))["w"]

    assert grads(in_a_net(3), checkpoints=(name,))["w"].tobytes() == wanted.tobytes()
    answer = append_backward(read(in_a_net(3).document), "loss", options=Options(checkpoints=(name,)))
    loop = next(op for op in write(answer.program)["blocks"][0]["ops"] if op["type"] == "loop")
    assert any(n.split("@")[0] == name[2:] and "@STACK" in n for n in loop["outputs"]["out"])


def test_a_name_that_a_net_has_for_itself_is_not_fetched_nor_differentiated_in_its_place():
    s = Sketch()
    s.param("w", W)
    s.op("scale", "w", out="t", scale=3.0)
    with s.block() as block:
        s.declare("t")
        s.op("square", "w", out="t")
        s.op("sin", "t", out="u")
    s.construct("net", {}, {}, sub_block=block)
    s.total(s.op("mul", "t", "u"))

    found = step(s, fetch=["t"], loss=None, targets=("loss",), inputs=("t", "w"))

    close(found.fetched["t"], 3 * W)
    close(found.gradients["t"], np.sin(W**2))
    close(found.gradients["w"], 3 * np.sin(W**2) + 3 * W * np.cos(W**2) * 2 * W)


@pytest.mark.parametrize("loop", [False, True])
def test_a_name_that_a_net_has_for_itself_may_be_written_in_a_net_inside_it(loop):
    s = Sketch()
    s.param("w", W)
    s.op("assign", "w", out="h")
    with s.repeat(1) if loop else nullcontext():
        with s.block() as outer:
            s.declare("t")
            with s.block() as inner:
                s.op("square", "w", out="t")
            s.construct("net", {}, {}, sub_block=inner)
            s.op("sin", "t", out="u")
        s.construct("net", {}, {}, sub_block=outer)
        s.op("tanh", "u", out="h")
    s.total("h")
    slope = (1 - np.tanh(np.sin(W**2)) ** 2) * np.cos(W**2)  # of the loss in t

    hook = Hook.read({"match": {"variable": f"{inner}:t"}, "do": "record"})
    found = step(s, hooks=(hook,))

    close(found.recorded[f"{inner}:t"], [slope] if loop else slope)
    close(found.gradients["w"], slope * 2 * W)
    close(grads(s, no_grad_set=(f"{inner}:t",), unconnected="zeros")["w"], 0 * W)
    with pytest.raises(ProgramError, match="no variable 'u'"):
        grads(s, no_grad_set=(f"{inner}:u",))
