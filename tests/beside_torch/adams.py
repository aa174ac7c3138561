"""Adam and the optimisers derived from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.beside_torch.installed import one_step, torch
from tests.beside_torch.optimisers import DECAY, copies, decayed, options
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def adam_like(decoupled: bool) -> Callable[..., Any]:
    def f(
        parameter: Any,
        gradient: Any,
        first: Any,
        second: Any,
        step: Any,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        l1_decay: float = 0.0,
    ) -> Any:
        p, m, v = copies(parameter, first, second)
        count = step.to(torch.float64)
        g = decayed(parameter, gradient, l1_decay)
        run = one_step("adamw" if decoupled else "adam")
        steps = {"beta1": beta1, "beta2": beta2, "lr": learning_rate, "weight_decay": weight_decay, "eps": epsilon}
        run([p], [g], [m], [v], [], [count], **options(amsgrad=False), **steps)
        return p, m, v, step + 1

    return f


adamw_step, adam_step = adam_like(True), adam_like(False)


def amsgrad(
    parameter: Any,
    gradient: Any,
    first: Any,
    second: Any,
    largest: Any,
    step: Any,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    p, m, v, most = copies(parameter, first, second, largest)
    g = decayed(parameter, gradient, l1_decay)
    steps = {"beta1": beta1, "beta2": beta2, "lr": learning_rate, "weight_decay": weight_decay, "eps": epsilon}
    one_step("adam")([p], [g], [m], [v], [most], [step.to(torch.float64)], **options(amsgrad=True), **steps)
    return p, m, v, most, step + 1


def moments(gradient: Any, first: Any, second: Any, beta1: float, beta2: float) -> tuple[Any, Any]:
    return torch.lerp(first, gradient, 1 - beta1), beta2 * second + (1 - beta2) * gradient**2


def adamax(
    parameter: Any,
    gradient: Any,
    first: Any,
    largest: Any,
    step: Any,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    g = decayed(parameter, gradient, l1_decay, weight_decay)  # torch adds epsilon to the other side of the maximum
    m = torch.lerp(first, g, 1 - beta1)
    top = torch.maximum(torch.abs(g), beta2 * largest + epsilon)
    return parameter - learning_rate / (1 - beta1 ** (int(step) + 1)) * m / top, m, top, step + 1


def nadam(
    parameter: Any,
    gradient: Any,
    first: Any,
    second: Any,
    step: Any,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    g = decayed(parameter, gradient, l1_decay, weight_decay)  # torch uses its own schedule for beta1
    m, v = moments(g, first, second, beta1, beta2)
    n = int(step) + 1
    mean = beta1 * m / (1 - beta1 ** (n + 1)) + (1 - beta1) * g / (1 - beta1**n)
    return parameter - learning_rate * mean / (torch.sqrt(v / (1 - beta2**n)) + epsilon), m, v, step + 1


def radam(
    parameter: Any,
    gradient: Any,
    first: Any,
    second: Any,
    step: Any,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    l1_decay: float,
) -> Any:
    p, m, v = copies(parameter, first, second)
    g = decayed(parameter, gradient, l1_decay)
    less = epsilon * (1 - beta2 ** (int(step) + 1)) ** 0.5  # torch adds it before it corrects the mean square
    steps = {"beta1": beta1, "beta2": beta2, "lr": learning_rate, "weight_decay": weight_decay, "eps": less}
    more = options(decoupled_weight_decay=False)
    one_step("radam")([p], [g], [m], [v], [step.to(torch.float64)], **more, **steps)
    return p, m, v, step + 1


def trust(parameter: Any, move: Any) -> Any:
    a, b = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(move)
    return a / b if a > 0 and b > 0 else torch.ones_like(a)


def lamb(
    parameter: Any,
    gradient: Any,
    first: Any,
    second: Any,
    step: Any,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> Any:
    moved, m, v, count = adam_step(
        torch.zeros_like(parameter), gradient, first, second, step, 1.0, beta1, beta2, epsilon, 0.0
    )
    move = weight_decay * parameter - moved
    return parameter - learning_rate * trust(parameter, move) * move, m, v, count


OPS: dict[str, Callable[..., Any]] = {
    "adam": adam_step,
    "adamax": adamax,
    "adamw": adamw_step,
    "amsgrad": amsgrad,
    "lamb": lamb,
    "nadam": nadam,
    "radam": radam,
}

ADAMS = ("adam", "adamax", "nadam", "radam")

MORE: dict[str, list[Inputs]] = {
    "amsgrad": [
        case(*[(2, 3)] * 5, np.array(n), span=(0.2, 1.5), beta1=0.7, beta2=0.95, **more)
        for n in (1, 7, 200)
        for more in ({}, DECAY)
    ],
    **{
        name: [
            case((2, 3), (2, 3), (2, 3), (2, 3), np.array(n), span=(0.2, 1.5), beta1=0.7, beta2=0.95, **more)
            for n in (1, 7, 200)
            for more in ({}, DECAY)
        ]
        for name in ADAMS
    },
    **{
        name: [
            case((2, 3), (2, 3), (2, 3), (2, 3), np.array(n), span=(0.2, 1.5), weight_decay=w)
            for n in (1, 7)
            for w in (0.0, 0.3)
        ]
        for name in ("adamw", "lamb")
    },
}
