"""Optimizers as ops: the update of one parameter in one step.

Inputs are the parameter, its gradient and the optimizer's slots. Outputs are the new parameter and the new slots, in
the same order. A slot has the type of the parameter, except `step`, an int64 count of the steps done. All start at
zero.

First ``weight_decay * parameter + l1_decay * sign(parameter)`` is added to the gradient, unless the documentation of an
optimizer defines another decay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from core.ir.attr_groups import AttrGroup
from core.ir.builder import Value
from core.ir.registry import Example, OpSpec, composite
from core.ops.common.ranges import Fraction, Nonzero, NotNegative
from core.ops.elementwise.arithmetic import abs_, sign
from core.ops.elementwise.logic import equal, less_equal, logical_or, not_equal, where
from core.ops.elementwise.math import clip, flat_root, sqrt, square
from core.ops.reduction.statistics import norm
from core.ops.shape.creation import fill_zeros_like, full_like

__all__ = ["STATES", "Penalties", "optimizer"]


@dataclass(frozen=True, slots=True)
class Penalties(AttrGroup):
    """The penalties whose gradient an optimizer adds to that of the loss."""

    weight_decay: float = 0.0
    l1_decay: float = 0.0

    def added(self, parameter, gradient):
        """``gradient + weight_decay * parameter + l1_decay * sign(parameter)``."""
        if self.weight_decay:
            gradient = gradient + parameter * self.weight_decay
        return gradient + sign(parameter) * self.l1_decay if self.l1_decay else gradient


LARS = Penalties(weight_decay=0.0005)


def optimizer(update: Callable[..., Any]) -> OpSpec:
    """Declare an optimizer: a composite of (parameter, gradient, *slots) that returns the new (parameter, *slots).

    An output is named after its input: ``parameter_out`` after ``parameter``.
    """
    inputs = [p.name for p in inspect.signature(update).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    spec: OpSpec = composite(outputs=tuple(f"{name}_out" for name in inputs if name != "gradient"))(update)
    return spec


@optimizer
def sgd(parameter, gradient, *, learning_rate: float = 0.01, penalties: Penalties):
    """``parameter - learning_rate * (gradient + weight_decay * parameter + l1_decay * sign(parameter))``."""
    return parameter - penalties.added(parameter, gradient) * learning_rate


@optimizer
def momentum(
    parameter,
    gradient,
    velocity,
    *,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    nesterov: bool = False,
    penalties: Penalties,
):
    """``velocity = momentum * velocity + gradient``; the parameter moves by ``-learning_rate * velocity``.

    With `nesterov` it moves by ``-learning_rate * (gradient + momentum * velocity)`` (Sutskever et al. 2013).
    """
    gradient = penalties.added(parameter, gradient)
    velocity = velocity * momentum + gradient
    move = gradient + velocity * momentum if nesterov else velocity
    return parameter - move * learning_rate, velocity


@optimizer
def adagrad(
    parameter,
    gradient,
    moment,
    *,
    learning_rate: float = 0.01,
    epsilon: NotNegative = 1e-6,
    penalties: Penalties,
):
    """``moment += gradient ** 2``; the parameter moves by ``-learning_rate * gradient / (sqrt(moment) + epsilon)``.

    Duchi, Hazan and Singer 2011. The root of a moment of 0 has gradient 0.
    """
    gradient = penalties.added(parameter, gradient)
    moment = moment + square(gradient)
    return parameter - gradient * learning_rate / (flat_root(moment) + epsilon), moment


@optimizer
def decayed_adagrad(
    parameter,
    gradient,
    moment,
    *,
    learning_rate: float = 0.01,
    decay: Fraction = 0.95,
    epsilon: NotNegative = 1e-6,
    penalties: Penalties,
):
    """`adagrad` with a running mean: ``moment = decay * moment + (1 - decay) * gradient ** 2``."""
    gradient = penalties.added(parameter, gradient)
    moment = moment * decay + square(gradient) * (1.0 - decay)
    return parameter - gradient * learning_rate / (flat_root(moment) + epsilon), moment


@optimizer
def adadelta(
    parameter,
    gradient,
    gradients,
    moves,
    *,
    learning_rate: float = 1.0,
    rho: Fraction = 0.95,
    epsilon: NotNegative = 1e-6,
    penalties: Penalties,
):
    """``parameter - learning_rate * sqrt(moves + epsilon) / sqrt(gradients + epsilon) * gradient`` (Zeiler 2012).

    `moves` and `gradients` are running means of the squares of the moves and of the gradients.
    """
    gradient = penalties.added(parameter, gradient)
    gradients = gradients * rho + square(gradient) * (1.0 - rho)
    move = gradient * sqrt((moves + epsilon) / (gradients + epsilon))
    moves = moves * rho + square(move) * (1.0 - rho)
    return parameter - move * learning_rate, gradients, moves


@optimizer
def rmsprop(
    parameter,
    gradient,
    mean_square,
    mean,
    velocity,
    *,
    learning_rate: float = 0.01,
    rho: Fraction = 0.95,
    epsilon: NotNegative = 1e-6,
    momentum: float = 0.0,
    centered: bool = False,
    penalties: Penalties,
):
    """``velocity = momentum * velocity + learning_rate * gradient / sqrt(mean_square + epsilon)`` (Hinton 2012).

    The parameter moves by ``-velocity``. With `centered` the square of the running mean is subtracted from mean_square.
    """
    gradient = penalties.added(parameter, gradient)
    mean_square = mean_square * rho + square(gradient) * (1.0 - rho)
    spread = mean_square
    if centered:
        mean = mean * rho + gradient * (1.0 - rho)
        # a variance; rounding may make it negative where gradients hardly change
        spread = clip(mean_square - square(mean), min=0.0)
    velocity = velocity * momentum + gradient * learning_rate / sqrt(spread + epsilon)
    return parameter - velocity, mean_square, mean, velocity


@optimizer
def ftrl(
    parameter, gradient, squares, linear, *, learning_rate: Nonzero = 0.01, l1: NotNegative = 0.0, l2: NotNegative = 0.0
):
    """Follow the regularised leader (McMahan et al. 2013): a parameter becomes 0 where ``|linear| <= l1``.

    The penalty is ``l1 * |parameter| + l2 * parameter ** 2``; the paper has half of its square.

    The learning rate is a divisor, so a constant one must not be 0. In a step whose schedule gives 0 nothing changes.
    The roots of squares of 0 have gradient 0.
    """
    before = parameter, squares, linear
    moves = None
    if isinstance(learning_rate, Value):
        moves = not_equal(learning_rate, fill_zeros_like(learning_rate))
        learning_rate = where(moves, learning_rate, full_like(learning_rate, value=1.0))
    total = squares + square(gradient)
    root = flat_root(total)
    linear = linear + gradient - (root - flat_root(squares)) * parameter / learning_rate
    inside = less_equal(abs_(linear), full_like(linear, value=l1))
    steep = root / learning_rate + 2.0 * l2
    steep = where(inside, full_like(steep, value=1.0), steep)  # 0 before the first gradient that is not
    moved = (sign(linear) * l1 - linear) / steep
    # NaN is not inside, and stays NaN
    after = where(inside, fill_zeros_like(moved), moved), total, linear
    return after if moves is None else tuple(map(partial(where, moves), after, before))


@optimizer
def lars(
    parameter,
    gradient,
    velocity,
    *,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    coefficient: float = 0.001,
    penalties: Penalties = LARS,
    epsilon: NotNegative = 0.0,
):
    """`momentum` whose gradient is multiplied by a rate for each parameter (You et al. 2017).

    ``rate = coefficient * norm(parameter) / (norm(gradient) + weight_decay * norm(parameter) + epsilon)``, or 1 if the
    norm of the parameter or the divisor is 0.
    """
    a, b = norm(parameter), norm(gradient)
    bottom = b + a * penalties.weight_decay + epsilon
    zero, one = fill_zeros_like(a), full_like(a, value=1.0)
    none = logical_or(equal(a, zero), less_equal(bottom, zero))  # false for NaN, which must stay visible
    rate = where(none, one, a * coefficient / where(none, one, bottom))
    velocity = velocity * momentum + penalties.added(parameter, gradient) * rate * learning_rate
    return parameter - velocity, velocity


@composite
def moving_average(average, x, *, decay: Fraction = 0.999):
    """``decay * average + (1 - decay) * x``: an exponential moving average, for example of parameters."""
    return average * decay + x * (1.0 - decay)


def state(shape, seed=0):
    """A parameter, its gradient, a mean of both signs and two means of squares; no value is near 0 or another value."""
    r = np.random.default_rng(seed)
    signs = r.choice([-1.0, 1.0], (3, *shape))
    return *(signs * r.uniform(0.5, 1.5, (3, *shape))), *r.uniform(0.2, 0.5, (2, *shape))


STATES = tuple(map(state, ((2,), (3, 2), (), (0, 2))))
P, G, M, V, A = STATES[0]
Z = np.zeros(2)
DECAY = {"weight_decay": 0.5, "l1_decay": 0.25}


def _penalised(p, g):
    return g + 0.5 * p + 0.25 * np.sign(p)


sgd.example(
    lambda: [
        *(Example((p, g), (p - 0.1 * g,), {"learning_rate": 0.1}) for p, g, *_ in STATES),
        Example((P, G), (P - 0.1 * (G + 0.5 * P),), {"learning_rate": 0.1, "weight_decay": 0.5}),
    ]
)
momentum.example(
    lambda: [
        *(Example((p, g, m), (p - 0.1 * (g + 0.9 * m), g + 0.9 * m), {"learning_rate": 0.1}) for p, g, m, *_ in STATES),
        Example((P, G, Z), (P - 0.1 * _penalised(P, G), _penalised(P, G)), {"learning_rate": 0.1, **DECAY}),
        Example((P, G, Z), (P - 0.1 * 1.9 * G, G), {"learning_rate": 0.1, "nesterov": True}),
    ]
)


def _adagrad(p, g, a):
    return p - 0.01 * g / (np.sqrt(a + g * g) + 1e-6), a + g * g


adagrad.example(
    lambda: [
        *(Example((p, g, a), _adagrad(p, g, a)) for p, g, _, _, a in STATES),
        Example((P, G, A), _adagrad(P, _penalised(P, G), A), DECAY),
    ]
)


def _faded(mean, value, share=0.95):
    return share * mean + (1 - share) * value


def _decayed_adagrad(p, g, a):
    return p - 0.01 * g / (np.sqrt(_faded(a, g * g)) + 1e-6), _faded(a, g * g)


decayed_adagrad.example(
    lambda: [
        *(Example((p, g, a), _decayed_adagrad(p, g, a)) for p, g, _, _, a in STATES),
        Example((P, G, A), _decayed_adagrad(P, _penalised(P, G), A), DECAY),
    ]
)


def _adadelta(p, g, a, v):
    squares = _faded(a, g * g)
    move = g * np.sqrt((v + 1e-6) / (squares + 1e-6))
    return p - 0.5 * move, squares, _faded(v, move * move)


adadelta.example(
    lambda: [
        *(Example((p, g, a, v), _adadelta(p, g, a, v), {"learning_rate": 0.5}) for p, g, _, v, a in STATES),
        Example((P, G, A, V), _adadelta(P, _penalised(P, G), A, V), {"learning_rate": 0.5, **DECAY}),
    ]
)


def _rmsprop(p, g, a, m, v, centered=False):
    squares, mean = _faded(a, g * g), _faded(m, g) if centered else m
    velocity = 0.5 * v + 0.01 * g / np.sqrt(squares - mean * mean * centered + 1e-6)
    return p - velocity, squares, mean, velocity


rmsprop.example(
    lambda: [
        *(Example((p, g, a, m, v), _rmsprop(p, g, a, m, v), {"momentum": 0.5}) for p, g, m, v, a in STATES),
        Example((P, G, A + 1, M / 2, V), _rmsprop(P, G, A + 1, M / 2, V, True), {"momentum": 0.5, "centered": True}),
        Example((P, G, A, M, V), _rmsprop(P, _penalised(P, G), A, M, V), {"momentum": 0.5, **DECAY}),
    ]
)


def _ftrl(p, g, a, m, l1, l2):
    squares = a + g * g
    linear = m + g - (np.sqrt(squares) - np.sqrt(a)) / 0.01 * p
    steep = np.sqrt(squares) / 0.01 + 2 * l2
    return np.where(np.abs(linear) > l1, (np.sign(linear) * l1 - linear) / steep, 0), squares, linear


ftrl.example(
    lambda: [
        *(Example((p, g, a, m), _ftrl(p, g, a, m, 0.1, 0.2), {"l1": 0.1, "l2": 0.2}) for p, g, m, _, a in STATES),
        Example((P, G, A, M), _ftrl(P, G, A, M, 1e3, 0.0), {"l1": 1e3}),
    ]
)


def _lars(p, g, m):
    a, b = np.sqrt((p * p).sum()), np.sqrt((g * g).sum())
    rate = 0.01 * (0.001 * a / (b + 0.0005 * a) if p.size else 1.0)
    velocity = 0.9 * m + rate * (g + 0.0005 * p)
    return p - velocity, velocity


lars.example(lambda: [Example((p, g, m), _lars(p, g, m)) for p, g, m, *_ in STATES])
moving_average.example(lambda: [Example((p, g), (0.9 * p + 0.1 * g,), {"decay": 0.9}) for p, g, *_ in STATES])
