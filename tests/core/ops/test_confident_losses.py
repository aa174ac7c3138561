"""Logistic losses of confident predictions keep their digits: a loss of 1e-6 is no difference of two large numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.runtime.reference import execute
from tests.core.codegen.stepwise import block_of, compiled

SCORES = np.float32([-50, -20, -12, -7, -0.5, 0, 0.5, 7, 12, 20, 50])
LABELS = np.float32([0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1])
SIGNED = np.where(LABELS > 0, 1.0, -1.0) * SCORES
LOSSES = np.log1p(np.exp(-SIGNED))
SLOPES = np.where(LABELS > 0, -1.0, 1.0) / (1.0 + np.exp(SIGNED))


def focal(x: np.ndarray) -> np.ndarray:
    """The focal loss of `SIGNED` scores x, with the weights of its defaults."""
    return np.where(LABELS > 0, 0.25, 0.75) * (1.0 / (1.0 + np.exp(x))) ** 2 * np.log1p(np.exp(-x))


def both(name: str, *values: Any, **attrs: Any) -> list[np.ndarray]:
    """The result of one op in the reference executor and as machine code."""
    found = execute(block_of(name, *values, **attrs), list(values))[0], compiled(name, *values, **attrs)
    return [each.astype("float64") for each in found]


def slopes(name: str, *values: Any, at: int = 0, **attrs: Any) -> np.ndarray:
    """The gradient of the sum of a loss with respect to its operand number `at`."""
    block = block_of(name, *values, **attrs)
    return execute(vjp(block, [block.params[at]]), [*values, np.ones(block.types[block.results[0]].shape, "float32")])[
        1
    ]


def test_losses_of_logits_are_precise_to_the_last_digits():
    zero, column = np.zeros_like(SCORES), SCORES[:, None]
    for found in both("rank_loss", LABELS, SCORES, zero):
        np.testing.assert_allclose(found, LOSSES, rtol=1e-6)
    for found in both("multi_label_soft_margin_loss", column, LABELS[:, None], reduction="none"):
        np.testing.assert_allclose(found, LOSSES, rtol=1e-6)
    for found in both("sigmoid_focal_loss", SCORES, LABELS):
        np.testing.assert_allclose(found, focal(SIGNED), rtol=1e-5, atol=1e-40)
    tree = np.zeros((len(SCORES), 1), "int64"), LABELS.astype("int64")[:, None]
    attrs = column, np.zeros(len(SCORES), "int64"), np.ones((1, 1), "float32"), None, *tree
    found = execute(block_of("hierarchical_sigmoid", *attrs), [each for each in attrs if each is not None])[0]
    np.testing.assert_allclose(found, LOSSES, rtol=1e-6)


def test_gradients_of_losses_of_logits_are_precise_to_the_last_digits():
    zero, column = np.zeros_like(SCORES), SCORES[:, None]
    np.testing.assert_allclose(slopes("rank_loss", LABELS, SCORES, zero, at=1), SLOPES, rtol=1e-6)
    found = slopes("multi_label_soft_margin_loss", column, LABELS[:, None], reduction="sum")
    np.testing.assert_allclose(found[:, 0], SLOPES, rtol=1e-6)
    step = 1e-5
    wanted = np.sign(LABELS - 0.5) * (focal(SIGNED + step) - focal(SIGNED - step)) / (2 * step)
    np.testing.assert_allclose(slopes("sigmoid_focal_loss", SCORES, LABELS), wanted, rtol=1e-4, atol=1e-40)


@pytest.mark.parametrize("p", [0.0, 1e-30, 1e-9, 1e-5, 0.3, 1 - 2**-24, 1.0])
def test_the_binary_cross_entropy_of_a_small_probability_is_not_rounded_to_that_of_zero(p):
    given = np.float32([p])
    with np.errstate(divide="ignore"):
        other = np.maximum(np.log1p(-given.astype("float64")), -100)
    for found in both("bce_loss", given, np.float32([0]), reduction="none"):
        np.testing.assert_allclose(found, -other, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_nce_of_16_bit_floats_takes_any_class_number(dtype):
    weight = np.zeros((70_001, 1), dtype)
    label, samples, x = np.array([70_000]), np.array([69_999, 300]), np.ones((1, 1), dtype)

    found = execute(
        block_of("nce", x, label, weight, None, samples, sampler="log_uniform"), [x, label, weight, samples]
    )

    def score(k):
        return -np.log(2 * np.log1p(1 / (k + 1)) / np.log(70_002))

    wanted = np.log1p(np.exp(-score(70_000))) + np.log1p(np.exp(score(samples))).sum()
    np.testing.assert_allclose(float(found[0][0]), wanted, rtol=2 * float(ml_dtypes.finfo(dtype).eps))
