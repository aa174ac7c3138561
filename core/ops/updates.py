"""Optimisers, as ops: what a step does to one parameter, written in other ops.

Inputs are the parameter, its gradient, and the slots that the optimiser keeps; outputs are their new values, in the
same order. A slot has the type of the parameter, `step` is an int64 count of the steps done. All start at zero.

`weight_decay` times the parameter and `l1_decay` times its sign are added to the gradient before anything else, where
an optimiser does not say that it decays in another way.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from core.build import Value
from core.errors import ProgramError
from core.ops.logic import kept_where
from core.registry import Example, composite, lookup

__all__ = ["check_share", "decayed"]


def check_share(**values: float) -> None:
    """Raises ProgramError (bad_attr) for what does not lie within 0 and 1, 1 excluded."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ProgramError(f"{name} must be at least 0 and below 1, not {value}", "bad_attr")


def decayed(parameter, gradient, weight_decay, l1_decay):
    """The gradient, with that of both penalties."""
    if weight_decay:
        gradient = gradient + parameter * weight_decay
    return gradient + lookup("sign")(parameter) * l1_decay if l1_decay else gradient


@composite(outputs=("parameter_out",))
def sgd(parameter, gradient, *, learning_rate: float = 0.01, weight_decay: float = 0.0, l1_decay: float = 0.0):
    """``parameter - learning_rate * (gradient + weight_decay * parameter + l1_decay * sign(parameter))``."""
    return parameter - decayed(parameter, gradient, weight_decay, l1_decay) * learning_rate


@composite(outputs=("parameter_out", "velocity_out"))
def momentum(
    parameter,
    gradient,
    velocity,
    *,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    l1_decay: float = 0.0,
):
    """``velocity = momentum * velocity + gradient``; the parameter moves by ``-learning_rate * velocity``.

    With `nesterov` it moves by ``-learning_rate * (gradient + momentum * velocity)`` (Sutskever et al. 2013).
    """
    gradient = decayed(parameter, gradient, weight_decay, l1_decay)
    velocity = velocity * momentum + gradient
    move = gradient + velocity * momentum if nesterov else velocity
    return parameter - move * learning_rate, velocity


@composite(outputs=("parameter_out", "moment_out"))
def adagrad(
    parameter,
    gradient,
    moment,
    *,
    learning_rate: float = 0.01,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    l1_decay: float = 0.0,
):
    """``moment += gradient ** 2``; the parameter moves by ``-learning_rate * gradient / (sqrt(moment) + epsilon)``.

    Duchi, Hazan and Singer 2011.
    """
    gradient = decayed(parameter, gradient, weight_decay, l1_decay)
    moment = moment + lookup("square")(gradient)
    return parameter - gradient * learning_rate / (lookup("sqrt")(moment) + epsilon), moment


@composite(outputs=("parameter_out", "moment_out"))
def decayed_adagrad(
    parameter,
    gradient,
    moment,
    *,
    learning_rate: float = 0.01,
    decay: float = 0.95,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    l1_decay: float = 0.0,
):
    """`adagrad` with a running mean: ``moment = decay * moment + (1 - decay) * gradient ** 2``."""
    check_share(decay=decay)
    gradient = decayed(parameter, gradient, weight_decay, l1_decay)
    moment = moment * decay + lookup("square")(gradient) * (1.0 - decay)
    return parameter - gradient * learning_rate / (lookup("sqrt")(moment) + epsilon), moment


@composite(outputs=("parameter_out", "gradients_out", "moves_out"))
def adadelta(
    parameter,
    gradient,
    gradients,
    moves,
    *,
    learning_rate: float = 1.0,
    rho: float = 0.95,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    l1_decay: float = 0.0,
):
    """``move = sqrt(moves + epsilon) / sqrt(gradients + epsilon) * gradient``, from running means (Zeiler 2012)."""
    check_share(rho=rho)
    gradient = decayed(parameter, gradient, weight_decay, l1_decay)
    gradients = gradients * rho + lookup("square")(gradient) * (1.0 - rho)
    move = gradient * lookup("sqrt")((moves + epsilon) / (gradients + epsilon))
    moves = moves * rho + lookup("square")(move) * (1.0 - rho)
    return parameter - move * learning_rate, gradients, moves


@composite(outputs=("parameter_out", "mean_square_out", "mean_out", "velocity_out"))
def rmsprop(
    parameter,
    gradient,
    mean_square,
    mean,
    velocity,
    *,
    learning_rate: float = 0.01,
    rho: float = 0.95,
    epsilon: float = 1e-6,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
    l1_decay: float = 0.0,
):
    """``velocity = momentum * velocity + learning_rate * gradient / sqrt(mean_square + epsilon)`` (Hinton 2012).

    With `centered` the square of the running mean is taken off the running mean square.
    """
    check_share(rho=rho)
    gradient = decayed(parameter, gradient, weight_decay, l1_decay)
    mean_square = mean_square * rho + lookup("square")(gradient) * (1.0 - rho)
    spread = mean_square
    if centered:
        mean = mean * rho + gradient * (1.0 - rho)
        # a variance, but for rounding, which may leave it below 0 where gradients hardly change
        spread = lookup("clip")(mean_square - lookup("square")(mean), min=0.0)
    velocity = velocity * momentum + gradient * learning_rate / lookup("sqrt")(spread + epsilon)
    return parameter - velocity, mean_square, mean, velocity


@composite(outputs=("parameter_out", "squares_out", "linear_out"))
def ftrl(parameter, gradient, squares, linear, *, learning_rate: float = 0.01, l1: float = 0.0, l2: float = 0.0):
    """Follow the regularised leader (McMahan et al. 2013), which sets a parameter to 0 where ``|linear| <= l1``.

    The learning rate divides, so a constant one must not be 0. Where a schedule says 0, nothing changes in that step.
    """
    before = parameter, squares, linear
    moves = None
    if isinstance(learning_rate, Value):
        moves = lookup("not_equal")(learning_rate, lookup("fill_zeros_like")(learning_rate))
        learning_rate = lookup("where")(moves, learning_rate, lookup("full_like")(learning_rate, value=1.0))
    elif learning_rate == 0:
        raise ProgramError("ftrl needs a learning_rate other than 0", "bad_attr")
    root = lookup("sqrt")
    total = squares + lookup("square")(gradient)
    # the root of 0 has no gradient to speak of, and needs none
    linear = linear + gradient - (root(total) - root(squares)) * parameter / learning_rate
    steep = root(total) / learning_rate + 2.0 * l2
    outside = lookup("greater_than")(lookup("abs")(linear), lookup("full_like")(linear, value=l1))
    moved = (lookup("sign")(linear) * l1 - linear) / steep
    after = kept_where(outside, moved), total, linear
    return after if moves is None else tuple(map(partial(lookup("where"), moves), after, before))


@composite(outputs=("parameter_out", "velocity_out"))
def lars(
    parameter,
    gradient,
    velocity,
    *,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    coefficient: float = 0.001,
    weight_decay: float = 0.0005,
    l1_decay: float = 0.0,
    epsilon: float = 0.0,
):
    """`momentum` with a rate of ``coefficient * norm(parameter) / norm(gradient)`` a parameter (You et al. 2017)."""
    a, b = lookup("norm")(parameter), lookup("norm")(gradient)
    bottom = b + a * weight_decay + epsilon
    zero, one = lookup("fill_zeros_like")(a), lookup("full_like")(a, value=1.0)
    some = lookup("logical_and")(lookup("greater_than")(a, zero), lookup("greater_than")(bottom, zero))
    rate = lookup("where")(some, a * coefficient / lookup("where")(some, bottom, one), one)
    velocity = velocity * momentum + decayed(parameter, gradient, weight_decay, l1_decay) * rate * learning_rate
    return parameter - velocity, velocity


@composite
def moving_average(average, x, *, decay: float = 0.999):
    """``decay * average + (1 - decay) * x``: an exponential moving average, of parameters for example."""
    check_share(decay=decay)
    return average * decay + x * (1.0 - decay)


P, G = np.array([1.0, -2.0]), np.array([0.5, 0.25])
Z = np.zeros(2)
M, V = np.array([0.2, -0.1]), np.array([0.3, 0.4])
D = G + 0.5 * P + 0.25 * np.sign(P)
DECAY = {"weight_decay": 0.5, "l1_decay": 0.25}
sgd.example(
    lambda: [
        Example((P, G), (P - 0.1 * G,), {"learning_rate": 0.1}),
        Example((P, G), (P - 0.1 * (G + 0.5 * P),), {"learning_rate": 0.1, "weight_decay": 0.5}),
    ]
)
momentum.example(
    lambda: [
        Example((P, G, G), (P - 0.1 * 1.9 * G, 1.9 * G), {"learning_rate": 0.1}),
        Example((P, G, Z), (P - 0.1 * D, D), {"learning_rate": 0.1, **DECAY}),
        Example((P, G, Z), (P - 0.1 * 1.9 * G, G), {"learning_rate": 0.1, "nesterov": True}),
    ]
)


A = np.array([0.2, 0.3])


def _adagrad(g):
    return P - 0.01 * g / (np.sqrt(A + g * g) + 1e-6), A + g * g


adagrad.example(lambda: [Example((P, G, A), _adagrad(G)), Example((P, G, A), _adagrad(D), DECAY)])


def _faded(mean, value, share=0.95):
    return share * mean + (1 - share) * value


def _decayed_adagrad(g):
    return P - 0.01 * g / (np.sqrt(_faded(A, g * g)) + 1e-6), _faded(A, g * g)


decayed_adagrad.example(
    lambda: [Example((P, G, A), _decayed_adagrad(G)), Example((P, G, A), _decayed_adagrad(D), DECAY)]
)


def _adadelta(g):
    squares = _faded(A, g * g)
    move = g * np.sqrt((V + 1e-6) / (squares + 1e-6))
    return P - 0.5 * move, squares, _faded(V, move * move)


adadelta.example(
    lambda: [
        Example((P, G, A, V), _adadelta(G), {"learning_rate": 0.5}),
        Example((P, G, A, V), _adadelta(D), {"learning_rate": 0.5, **DECAY}),
    ]
)


def _rmsprop(g, centered):
    squares, mean = _faded(A, g * g), _faded(M, g) if centered else M
    velocity = 0.5 * V + 0.01 * g / np.sqrt(squares - mean * mean * centered + 1e-6)
    return P - velocity, squares, mean, velocity


rmsprop.example(
    lambda: [
        Example((P, G, A, M, V), _rmsprop(G, False), {"momentum": 0.5}),
        Example((P, G, A, M, V), _rmsprop(G, True), {"momentum": 0.5, "centered": True}),
        Example((P, G, A, M, V), _rmsprop(D, False), {"momentum": 0.5, **DECAY}),
    ]
)


def _ftrl(l1, l2):
    squares = A + G * G
    linear = M + G - (np.sqrt(squares) - np.sqrt(A)) / 0.01 * P
    steep = np.sqrt(squares) / 0.01 + 2 * l2
    return np.where(np.abs(linear) > l1, (np.sign(linear) * l1 - linear) / steep, 0), squares, linear


ftrl.example(
    lambda: [
        Example((P, G, A, M), _ftrl(0.1, 0.2), {"l1": 0.1, "l2": 0.2}),
        Example((P, G, A, M), _ftrl(1e3, 0.0), {"l1": 1e3}),
    ]
)


def _lars():
    rate = 0.01 * 0.001 * np.linalg.norm(P) / (np.linalg.norm(G) + 0.0005 * np.linalg.norm(P))
    velocity = 0.9 * M + rate * (G + 0.0005 * P)
    return P - velocity, velocity


lars.example(lambda: [Example((P, G, M), _lars())])
moving_average.example(lambda: [Example((P, G), (0.9 * P + 0.1 * G,), {"decay": 0.9})])
