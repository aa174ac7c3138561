"""`ctc_loss`: gradients of both orders equal finite differences, for every kind of label and length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.ir import Block
from core.ir.builder import BlockBuilder
from tests.laws.examples import gradient, scalar, type_of
from tests.laws.test_ops import check_gradient

CASES: dict[str, tuple[list[list[int]], list[int], list[int], int]] = {
    "blank first": ([[1, 2, 3], [3, 1, 2]], [5, 5], [3, 3], 0),
    "blank last": ([[0, 1, 2], [2, 0, 0]], [5, 4], [3, 2], 3),
    "blank between": ([[0, 3, 1], [3, 3, 0]], [5, 4], [3, 2], 2),
    "repeated labels": ([[1, 1, 2], [2, 2, 2]], [5, 5], [3, 3], 0),
    "empty labels": ([[1, 2, 3], [1, 2, 3]], [5, 3], [0, 0], 0),
    "one path": ([[1, 2, 3], [3, 0, 0]], [3, 1], [3, 1], 0),
    "no times": ([[1, 2, 3], [3, 0, 0]], [0, 2], [0, 1], 0),
    "one label without a path": ([[1, 1, 2], [3, 1, 2]], [3, 5], [3, 3], 0),
    "labels without a path": ([[1, 1, 2], [3, 1, 2]], [3, 2], [3, 3], 0),
}
"""Labels, input lengths, label lengths and blank of two sequences of 5 times with 4 classes."""


def loss_and_arguments(case: str, normalised: bool = False, **attrs: Any) -> tuple[Block, list[np.ndarray]]:
    labels, times, sizes, blank = CASES[case]
    x = np.random.default_rng(len(case)).normal(size=(5, 2, 4))
    args = [x, np.array(labels), np.array(times), np.array(sizes)]
    b = BlockBuilder()
    first, *others = [b.param(type_of(a)) for a in args]
    log_probs = b.emit("log_softmax", first, axis=2) if normalised else first
    return b.build([b.emit("ctc_loss", log_probs, *others, blank=blank, **attrs)]), args


@pytest.mark.sampled(1, each="case")
@pytest.mark.parametrize("normalised", [False, True], ids=["log_probs", "logits"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_ctc_loss_of_both_orders_equal_finite_differences(case, reduction, normalised):
    block, args = loss_and_arguments(case, normalised, reduction=reduction, zero_infinity=True)
    loss = scalar(block)

    check_gradient(loss, args, 1e-8, [0])
    check_gradient(scalar(gradient(loss, [loss.params[0]])), args, 1e-8, [0])
