"""Optimizers against loops written after the algorithms of their publications, on gradients that change sign."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import Optimizer, compile_update
from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder

FIRST = np.array([1.0, -2.0, 0.5, 3.0])
STEPS = 40
RNG = np.random.default_rng(0)
GRADIENTS = RNG.choice([-1.0, 1.0], (STEPS, 4)) * RNG.uniform(0.1, 2.0, (STEPS, 4))

Steps = Iterator[np.ndarray]


def adamax(rate: float, b1: float, b2: float) -> Steps:
    """Kingma and Ba 2015, algorithm 2."""
    w, m, u = FIRST, np.zeros(4), np.zeros(4)
    for t, g in enumerate(GRADIENTS, 1):
        m = b1 * m + (1 - b1) * g
        u = np.maximum(b2 * u, np.abs(g))
        w = w - rate / (1 - b1**t) * m / u
        yield w


def nadam(rate: float, b1: float, b2: float) -> Steps:
    """Dozat 2016, algorithm 2, with the same mu in each step."""
    w, m, n = FIRST, np.zeros(4), np.zeros(4)
    for t, g in enumerate(GRADIENTS, 1):
        g_hat = g / (1 - np.prod([b1] * t))
        m = b1 * m + (1 - b1) * g
        m_hat = m / (1 - np.prod([b1] * (t + 1)))
        n = b2 * n + (1 - b2) * g**2
        n_hat = n / (1 - b2**t)
        w = w - rate * ((1 - b1) * g_hat + b1 * m_hat) / np.sqrt(n_hat)
        yield w


def radam(rate: float, b1: float, b2: float) -> Steps:
    """Liu et al. 2020, algorithm 2, with the threshold 5 of its authors' program, where the paper has 4."""
    w, m, v = FIRST, np.zeros(4), np.zeros(4)
    most = 2 / (1 - b2) - 1
    for t, g in enumerate(GRADIENTS, 1):
        v = b2 * v + (1 - b2) * g**2
        m = b1 * m + (1 - b1) * g
        m_hat = m / (1 - b1**t)
        length = most - 2 * t * b2**t / (1 - b2**t)
        if length > 5:
            rectified = np.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))
            w = w - rate * rectified * m_hat * np.sqrt((1 - b2**t) / v)
        else:
            w = w - rate * m_hat
        yield w


def amsgrad(rate: float, b1: float, b2: float) -> Steps:
    """Reddi, Kale and Kumar 2018, algorithm 2, with the corrections of Adam's means."""
    w, m, v, most = FIRST, np.zeros(4), np.zeros(4), np.zeros(4)
    for t, g in enumerate(GRADIENTS, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        most = np.maximum(most, v)
        w = w - rate * m / (1 - b1**t) / np.sqrt(most / (1 - b2**t))
        yield w


def adadelta(rate: float, rho: float, epsilon: float) -> Steps:
    """Zeiler 2012, algorithm 1."""
    w, squares, moves = FIRST, np.zeros(4), np.zeros(4)
    for g in GRADIENTS:
        squares = rho * squares + (1 - rho) * g**2
        move = -np.sqrt(moves + epsilon) / np.sqrt(squares + epsilon) * g
        moves = rho * moves + (1 - rho) * move**2
        w = w + rate * move
        yield w


def ftrl(rate: float, l1: float, l2: float) -> Steps:
    """McMahan et al. 2013, algorithm 1, with beta = 0; its lambda_2 halves the square of a parameter."""
    w, z, n = FIRST, np.zeros(4), np.zeros(4)
    for g in GRADIENTS:
        sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / rate
        z = z + g - sigma * w
        n = n + g**2
        w = np.where(np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / (np.sqrt(n) / rate + 2 * l2))
        yield w


def lamb(rate: float, b1: float, b2: float, decay: float) -> Steps:
    """You et al. 2020, algorithm 2, with the identity as phi."""
    w, m, v = FIRST, np.zeros(4), np.zeros(4)
    for t, g in enumerate(GRADIENTS, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        r = m / (1 - b1**t) / np.sqrt(v / (1 - b2**t))
        whole = r + decay * w
        w = w - rate * np.linalg.norm(w) / np.linalg.norm(whole) * whole
        yield w


MEANS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 0.0}


@pytest.mark.parametrize(
    ("kind", "attrs", "wanted"),
    [
        ("adamax", MEANS, lambda rate: adamax(rate, 0.8, 0.95)),
        ("nadam", MEANS, lambda rate: nadam(rate, 0.8, 0.95)),
        ("radam", MEANS, lambda rate: radam(rate, 0.8, 0.95)),
        ("radam", {**MEANS, "beta2": 0.6}, lambda rate: radam(rate, 0.8, 0.6)),
        ("amsgrad", MEANS, lambda rate: amsgrad(rate, 0.8, 0.95)),
        ("adadelta", {"rho": 0.9, "epsilon": 1e-3}, lambda rate: adadelta(rate, 0.9, 1e-3)),
        ("ftrl", {"l1": 0.7, "l2": 0.3}, lambda rate: ftrl(rate, 0.7, 0.3)),
        ("lamb", {**MEANS, "weight_decay": 0.1}, lambda rate: lamb(rate, 0.8, 0.95, 0.1)),
    ],
    ids=["adamax", "nadam", "radam", "radam without rectification", "amsgrad", "adadelta", "ftrl", "lamb"],
)
def test_forty_steps_equal_those_of_the_published_algorithm(
    kind: str, attrs: dict[str, Any], wanted: Callable[..., Steps]
):
    b = BlockBuilder()
    w = Variable("w", TensorType((4,), "float64"), "parameter")
    program = Program(b.build([b.param(w.type, "w")]), (w,))
    update = compile_update(program, ["w"], Optimizer(kind, {"learning_rate": 0.05, **attrs}))
    value, state = FIRST, update.executable.initial_state()

    for gradient, expected in zip(GRADIENTS, wanted(0.05), strict=True):
        out = update.step({"w": value}, {"w": gradient}, state)
        value, state = out.parameters["w"], state | out.optimizer_state

        np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-13)
