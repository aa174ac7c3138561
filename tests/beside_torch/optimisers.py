"""Optimisers: one differentiable step by torch.optim's functions where the formulas agree, or written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import one_step, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def copies(*values: Any) -> list[Any]:
    """Copies, because torch.optim overwrites its arguments."""
    return [x.clone() for x in values]


def decayed(parameter: Any, gradient: Any, l1_decay: float, weight_decay: float = 0.0) -> Any:
    return gradient + weight_decay * parameter + l1_decay * torch.sign(parameter)


def options(**more: Any) -> dict[str, Any]:
    return {"foreach": False, "differentiable": True, "maximize": False, "capturable": False, **more}


def sgd(parameter: Any, gradient: Any, learning_rate: float, weight_decay: float, l1_decay: float) -> Any:
    (p,) = copies(parameter)
    more = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
    g = decayed(parameter, gradient, l1_decay)
    one_step("sgd")([p], [g], [None], foreach=False, weight_decay=weight_decay, lr=learning_rate, **more)
    return p


def momentum(
    parameter: Any,
    gradient: Any,
    velocity: Any,
    learning_rate: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    p, v = copies(parameter, velocity)
    g = decayed(parameter, gradient, l1_decay)
    more = {"momentum": momentum, "dampening": 0.0, "nesterov": nesterov, "maximize": False}
    one_step("sgd")([p], [g], [v], foreach=False, weight_decay=weight_decay, lr=learning_rate, **more)
    return p, v


def adagrad(
    parameter: Any,
    gradient: Any,
    moment: Any,
    learning_rate: float,
    epsilon: float,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    p, m = copies(parameter, moment)
    g = decayed(parameter, gradient, l1_decay)
    more = {"has_sparse_grad": False, "foreach": False, "differentiable": True, "maximize": False}
    steps = {"lr": learning_rate, "weight_decay": weight_decay, "lr_decay": 0.0, "eps": epsilon}
    one_step("adagrad")([p], [g], [m], [torch.tensor(0.0)], **more, **steps)
    return p, m


def adadelta(
    parameter: Any,
    gradient: Any,
    gradients: Any,
    moves: Any,
    learning_rate: float,
    rho: float,
    epsilon: float,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    p, squares, deltas = copies(parameter, gradients, moves)
    g = decayed(parameter, gradient, l1_decay)
    steps = {"lr": learning_rate, "rho": rho, "eps": epsilon, "weight_decay": weight_decay}
    one_step("adadelta")([p], [g], [squares], [deltas], [torch.tensor(0.0)], **options(), **steps)
    return p, squares, deltas


def lars(
    parameter: Any,
    gradient: Any,
    velocity: Any,
    learning_rate: float,
    momentum: float,
    coefficient: float,
    weight_decay: float,
    l1_decay: float,
    epsilon: float,
) -> Any:
    a, b = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(gradient)
    rate = coefficient * a / (b + weight_decay * a + epsilon)
    v = momentum * velocity + learning_rate * rate * decayed(parameter, gradient, l1_decay, weight_decay)
    return parameter - v, v


def rmsprop(
    parameter: Any,
    gradient: Any,
    mean_square: Any,
    mean: Any,
    velocity: Any,
    learning_rate: float,
    rho: float,
    epsilon: float,
    momentum: float,
    centered: bool,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    g = decayed(parameter, gradient, l1_decay, weight_decay)  # torch adds epsilon to the root
    square = torch.lerp(mean_square, g**2, 1 - rho)
    mean = torch.lerp(mean, g, 1 - rho) if centered else mean.clone()
    spread = square - mean**2 if centered else square
    v = momentum * velocity + learning_rate * g * torch.rsqrt(spread + epsilon)
    return parameter - v, square, mean, v


def decayed_adagrad(
    parameter: Any,
    gradient: Any,
    moment: Any,
    learning_rate: float,
    decay: float,
    epsilon: float,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    g = decayed(parameter, gradient, l1_decay, weight_decay)
    m = torch.lerp(moment, g**2, 1 - decay)
    return parameter - learning_rate * g / (torch.sqrt(m) + epsilon), m


def ftrl(parameter: Any, gradient: Any, squares: Any, linear: Any, learning_rate: float, l1: float, l2: float) -> Any:
    total = squares + gradient**2
    line = linear + gradient - (torch.sqrt(total) - torch.sqrt(squares)) * parameter / learning_rate
    steep = torch.sqrt(total) / learning_rate + 2 * l2
    return -torch.nn.functional.softshrink(line, l1) / steep, total, line


OPS: dict[str, Callable[..., Any]] = {
    "adadelta": adadelta,
    "adagrad": adagrad,
    "decayed_adagrad": decayed_adagrad,
    "ftrl": ftrl,
    "lars": lars,
    "momentum": momentum,
    "moving_average": lambda average, x, decay: torch.lerp(average, x, 1 - decay),
    "rmsprop": rmsprop,
    "sgd": sgd,
}

DECAY = {"weight_decay": 0.3, "l1_decay": 0.2}

MORE: dict[str, list[Inputs]] = {
    "adadelta": [case((2, 3), (2, 3), (2, 3), (2, 3), span=(0.2, 1.5), rho=0.8, **more) for more in ({}, DECAY)],
    "adagrad": [case((2, 3), (2, 3), (2, 3), span=(0.2, 1.5), **more) for more in ({}, DECAY)],
    "decayed_adagrad": [case((2, 3), (2, 3), (2, 3), span=(0.2, 1.5), decay=0.7, **more) for more in ({}, DECAY)],
    "ftrl": [
        case((2, 3), (2, 3), (2, 3), (2, 3), span=(0.2, 1.5), l1=a, l2=b, learning_rate=0.5)
        for a in (0.0, 0.5)
        for b in (0.0, 0.5)
    ],
    "lars": [case((2, 3), (2, 3), (2, 3), span=(0.2, 1.5), **DECAY)],
    "momentum": [case((2, 3), (2, 3), (2, 3), nesterov=n, **more) for n in (False, True) for more in ({}, DECAY)],
    "moving_average": [case((2, 3), (2, 3), decay=0.3)],
    "rmsprop": [
        case(
            (2, 3),
            (2, 3),
            (2, 3),
            np.full((2, 3), 0.1),
            (2, 3),
            span=(0.2, 0.8),
            centered=c,
            momentum=0.4,
            rho=0.9,
            **more,
        )
        for c in (False, True)
        for more in ({}, DECAY)
    ],
    "sgd": [case((2, 3), (2, 3), **more) for more in ({}, DECAY)],
}
