"""One training step that the bench measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["OPTIMIZERS", "RATE", "Arrays", "Workload"]

RATE = 0.01
"""Learning rate of every workload that is trained with SGD."""

OPTIMIZERS: Mapping[str, dict[str, Any]] = {
    "sgd": {"learning_rate": RATE},
    "adam": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-3},
}
"""Optimiser -> its attributes. With a smaller epsilon, a first step of Adam has the sign of rounding errors."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Workload:
    """One training step. program: the client's document; its loss is the variable `loss`.

    Feeds with open sizes have, in each step, the shapes of `feeds`. optimizer: a key of `OPTIMIZERS`.
    lookups: table -> the feed with the numbers of the rows that the step reads from it. Other frameworks differentiate
    these rows only, and add their gradients to the table in place.
    random: whether it draws numbers, so that the steps of two peers agree only on average.
    tolerance: the part of the largest movement of a parameter by which peers may differ. It is larger where rounding
    takes inputs of relu to the other side of 0, and gradients that almost cancel show it.
    """

    name: str
    program: dict[str, Any]
    feeds: Arrays
    parameters: Arrays
    optimizer: str = "sgd"
    lookups: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-3
    random: bool = False
