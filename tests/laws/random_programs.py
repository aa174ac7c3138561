"""Random programs with their values, and their gradients of first and second order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from core.backward.append_backward import Options, gradients
from core.compiler.compile import Executable, GradientQuery, compile_gradient
from core.ir import Program
from core.ops.control.inner_blocks import LoopMemory
from tests.products import ROWS
from tests.programs import whole
from tests.strategies import LEAVES, TABLE

EXAMPLES = int(os.environ.get("BACKPASS_TEST_PROGRAMS", "120"))

PARTS = 12

COUNTS = {"two": 2, "none": 0}

FIXED = {
    "yes": np.asarray(True),
    "no": np.asarray(False),
    **{name: np.asarray(n, dtype=np.int64) for name, n in COUNTS.items()},
    "xs": np.array([[0.5, -0.7], [-0.3, 0.9], [0.8, 0.2]]),
    "nothing": np.zeros((0, 2)),
    "some": np.array([True, False, True]),
    "every": np.array([True, True, True]),
    "ids": np.array([1, 1, 2, 0]),
    "no_ids": np.zeros(0, dtype=np.int64),
    "key": np.asarray(20_021, dtype=np.int64),
    "deep": np.sin(np.arange(2.0 * ROWS)).reshape(ROWS, 2),
    "open1": np.array([0.4, -0.9, 0.6]),
    "open2": np.array([[0.3, -0.6], [0.9, 0.1]]),
    "bare1": np.zeros(0),
    "bare2": np.zeros((0, 2)),
}

INPUTS = (*LEAVES, TABLE)

ALL = {"inputs": LEAVES, "unconnected": "zeros"}

EVERY = {"inputs": INPUTS, "unconnected": "zeros"}

POLICIES: tuple[LoopMemory, ...] = ("store", "recompute", "sqrt", "binomial")


Document = dict[str, Any]


Values = dict[str, Any]


def leaves(seed: int) -> Values:
    r = np.random.default_rng(seed)
    return {name: r.uniform(-1.2, 1.2, 2) for name in LEAVES} | {TABLE: r.uniform(-1.2, 1.2, (3, 2))} | FIXED


def flat(grads: dict[str, Any]) -> np.ndarray:
    return np.concatenate([each.ravel() for each in (whole(grads)[name] for name in INPUTS)])


def nth_order(
    program: Program, loss: str, inputs: tuple[str, ...], memory: Sequence[LoopMemory], **more: Any
) -> Executable:
    """d sum(all gradients of the order before) / d inputs; memory: of loops without a policy, for each order."""
    targets: tuple[str, ...] = (loss,)
    for policy in memory[:-1]:
        options = Options(unconnected="zeros", loop_memory=policy)
        backward = gradients(program, targets, list(inputs), options=options)
        program, targets = backward.program, tuple(backward.gradients.values())
    query = GradientQuery(targets=targets, inputs=inputs, unconnected="zeros", loop_memory=memory[-1])
    return compile_gradient(program, query, **more)


def first_order(
    program: Program, loss: str = "loss", inputs: tuple[str, ...] = INPUTS, memory: LoopMemory = "store", **more: Any
) -> Executable:
    return nth_order(program, loss, inputs, [memory], fetch=[loss], **more)


def second_order(
    program: Program,
    loss: str = "loss",
    inputs: tuple[str, ...] = INPUTS,
    memory: Sequence[LoopMemory] = ("store", "store"),
    **more: Any,
) -> Executable:
    """d sum(all first gradients) / d inputs."""
    return nth_order(program, loss, inputs, memory, **more)
