"""Examples of DyNet, PyTorch, Chainer and Autograd from surveys, with the code of each system.

A few lines above each example define the names of that system.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy import ones

import backpass_client as bp
from backpass_client import Expression, Variable

random = np.random.default_rng(0)


def types_of(tape: bp.Tape) -> list[str]:
    return [op["type"] for op in tape.program()["blocks"][0]["ops"]]


# --- the tape itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["immediate", "lazy"])
def test_a_feedforward_model_is_recorded_and_played_back(url: str, mode: Any) -> None:
    randn, matmul = random.standard_normal, bp.matmul

    def softmax(pred: Any, label: Any) -> Any:
        return bp.softmax_with_cross_entropy(pred, label, axis=0)

    with bp.Tape(url, mode) as tape:
        x = Variable(randn((20, 1)))
        label = Variable([7], requires_grad=False)
        W_1, W_2 = Variable(randn((20, 20)) / 5), Variable(randn((10, 20)) / 5)
        h = matmul(W_1, x)
        pred = matmul(W_2, h)
        loss = softmax(pred, label)
        played = loss.backward()

        assert types_of(tape) == ["matmul", "matmul", "softmax_with_cross_entropy"]
        assert played.played == [2, 1, 0]
        assert played.final == [(W_2, 1), (W_1, 0), (x, 0)]

    d_pred = np.exp(W_2.data @ W_1.data @ x.data)
    d_pred /= d_pred.sum()
    d_pred[7] -= 1
    np.testing.assert_allclose(W_2.grad, d_pred @ (W_1.data @ x.data).T, atol=1e-12)
    np.testing.assert_allclose(W_1.grad, W_2.data.T @ d_pred @ x.data.T, atol=1e-12)


@pytest.mark.parametrize("mode", ["immediate", "lazy"])
def test_big_net_is_never_played_back(url: str, mode: Any) -> None:
    def BigNet(data: Any) -> Any:
        for _ in range(50):
            data = bp.tanh(data @ big)
        return data

    def SmallNet(data: Any) -> Any:
        return (data @ small).sum()

    with bp.Tape(url, mode):
        big, small = Variable(random.standard_normal((8, 8))), Variable(random.standard_normal((8, 1)))
        data = Variable(random.standard_normal((4, 8)), requires_grad=False)

        result = BigNet(data)
        loss = SmallNet(data)
        played = loss.backward()

        places = range(100)
        assert result.place == 99
        assert not set(played.played) & set(places)
        assert len(played.played) == 2
        assert played.ran == ([] if mode == "immediate" else [100, 101])  # a lazy tape does not run BigNet at all
        assert (big.grad, played.missing) == (None, [(big, "not_on_path_to_loss")])
        np.testing.assert_allclose(small.grad, data.data.sum(0, keepdims=True).T)


# --- DyNet ---------------------------------------------------------------------------------------------------------


class dynet_model:
    """Parameters that outlive a tape."""

    def __init__(self) -> None:
        self.parameters: list[Variable] = []

    def add_parameters(self, shape: Any) -> Variable:
        self.parameters.append(Variable(random.standard_normal(shape).astype("float32") / 10))
        return self.parameters[-1]

    add_lookup_parameters = add_parameters


def test_the_dynet_example_trains(url: str) -> None:
    num_epochs = 6
    training_data = [((3, 1999), 4), ((17, 3), 11), ((5, 5), 0)]
    with bp.lazy(url) as tape:
        dy = SimpleNamespace(
            model=dynet_model,
            renew_cg=tape.renew,
            parameter=lambda p: p,
            concatenate=lambda parts: bp.concat(parts, axis=0),
            softmax=lambda x: bp.softmax(x, axis=0),
            pickneglogsoftmax=lambda x, label: bp.nll_loss(bp.log_softmax(x, axis=0), np.array(label)),
        )
        losses, compiled = [], []

        model = dy.model()
        W_p = model.add_parameters((20, 100))
        b_p = model.add_parameters(20)
        E = model.add_lookup_parameters((2000, 50))
        trainer = bp.SGD(model.parameters, learning_rate=2.0)
        for _epoch in range(num_epochs):
            for in_words, out_label in training_data:
                dy.renew_cg()  # init tape
                W = dy.parameter(W_p)
                b = dy.parameter(b_p)
                score_sym = dy.softmax(W @ dy.concatenate([E[in_words[0]], E[in_words[1]]]) + b)
                loss_sym = dy.pickneglogsoftmax(score_sym, out_label)
                assert tape.view()["ops"] == (0 if not losses else 8)  # no op of this iteration has been sent yet
                loss_val = loss_sym.value
                played = loss_sym.backward()

                touched = np.flatnonzero(np.abs(E.grad).sum(1))
                assert set(touched) == set(in_words)
                losses.append(float(loss_val))
                compiled.append(played.compiled)
                trainer.update()
                trainer.zero_grads()

        assert sum(losses[-3:]) < sum(losses[:3]) - 0.2
        assert compiled == [True] + [False] * 17  # one structure for all words
        assert played.ran == []  # reading the loss ran every op already


# --- PyTorch -------------------------------------------------------------------------------------------------------


def test_the_pytorch_example_gives_its_gradients(url: str) -> None:
    with bp.immediate(url) as tape:
        x = Variable(ones((5, 5)))
        y = Variable(ones((5, 5)) * 4)
        z = x**2 + x * 2 + x * y + y
        assert z.data.tolist() == [[11.0] * 5] * 5  # computed at once
        with pytest.raises(bp.Refused, match="must have one element"):
            z.backward()
        z.backward(ones((5, 5)))

        assert x.grad.tolist() == [[8.0] * 5] * 5
        assert y.grad.tolist() == [[2.0] * 5] * 5
        z.backward(ones((5, 5)))
        assert x.grad.tolist() == [[16.0] * 5] * 5  # gradients add up

        # when a portion of the graph becomes dead, it is freed
        assert tape.view()["ops"] == 6
        del z
        gc.collect()  # the exception above refers to frames that refer to z
        w = x * 2
        w = x * 3
        assert tape.view()["ops"] <= 2
        assert w.data[0, 0] == 3


# --- Chainer -------------------------------------------------------------------------------------------------------


class Linear:
    """y = x W + b."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.W = Variable(random.standard_normal((inputs, outputs)) / inputs**0.5)
        self.b = Variable(np.zeros(outputs))

    def __call__(self, x: Expression) -> Expression:
        return x @ self.W + self.b


class FunctionSet(SimpleNamespace):
    @property
    def parameters(self) -> list[Variable]:
        return [v for layer in vars(self).values() for v in (layer.W, layer.b)]


def test_the_chainer_example_trains(url: str) -> None:
    F = SimpleNamespace(
        Linear=Linear,
        relu=bp.relu,
        softmax_cross_entropy=lambda y, t: bp.softmax_with_cross_entropy(y, t, reduction="mean"),
    )
    digits = random.integers(0, 10, 64)
    pixels = random.standard_normal((10, 784))[digits] + random.standard_normal((64, 784)) / 4
    N, b_size, n_epoch = 64, 32, 4

    with bp.immediate(url) as tape:
        # (1) Function Set definition, creates FunctionNode
        model = FunctionSet(
            l1=F.Linear(784, 100),
            l2=F.Linear(100, 100),
            l3=F.Linear(100, 10),
        )

        # (2) Optimizer Setup
        opt = bp.SGD(model.parameters, learning_rate=0.1)

        # (3) Forward computation
        def forward(x: Any, t: Any) -> Any:
            h1 = F.relu(model.l1(x))
            h2 = F.relu(model.l2(h1))
            y = model.l3(h2)
            return F.softmax_cross_entropy(y, t)

        # (4) Training loop
        losses, sizes = [], []
        for _epoch in range(n_epoch):
            for i in range(0, N, b_size):
                x = Variable(pixels[i : i + b_size], requires_grad=False)
                t = Variable(digits[i : i + b_size], requires_grad=False)
                opt.zero_grads()
                loss = forward(x, t)
                loss.backward()
                opt.update()
                losses.append(loss.item())
                sizes.append(tape.view()["ops"])

    assert losses[-1] < 0.2 * losses[0]
    assert max(sizes) <= 18  # two iterations; older ones are released


# --- Autograd ------------------------------------------------------------------------------------------------------


def make_grad(fun: Callable[..., Any], x: Any) -> tuple[Any, Any]:
    """(gradient of `fun` at x, value)."""
    end_value, outgrad = bp.value_and_grad(fun)(x)
    return outgrad, end_value


def test_the_autograd_example_gives_higher_derivatives(url: str) -> None:
    grad, exp = bp.grad, bp.exp

    def tanh(x: Any) -> Any:
        y = exp(-2.0 * x)
        return (1.0 - y) / (1.0 + y)

    with bp.Tape(url):
        outgrad, end_value = make_grad(tanh, 1.0)
        np.testing.assert_allclose([outgrad, end_value], [1 - np.tanh(1) ** 2, np.tanh(1)], rtol=1e-12)

        derivatives, d = [], tanh
        for _ in range(4):
            d = grad(d)
            derivatives.append(float(d(0.5)))

    t = np.tanh(0.5)
    s = 1 - t * t
    expected = [s, -2 * t * s, s * (4 * t * t - 2 * s), s * (16 * s * t - 8 * t**3)]
    np.testing.assert_allclose(derivatives, expected, rtol=1e-9)
