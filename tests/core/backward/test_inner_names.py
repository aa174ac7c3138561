"""Names of variables of inner blocks, ``"1:h"`` with the client's block number, in every field of a query."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.backward.append_backward import Options, append_backward
from core.compiler.compile import GradientQuery, compile_gradient
from core.cost.budget import Budget
from core.ir.errors import ProgramError
from core.wire import read, write
from tests.programs import Sketch, close, grads, step

W, X = np.array([0.5, 0.7]), np.array([1.0, 2.0])


def in_a_net(trips: int = 2) -> Sketch:
    """A loop (block 1) whose body starts with a net (block 2): t = h * w in the net, h = sin(t) in the body."""
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
    """dw, and the gradients of h after each trip. stopped: the variable of a trip that stops the gradient."""
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
def test_a_stop_on_a_variable_shared_by_a_body_and_its_net_stops_the_gradient(name):
    close(grads(in_a_net())["w"], by_hand(None)[0])
    close(grads(in_a_net(), no_grad_set=(name,), unconnected="zeros")["w"], by_hand(name)[0])


@pytest.mark.parametrize("sent_again", [False, True])
@pytest.mark.parametrize("kind", ["block 0", "net", "branch", "loop", "loop in a branch"])
def test_a_stop_of_one_backward_pass_does_not_stop_the_derivative_of_its_gradient(kind, sent_again):
    """u = w * w is stopped, so the gradient of tanh(u) * w is tanh(w * w). Its own derivative does not stop at u."""
    s = Sketch()
    s.param("w", W)
    s.feed("yes", True, "bool")
    s.op("assign", "w", out="h")

    def body() -> None:
        s.op("mul", "h", "w", out="u")
        s.op("mul", s.op("tanh", "u"), "w", out="h")

    if kind == "block 0":
        body()
    elif kind == "loop":
        with s.repeat(1):
            body()
    else:
        with s.block() as block:
            if kind == "loop in a branch":
                with s.repeat(1):
                    body()
            else:
                body()
        if kind == "net":
            s.construct("net", {}, {}, sub_block=block)
        else:
            s.branch("yes", block, None)
    s.total("h")
    number = {"block 0": 0, "loop in a branch": 2}.get(kind, 1)

    options = Options(no_grad_set=(f"{number}:u" if number else "u",))
    backward = append_backward(read(s.document), "loss", options=options)
    program = read(write(backward.program)) if sent_again else backward.program
    query = GradientQuery(targets=tuple(backward.gradients.values()), inputs=("w",))
    found = compile_gradient(program, query, fetch=tuple(backward.gradients.values())).step(s.values)

    close(*found.fetched.values(), np.tanh(W * W))
    close(found.gradients["w"], 2 * W * (1 - np.tanh(W * W) ** 2))


@pytest.mark.parametrize("name", ["1:nothing", "2:h2", "7:h", "1:w9"])
def test_an_unknown_inner_name_is_an_error(name):
    with pytest.raises(ProgramError) as error:
        grads(in_a_net(), no_grad_set=(name,))
    assert error.value.code == "bad_no_grad_set"


def test_hooks_record_gradients_of_inner_variables():
    hook = Hook.read({"match": {"variable": "1:h"}, "do": "record"})
    inside = Hook.read({"match": {"variable": "2:t"}, "do": "record"})

    found = step(in_a_net(), hooks=(hook, inside)).recorded

    close(found["1:h"], by_hand(None)[1])
    h = np.tanh(np.sin(W * W))
    close(found["2:t"][1], (1 - np.tanh(np.sin(h * W)) ** 2) * np.cos(h * W))


@pytest.mark.parametrize("name", ["1:h", "1:u", "2:t", "2:u"])
def test_an_inner_name_does_not_change_when_a_step_determines_feed_sizes(name):
    s = in_a_net()
    s.feed("x", [0.0, 0.0])
    s.blocks[0]["vars"][-1]["shape"] = [-1]
    s.op("add", "loss", s.total("x", out="sum"), out="loss")
    hook = Hook.read({"match": {"variable": name}, "do": "scale", "factor": 3.0})

    wanted, found = (
        compile_gradient(read(s.document), GradientQuery(loss="loss", hooks=(hook,)), shapes=shapes).step(s.values)
        for shapes in (None, {"x": [2]})
    )

    close(found.gradients["w"], wanted.gradients["w"], 0)
    assert not np.allclose(wanted.gradients["w"], by_hand(None)[0])


def test_a_local_name_of_a_net_differs_from_the_same_name_outside():
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
def test_a_variable_of_an_inner_block_may_be_a_checkpoint(name):
    wanted = grads(in_a_net(3))["w"]

    assert grads(in_a_net(3), checkpoints=(name,))["w"].tobytes() == wanted.tobytes()
    answer = append_backward(read(in_a_net(3).document), "loss", options=Options(checkpoints=(name,)))
    loop = next(op for op in write(answer.program)["blocks"][0]["ops"] if op["type"] == "loop")
    assert any(n.split("@")[0] == name[2:] and "@STACK" in n for n in loop["outputs"]["out"])


def test_a_local_name_of_a_net_is_neither_fetched_nor_differentiated_in_place_of_the_outer_one():
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
def test_a_local_name_of_a_net_may_be_written_by_a_nested_net(loop):
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


def with_a_function() -> Sketch:
    """t = w^2 in the program, h = t w in its block 1; loss = sum(f(h)), f(x) = t x with t = x^2 in a block 1 too."""
    f = Sketch()
    f.feed("x", [0.0, 0.0])
    f.op("square", "x", out="t")
    with f.block() as block:
        f.op("scale", "t", out="u", scale=1.0)
        f.op("mul", "u", "x", out="y")
    f.construct("net", {}, {}, sub_block=block)
    s = Sketch()
    s.param("w", W)
    s.op("square", "w", out="t")
    with s.block() as block:
        s.op("scale", "t", out="u", scale=1.0)
        s.op("mul", "u", "w", out="h")
    s.construct("net", {}, {}, sub_block=block)
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": "h"}, {"out": "y"}, function="f")
    s.total("y")
    return s


@pytest.mark.parametrize("name", ["t", "1:u"])
def test_outer_variable_names_do_not_match_variables_inside_functions(name):
    s = with_a_function()
    stopped = 3 * W**6 * W**2  # dh/dw = w^2 if t and u are constants
    doubled = Hook.read({"match": {"variable": name}, "do": "scale", "factor": 2.0})

    close(grads(s)["w"], 9 * W**8)
    close(grads(s, no_grad_set=(name,))["w"], stopped)
    close(grads(s, hooks=(doubled,))["w"], stopped + 2 * 6 * W**8)
    close(grads(s, checkpoints=(name,))["w"], 9 * W**8)


def test_backward_ops_have_the_function_of_their_forward_ops():
    answer = append_backward(read(with_a_function().document), "loss")

    found = {(each.get("forward_function"), each["forward_block"]) for each in answer.as_document()["backward_ops"]}
    assert found >= {("f", 0), ("f", 1), (None, 0), (None, 1)}


def test_a_name_inside_a_function_is_unknown_outside():
    s = with_a_function()
    s.functions["f"]["program"]["blocks"][1]["ops"][1]["inputs"]["x"] = ["v"]
    s.functions["f"]["program"]["blocks"][1]["ops"][0]["outputs"]["out"] = ["v"]

    for query, code in (
        ({"no_grad_set": ("1:v",)}, "bad_no_grad_set"),
        ({"checkpoints": ("1:v",)}, "checkpoint_unknown"),
        ({"hooks": (Hook.read({"match": {"variable": "1:v"}, "do": "record"}),)}, "bad_hook"),
    ):
        with pytest.raises(ProgramError) as error:
            grads(s, **query)
        assert error.value.code == code


def test_loops_of_a_program_and_of_a_function_have_policies_of_their_own():
    def loop(s: Sketch, x: str, out: str) -> None:
        s.op("assign", x, out=out)
        with s.repeat(5):
            s.op("tanh", out, out=out)

    f, s = Sketch(), Sketch()
    f.feed("x", [0.0, 0.0])
    s.param("w", W)
    loop(f, "x", "y")
    loop(s, "w", "h")
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": "h"}, {"out": "y"}, function="f")
    s.total("y")

    answer = append_backward(read(s.document), "loss", options=Options(loop_memory=Budget(10_000, trips=5)))

    assert answer.choice is not None
    loops = [(each.get("function"), each["block"]) for each in answer.choice.as_document()["loops"]]
    assert sorted(loops, key=str) == [("f", 0), (None, 0)]
    document = write(answer.program)
    ops = [block["ops"] for block in document["blocks"]]
    assert [block["ops"] for block in write(read(document))["blocks"]] == ops
    assert {op["made_from"].get("function") for each in ops for op in each if "made_from" in op} == {"f"}
