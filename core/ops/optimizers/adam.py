"""Adam and the optimizers derived from it.

For the inputs and outputs of all optimizers see updates.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.ir.attr_groups import AttrGroup
from core.ir.registry import Example
from core.ops.common.ranges import Fraction, NotNegative
from core.ops.elementwise.arithmetic import abs_, cast, increment, maximum, pow_
from core.ops.elementwise.logic import equal, greater_than, logical_or, where
from core.ops.elementwise.math import flat_root, sqrt, square
from core.ops.optimizers.updates import STATES, Penalties, optimizer
from core.ops.reduction.statistics import norm
from core.ops.shape.creation import fill_zeros_like, full_like

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Moments(AttrGroup):
    """The decay rates of Adam's running means, and the number added to its divisor."""

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: NotNegative = 1e-8


LAMB = Moments(epsilon=1e-6)


def _left(beta: float, count):
    """``1 - beta ** count``; count is a float64, since a 16-bit float would round 0.999 to 1, and the result to 0."""
    return 1.0 - pow_(full_like(count, value=beta), count)


def _corrected(mean, beta: float, count):
    """``mean / (1 - beta ** count)``, as a product: divisions of all elements would take most of the time of a step."""
    return mean * cast(1.0 / _left(beta, count), dtype=mean.dtype)


def _means(gradient, first, second, step, moments):
    """The new running means of the gradient and its square, the new step, and the new step as a float64."""
    step = increment(step)
    beta1, beta2 = moments.beta1, moments.beta2
    first = first * beta1 + gradient * (1.0 - beta1)
    second = second * beta2 + square(gradient) * (1.0 - beta2)
    return first, second, step, cast(step, dtype="float64")


def _adam(gradient, first, second, step, moments):
    """Adam's move before the learning rate multiplies it, then the new slots."""
    first, second, step, count = _means(gradient, first, second, step, moments)
    mean, mean_square = _corrected(first, moments.beta1, count), _corrected(second, moments.beta2, count)
    return mean / (flat_root(mean_square) + moments.epsilon), first, second, step


@optimizer
def adam(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.001,
    moments: Moments,
    penalties: Penalties,
):
    """``parameter - learning_rate * mean / (sqrt(mean_square) + epsilon)`` (Kingma and Ba 2015).

    mean and mean_square are running means of the gradient and its square, corrected for their start at zero. The root
    of a mean_square of 0 has gradient 0.
    """
    gradient = penalties.added(parameter, gradient)
    move, *slots = _adam(gradient, first, second, step, moments)
    return parameter - move * learning_rate, *slots


@optimizer
def adamw(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.001,
    moments: Moments,
    weight_decay: float = 0.01,
):
    """`adam` with decoupled weight decay (Loshchilov and Hutter 2019).

    Before Adam's move the parameter is multiplied by ``1 - learning_rate * weight_decay``; the gradient stays as it is.
    """
    move, *slots = _adam(gradient, first, second, step, moments)
    return parameter * (1.0 - learning_rate * weight_decay) - move * learning_rate, *slots


@optimizer
def amsgrad(
    parameter,
    gradient,
    first,
    second,
    largest,
    step,
    *,
    learning_rate: float = 0.001,
    moments: Moments,
    penalties: Penalties,
):
    """`adam` with ``largest = max(largest, second)`` instead of the mean square (Reddi, Kale and Kumar 2018).

    The maximum is that of the running means before their correction, as in PyTorch's Adam with `amsgrad`.
    """
    gradient = penalties.added(parameter, gradient)
    first, second, step, count = _means(gradient, first, second, step, moments)
    largest = maximum(largest, second)
    mean, mean_square = _corrected(first, moments.beta1, count), _corrected(largest, moments.beta2, count)
    move = mean / (flat_root(mean_square) + moments.epsilon)
    return parameter - move * learning_rate, first, second, largest, step


@optimizer
def adamax(
    parameter,
    gradient,
    first,
    largest,
    step,
    *,
    learning_rate: float = 0.001,
    moments: Moments,
    penalties: Penalties,
):
    """`adam` with ``largest = max(beta2 * largest + epsilon, |gradient|)`` instead of the root of the mean square.

    Kingma and Ba 2015.
    """
    gradient = penalties.added(parameter, gradient)
    step = increment(step)
    first = first * moments.beta1 + gradient * (1.0 - moments.beta1)
    largest = maximum(abs_(gradient), largest * moments.beta2 + moments.epsilon)
    mean = _corrected(first, moments.beta1, cast(step, dtype="float64"))
    return parameter - mean * learning_rate / largest, first, largest, step


@optimizer
def nadam(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.002,
    moments: Moments,
    penalties: Penalties,
):
    """`adam` with Nesterov momentum (Dozat 2016, with a constant beta1).

    The mean in step n is ``beta1 * first / (1 - beta1 ** (n + 1)) + (1 - beta1) * gradient / (1 - beta1 ** n)``.
    """
    gradient = penalties.added(parameter, gradient)
    first, second, step, count = _means(gradient, first, second, step, moments)
    mean = _corrected(first * moments.beta1, moments.beta1, count + 1.0)
    mean = mean + _corrected(gradient * (1.0 - moments.beta1), moments.beta1, count)
    root = flat_root(_corrected(second, moments.beta2, count))
    return parameter - mean * learning_rate / (root + moments.epsilon), first, second, step


@optimizer
def radam(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.001,
    moments: Moments,
    penalties: Penalties,
):
    """`adam` that moves by the mean alone in the first steps, in which the variance of the mean square is large.

    With ``top = 2 / (1 - beta2) - 1`` and ``r = top - 2 n beta2 ** n / (1 - beta2 ** n)`` in step n, Adam's move is
    multiplied by ``sqrt((r - 4) (r - 2) top / ((top - 4) (top - 2) r))`` if ``r > 5`` (Liu et al. 2020, where it is 4;
    5 is that of the authors' program and of PyTorch).
    """
    gradient = penalties.added(parameter, gradient)
    first, second, step, count = _means(gradient, first, second, step, moments)
    mean = _corrected(first, moments.beta1, count)
    top = 2.0 / (1.0 - moments.beta2) - 1.0
    move = mean
    if top > 5.0:  # r is never above top
        left = _left(moments.beta2, count)
        r = top - count * (1.0 - left) * 2.0 / left
        enough = greater_than(r, full_like(r, value=5.0))
        r = where(enough, r, full_like(r, value=6.0))
        rectified = sqrt((r - 4.0) * (r - 2.0) * (top / ((top - 4.0) * (top - 2.0))) / r)
        square = _corrected(second, moments.beta2, count)
        root = flat_root(square)
        move = where(enough, mean * cast(rectified, dtype=parameter.dtype) / (root + moments.epsilon), mean)
    return parameter - move * learning_rate, first, second, step


def _trust(parameter, move):
    """``norm(parameter) / norm(move)``; 1 if one of them is 0."""
    a, b = norm(parameter), norm(move)
    zero, one = fill_zeros_like(a), full_like(a, value=1.0)
    none = logical_or(equal(a, zero), equal(b, zero))  # false for NaN, which must stay visible
    return where(none, one, a / where(none, one, b))


@optimizer
def lamb(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.001,
    moments: Moments = LAMB,
    weight_decay: float = 0.01,
):
    """``parameter - learning_rate * norm(parameter) / norm(move) * move`` (You et al. 2020).

    ``move`` is the move of `adam` plus ``weight_decay * parameter``.
    """
    move, *slots = _adam(gradient, first, second, step, moments)
    move = move + parameter * weight_decay
    return parameter - move * _trust(parameter, move) * learning_rate, *slots


P, G, M, _, V = STATES[0]
Z, THREE = np.zeros(2), np.array(3)


def _first_adam_step(p, g, shrink=1.0, lr=0.001):
    # after one step the corrected means equal the gradient and its square
    return p * shrink - lr * g / (np.abs(g) + 1e-8), 0.1 * g, 0.001 * g * g, np.array(1)


def _moved(g, m, v):
    return 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g


def _fourth_adam_step(p, g, m, v, shrink=1.0):
    m, v = _moved(g, m, v)
    return p * shrink - 0.001 * (m / (1 - 0.9**4)) / (np.sqrt(v / (1 - 0.999**4)) + 1e-8), m, v, np.array(4)


def _fourth_steps(function):
    """Examples in all shapes: `function` of a parameter, its gradient and the means after three steps."""
    return [Example((p, g, m, v, THREE), function(p, g, m, v)) for p, g, m, _, v in STATES]


adam.example(
    lambda: [
        Example((P, G, Z, Z, np.array(0)), _first_adam_step(P, G), smooth=False),
        *_fourth_steps(_fourth_adam_step),
    ]
)
adamw.example(
    lambda: [
        Example((P, G, Z, Z, np.array(0)), _first_adam_step(P, G, 1 - 1e-5), smooth=False),
        *_fourth_steps(lambda p, g, m, v: _fourth_adam_step(p, g, m, v, 1 - 1e-5)),
    ]
)


def _amsgrad(p, g, m, v, most):
    m, v = _moved(g, m, v)
    most = np.maximum(most, v)
    return p - 0.001 * (m / (1 - 0.9**4)) / (np.sqrt(most / (1 - 0.999**4)) + 1e-8), m, v, most, np.array(4)


amsgrad.example(
    lambda: [
        Example((p, g, m, v, factor * v, THREE), _amsgrad(p, g, m, v, factor * v))
        for p, g, m, _, v in STATES
        for factor in (0.5, 3.0)
    ]
)


def _adamax(p, g, m, v):
    first, largest = 0.9 * m + 0.1 * g, np.maximum(np.abs(g), 0.999 * v + 1e-8)
    return p - 0.001 / (1 - 0.9**4) * first / largest, first, largest, np.array(4)


adamax.example(lambda: _fourth_steps(_adamax))


def _lamb(p, g, m, v):
    m, v = _moved(g, m, v)
    move = (m / (1 - 0.9**4)) / (np.sqrt(v / (1 - 0.999**4)) + 1e-6) + 0.01 * p
    trust = np.sqrt((p * p).sum()) / np.sqrt((move * move).sum()) if p.size else 1.0
    return p - 0.001 * trust * move, m, v, np.array(4)


lamb.example(lambda: _fourth_steps(_lamb))


def _nadam(p, g, m, v):
    m, v = _moved(g, m, v)
    mean = 0.9 * m / (1 - 0.9**5) + 0.1 * g / (1 - 0.9**4)
    return p - 0.002 * mean / (np.sqrt(v / (1 - 0.999**4)) + 1e-8), m, v, np.array(4)


nadam.example(lambda: _fourth_steps(_nadam))


def _radam(p, g, m, v, n):
    m, v = _moved(g, m, v)
    r = 1999 - 2 * n * 0.999**n / (1 - 0.999**n)
    move = m / (1 - 0.9**n)
    if r > 5:
        move = move * np.sqrt((r - 4) * (r - 2) * 1999 / (1995 * 1997 * r)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)
    return p - 0.001 * move, m, v, np.array(n)


radam.example(
    lambda: [
        *(Example((P, G, M, V, np.array(n - 1)), _radam(P, G, M, V, n)) for n in (2, 5, 6, 500)),
        *_fourth_steps(lambda p, g, m, v: _radam(p, g, m, v, 4)),
    ]
)
