"""Optimisers, as ops: what a step does to one parameter, written in other ops.

Inputs are the parameter, its gradient, and the slots that the optimiser keeps; outputs are their new values, in the
same order. A slot has the type of the parameter, `step` is an int64 count of the steps done. All start at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.registry import REGISTRY, Example, composite, lookup

__all__ = ["OPTIMIZERS", "Optimizer", "state_types"]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A choice of optimiser and its attributes, checked and completed with defaults.

    Raises ProgramError (unknown_optimizer, bad_attr).
    """

    type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.type not in OPTIMIZERS:
            raise ProgramError(
                f"unknown optimiser {self.type!r}", "unknown_optimizer", suggestion=f"one of {', '.join(OPTIMIZERS)}"
            )
        object.__setattr__(self, "attrs", lookup(self.type).complete(self.attrs))


def state_types(optimizer: Optimizer, parameter: TensorType) -> dict[str, TensorType]:
    """The slots that the optimiser keeps for a parameter of that type."""
    slots = [slot.name for slot in lookup(optimizer.type).inputs[2:]]
    return {s: TensorType((), "int64") if s == "step" else parameter for s in slots}


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise ProgramError(f"{name} must be within {low} and {high}, not {value}", "bad_attr")


def _decayed(parameter, gradient, weight_decay):
    return gradient + parameter * weight_decay if weight_decay else gradient


@composite(outputs=("parameter_out",))
def sgd(parameter, gradient, *, learning_rate: float = 0.01, weight_decay: float = 0.0):
    """``parameter - learning_rate * (gradient + weight_decay * parameter)``."""
    return parameter - _decayed(parameter, gradient, weight_decay) * learning_rate


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
):
    """``velocity = momentum * velocity + gradient``; the parameter moves by ``-learning_rate * velocity``.

    With `nesterov` it moves by ``-learning_rate * (gradient + momentum * velocity)`` (Sutskever et al. 2013).
    """
    gradient = _decayed(parameter, gradient, weight_decay)
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
