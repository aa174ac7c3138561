"""Optimisers, as ops: what a step does to one parameter, written in other ops.

Inputs are the parameter, its gradient, and the slots that the optimiser keeps; outputs are their new values, in the
same order. A slot has the type of the parameter, `step` is an int64 count of the steps done. All start at zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.build import Value
from core.errors import ProgramError
from core.ir import TensorType
from core.registry import REGISTRY, Example, as_tuple, composite, lookup
from core.schedules import Schedule

__all__ = ["OPTIMIZERS", "Optimizer", "state_types"]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A choice of optimiser and its attributes, checked and completed with defaults.

    In place of a number, `learning_rate` may be a schedule: ``{"schedule": "cosine_decay", <its attributes>}``.
    Raises ProgramError (unknown_optimizer, unknown_schedule, bad_attr).
    """

    type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.type not in OPTIMIZERS:
            raise ProgramError(
                f"unknown optimiser {self.type!r}", "unknown_optimizer", suggestion=f"one of {', '.join(OPTIMIZERS)}"
            )
        attrs = dict(self.attrs)
        if isinstance(rate := attrs.get("learning_rate"), Mapping):
            del attrs["learning_rate"]
            rest = {k: v for k, v in rate.items() if k != "schedule"}
            object.__setattr__(self, "schedule", Schedule(str(rate.get("schedule")), rest))
        object.__setattr__(self, "attrs", lookup(self.type).complete(attrs))

    @property
    def document(self) -> dict[str, Any]:
        """Type and attributes as they were given, defaults filled in."""
        attrs = dict(self.attrs)
        if self.schedule is not None:
            attrs["learning_rate"] = {"schedule": self.schedule.type, **self.schedule.attrs}
        return {"type": self.type, "attrs": attrs}

    def update(
        self, parameter: Value, gradient: Value, slots: Sequence[Value], rate: Value | None
    ) -> tuple[Value, ...]:
        """The new parameter, and the new slots in their order. `rate` is that of the schedule, if there is one."""
        if rate is None:
            return as_tuple(parameter.builder.emit(self.type, parameter, gradient, *slots, **self.attrs))
        attrs = {**self.attrs, "learning_rate": lookup("cast")(rate, dtype=parameter.dtype)}
        return as_tuple(lookup(self.type).body(parameter, gradient, *slots, **attrs))


def state_types(optimizer: Optimizer, parameter: TensorType) -> dict[str, TensorType]:
    """The slots that the optimiser keeps for a parameter of that type."""
    slots = [slot.name for slot in lookup(optimizer.type).inputs[2:]]
    return {s: TensorType((), "int64") if s == "step" else parameter for s in slots}


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise ProgramError(f"{name} must be within {low} and {high}, not {value}", "bad_attr")


def _decayed(parameter, gradient, weight_decay, l1_decay=0.0):
    if weight_decay:
        gradient = gradient + parameter * weight_decay
    return gradient + lookup("sign")(parameter) * l1_decay if l1_decay else gradient


@composite(outputs=("parameter_out",))
def sgd(parameter, gradient, *, learning_rate: float = 0.01, weight_decay: float = 0.0, l1_decay: float = 0.0):
    """``parameter - learning_rate * (gradient + weight_decay * parameter + l1_decay * sign(parameter))``."""
    return parameter - _decayed(parameter, gradient, weight_decay, l1_decay) * learning_rate


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

    With `nesterov` it moves by ``-learning_rate * (gradient + momentum * velocity)`` (Sutskever et al. 2013). Weight
    decay as with `sgd`.
    """
    gradient = _decayed(parameter, gradient, weight_decay, l1_decay)
    velocity = velocity * momentum + gradient
    move = gradient + velocity * momentum if nesterov else velocity
    return parameter - move * learning_rate, velocity


def _adam(parameter, gradient, first, second, step, learning_rate, beta1, beta2, epsilon, decay):
    _check("beta1", beta1, 0.0, 1.0)
    _check("beta2", beta2, 0.0, 1.0)
    step = lookup("increment")(step)
    count = lookup("cast")(step, dtype=parameter.dtype)
    first = first * beta1 + gradient * (1.0 - beta1)
    second = second * beta2 + lookup("square")(gradient) * (1.0 - beta2)

    def unbiased(value, beta):
        return value / (1.0 - lookup("pow")(lookup("full_like")(count, value=beta), count))

    move = unbiased(first, beta1) / (lookup("sqrt")(unbiased(second, beta2)) + epsilon)
    return (
        (parameter * (1.0 - learning_rate * decay) if decay else parameter) - move * learning_rate,
        first,
        second,
        step,
    )


@composite(outputs=("parameter_out", "first_out", "second_out", "step_out"))
def adam(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
):
    """Adam (Kingma and Ba 2015): running means of the gradient and its square, both corrected for their start at zero.

    `weight_decay` times the parameter is added to the gradient first.
    """
    gradient = _decayed(parameter, gradient, weight_decay)
    return _adam(parameter, gradient, first, second, step, learning_rate, beta1, beta2, epsilon, 0.0)


@composite(outputs=("parameter_out", "first_out", "second_out", "step_out"))
def adamw(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): the parameter shrinks by
    ``learning_rate * weight_decay`` of itself, apart from the gradient."""
    return _adam(parameter, gradient, first, second, step, learning_rate, beta1, beta2, epsilon, weight_decay)


@composite(outputs=("parameter_out", "moment_out"))
def adagrad(
    parameter, gradient, moment, *, learning_rate: float = 0.01, epsilon: float = 1e-6, weight_decay: float = 0.0
):
    """``moment += gradient ** 2``; the parameter moves by ``-learning_rate * gradient / (sqrt(moment) + epsilon)``.

    Duchi, Hazan and Singer 2011.
    """
    gradient = _decayed(parameter, gradient, weight_decay)
    moment = moment + lookup("square")(gradient)
    return parameter - gradient * learning_rate / (lookup("sqrt")(moment) + epsilon), moment


@composite(outputs=("parameter_out", "moment_out"))
def decayed_adagrad(
    parameter, gradient, moment, *, learning_rate: float = 0.01, decay: float = 0.95, epsilon: float = 1e-6
):
    """`adagrad` with a running mean: ``moment = decay * moment + (1 - decay) * gradient ** 2``."""
    _check("decay", decay, 0.0, 1.0)
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
):
    """Moves of the size of earlier moves (Zeiler 2012): running means of squared gradients and squared moves."""
    _check("rho", rho, 0.0, 1.0)
    gradient = _decayed(parameter, gradient, weight_decay)
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
):
    """``velocity = momentum * velocity + learning_rate * gradient / sqrt(mean_square + epsilon)`` (Hinton 2012).

    With `centered` the square of the running mean is taken off the running mean square.
    """
    _check("rho", rho, 0.0, 1.0)
    gradient = _decayed(parameter, gradient, weight_decay)
    mean_square = mean_square * rho + lookup("square")(gradient) * (1.0 - rho)
    spread = mean_square
    if centered:
        mean = mean * rho + gradient * (1.0 - rho)
        spread = mean_square - lookup("square")(mean)
    velocity = velocity * momentum + gradient * learning_rate / lookup("sqrt")(spread + epsilon)
    return parameter - velocity, mean_square, mean, velocity


@composite(outputs=("parameter_out", "first_out", "largest_out", "step_out"))
def adamax(
    parameter,
    gradient,
    first,
    largest,
    step,
    *,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
):
    """Adam with the largest gradient so far, fading by `beta2`, in place of the mean square (Kingma and Ba 2015)."""
    _check("beta1", beta1, 0.0, 1.0)
    _check("beta2", beta2, 0.0, 1.0)
    gradient = _decayed(parameter, gradient, weight_decay)
    step = lookup("increment")(step)
    count = lookup("cast")(step, dtype=parameter.dtype)
    first = first * beta1 + gradient * (1.0 - beta1)
    largest = lookup("maximum")(lookup("abs")(gradient), largest * beta2 + epsilon)
    unbiased = first / (1.0 - lookup("pow")(lookup("full_like")(count, value=beta1), count))
    return parameter - unbiased * learning_rate / largest, first, largest, step


@composite(outputs=("parameter_out", "squares_out", "linear_out"))
def ftrl(parameter, gradient, squares, linear, *, learning_rate: float = 0.01, l1: float = 0.0, l2: float = 0.0):
    """Follow the regularised leader (McMahan et al. 2013), which sets a parameter to 0 where ``|linear| <= l1``."""
    root = lookup("sqrt")
    total = squares + lookup("square")(gradient)
    # the root of 0 has no gradient to speak of, and needs none
    linear = linear + gradient - (root(total) - root(squares)) * parameter / learning_rate
    steep = root(total) / learning_rate + 2.0 * l2
    outside = lookup("greater_than")(lookup("abs")(linear), lookup("full_like")(linear, value=l1))
    moved = (lookup("sign")(linear) * l1 - linear) / steep
    return lookup("where")(outside, moved, lookup("fill_zeros_like")(moved)), total, linear


def _trust(parameter, move):
    """``norm(parameter) / norm(move)``; 1 where either is 0."""
    a, b = lookup("norm")(parameter), lookup("norm")(move)
    zero, one = lookup("fill_zeros_like")(a), lookup("full_like")(a, value=1.0)
    some = lookup("logical_and")(lookup("greater_than")(a, zero), lookup("greater_than")(b, zero))
    return lookup("where")(some, a / lookup("where")(some, b, one), one)


@composite(outputs=("parameter_out", "first_out", "second_out", "step_out"))
def lamb(
    parameter,
    gradient,
    first,
    second,
    step,
    *,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.01,
):
    """Adam's move plus weight decay, scaled to the norm of the parameter (You et al. 2020)."""
    start = lookup("fill_zeros_like")(parameter)
    moved, first, second, step = _adam(start, gradient, first, second, step, 1.0, beta1, beta2, epsilon, 0.0)
    move = parameter * weight_decay - moved
    return parameter - move * _trust(parameter, move) * learning_rate, first, second, step


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
    epsilon: float = 0.0,
):
    """`momentum` with a rate of ``coefficient * norm(parameter) / norm(gradient)`` a parameter (You et al. 2017)."""
    a, b = lookup("norm")(parameter), lookup("norm")(gradient)
    bottom = b + a * weight_decay + epsilon
    zero, one = lookup("fill_zeros_like")(a), lookup("full_like")(a, value=1.0)
    some = lookup("logical_and")(lookup("greater_than")(a, zero), lookup("greater_than")(bottom, zero))
    rate = lookup("where")(some, a * coefficient / lookup("where")(some, bottom, one), one)
    velocity = velocity * momentum + _decayed(parameter, gradient, weight_decay) * rate * learning_rate
    return parameter - velocity, velocity


@composite
def moving_average(average, x, *, decay: float = 0.999):
    """``decay * average + (1 - decay) * x``: an exponential moving average, of parameters for example."""
    return average * decay + x * (1.0 - decay)


OPTIMIZERS = tuple(name for name, spec in REGISTRY.items() if spec.outputs[:1] == ("parameter_out",))

P, G = np.array([1.0, -2.0]), np.array([0.5, 0.25])
Z = np.zeros(2)
sgd.example(
    lambda: [
        Example((P, G), (P - 0.1 * G,), {"learning_rate": 0.1}),
        Example((P, G), (P - 0.1 * (G + 0.5 * P),), {"learning_rate": 0.1, "weight_decay": 0.5}),
    ]
)
momentum.example(
    lambda: [
        Example((P, G, G), (P - 0.1 * 1.9 * G, 1.9 * G), {"learning_rate": 0.1}),
        Example((P, G, Z), (P - 0.1 * 1.9 * G, G), {"learning_rate": 0.1, "nesterov": True}),
    ]
)


def _first_adam_step(p, g, shrink=1.0, lr=0.001):
    # after one step both corrected means are the gradient and its square themselves
    return p * shrink - lr * g / (np.abs(g) + 1e-8), 0.1 * g, 0.001 * g * g, np.array(1)


def _fourth_adam_step(p, g, m, v, shrink=1.0):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p * shrink - 0.001 * (m / (1 - 0.9**4)) / (np.sqrt(v / (1 - 0.999**4)) + 1e-8), m, v, np.array(4)


M, V = np.array([0.2, -0.1]), np.array([0.3, 0.4])
adam.example(
    lambda: [
        Example((P, G, Z, Z, np.array(0)), _first_adam_step(P, G), smooth=False),
        Example((P, G, M, V, np.array(3)), _fourth_adam_step(P, G, M, V)),
    ]
)
adamw.example(
    lambda: [
        Example((P, G, Z, Z, np.array(0)), _first_adam_step(P, G, 1 - 1e-5), smooth=False),
        Example((P, G, M, V, np.array(3)), _fourth_adam_step(P, G, M, V, 1 - 1e-5)),
    ]
)

A = np.array([0.2, 0.3])
adagrad.example(lambda: [Example((P, G, A), (P - 0.01 * G / (np.sqrt(A + G * G) + 1e-6), A + G * G))])


def _faded(mean, value, share=0.95):
    return share * mean + (1 - share) * value


decayed_adagrad.example(
    lambda: [Example((P, G, A), (P - 0.01 * G / (np.sqrt(_faded(A, G * G)) + 1e-6), _faded(A, G * G)))]
)


def _adadelta():
    squares = _faded(A, G * G)
    move = G * np.sqrt((V + 1e-6) / (squares + 1e-6))
    return P - 0.5 * move, squares, _faded(V, move * move)


adadelta.example(lambda: [Example((P, G, A, V), _adadelta(), {"learning_rate": 0.5})])


def _rmsprop(centered):
    squares, mean = _faded(A, G * G), _faded(M, G) if centered else M
    velocity = 0.5 * Z + 0.01 * G / np.sqrt(squares - mean * mean * centered + 1e-6)
    return P - velocity, squares, mean, velocity


rmsprop.example(
    lambda: [
        Example((P, G, A, M, Z), _rmsprop(False), {"momentum": 0.5}),
        Example((P, G, A, M, Z), _rmsprop(True), {"momentum": 0.5, "centered": True}),
    ]
)


def _adamax():
    first, largest = 0.9 * M + 0.1 * G, np.maximum(np.abs(G), 0.999 * V + 1e-8)
    return P - 0.001 / (1 - 0.9**4) * first / largest, first, largest, np.array(4)


adamax.example(lambda: [Example((P, G, M, V, np.array(3)), _adamax())])


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


def _lamb():
    m, v = 0.9 * M + 0.1 * G, 0.999 * V + 0.001 * G * G
    move = (m / (1 - 0.9**4)) / (np.sqrt(v / (1 - 0.999**4)) + 1e-6) + 0.01 * P
    return P - 0.001 * np.linalg.norm(P) / np.linalg.norm(move) * move, m, v, np.array(4)


lamb.example(lambda: [Example((P, G, M, V, np.array(3)), _lamb())])


def _lars():
    rate = 0.01 * 0.001 * np.linalg.norm(P) / (np.linalg.norm(G) + 0.0005 * np.linalg.norm(P))
    velocity = 0.9 * M + rate * (G + 0.0005 * P)
    return P - velocity, velocity


lars.example(lambda: [Example((P, G, M), _lars())])
moving_average.example(lambda: [Example((P, G), (0.9 * P + 0.1 * G,), {"decay": 0.9})])
