"""Range and distribution of each random op, and equal numbers for equal keys.

All numbers follow from fixed keys, so each test either always passes or always fails. A fair source exceeds the bounds
for one key in a thousand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.runtime.reference import execute

MANY = 20_000


def draw(op: str, *inputs: Any, key: int = 5, **attrs: Any) -> np.ndarray:
    arrays = [*map(np.asarray, inputs), np.asarray(key)]
    b = BlockBuilder()
    block = b.build([b.emit(op, *(b.param(TensorType(a.shape, str(a.dtype))) for a in arrays), **attrs)])
    return execute(block, arrays)[0]


def test_the_truncated_normal_stays_within_two_standard_deviations():
    found = draw("truncated_gaussian", shape=(MANY,), mean=1.0, std=0.5, dtype="float64")

    assert stats.kstest(found, "truncnorm", args=(-2, 2, 1.0, 0.5)).pvalue > 1e-3
    assert abs(found - 1.0).max() <= 1.0


def test_the_exponential_distribution_has_its_rate():
    found = draw("exponential", shape=(MANY,), rate=2.5, dtype="float64")

    assert stats.kstest(found, "expon", args=(0, 1 / 2.5)).pvalue > 1e-3
    assert found.min() >= 0


@pytest.mark.parametrize(("low", "high"), [(0, 6), (-3, 4), (2**40, 2**40 + 5)])
def test_integers_are_uniform_and_include_both_ends(low, high):
    found = draw("randint", shape=(MANY,), low=low, high=high)

    counts = np.bincount(found - low, minlength=high - low)
    assert found.min() == low and found.max() == high - 1
    assert stats.chisquare(counts).pvalue > 1e-3


def test_permutations_contain_each_number_once_and_are_uniform():
    assert sorted(draw("randperm", n=1000)) == list(range(1000))

    orders = [tuple(draw("randperm", n=3, key=key)) for key in range(3000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > 1e-3


def test_bernoulli_draws_ones_with_the_given_probability():
    p = np.repeat([0.0, 0.1, 0.5, 0.9, 1.0], MANY)

    ones = draw("bernoulli", p).reshape(5, MANY).sum(1)

    assert ones[0] == 0 and ones[4] == MANY
    for count, chance in zip(ones[1:4], (0.1, 0.5, 0.9), strict=True):
        assert stats.binomtest(int(count), MANY, chance).pvalue > 1e-3


@pytest.mark.parametrize("bad", [-0.1, 1.5, np.nan])
def test_a_probability_outside_its_range_is_refused(bad):
    with pytest.raises(ExecutionError) as error:
        draw("bernoulli", [0.5, bad])
    assert error.value.code == "bad_probability"


WEIGHTS = np.array([[1.0, 0.0, 3.0, 4.0], [0.0, 5.0, 5.0, 0.0]])


def test_positions_drawn_with_replacement_are_proportional_to_their_weights():
    found = draw("multinomial", WEIGHTS, num_samples=MANY, replacement=True)

    assert found.shape == (2, MANY)
    for row, weights in zip(found, WEIGHTS, strict=True):
        counts = np.bincount(row, minlength=4)
        assert not counts[weights == 0].any()
        usable = weights > 0
        assert stats.chisquare(counts[usable], MANY * weights[usable] / weights.sum()).pvalue > 1e-3


def test_positions_drawn_without_replacement_are_distinct_and_drawn_sequentially():
    rows = np.tile(WEIGHTS[:1], (MANY, 1))

    found = draw("multinomial", rows, num_samples=2)

    assert (found[:, 0] != found[:, 1]).all() and not (found == 1).any()
    # the second is drawn from the remaining positions: 3/8 * 1/5 for position 2 and then 0, and so on
    pairs = {(0, 2): 1 / 8 * 3 / 7, (0, 3): 1 / 8 * 4 / 7, (2, 0): 3 / 8 * 1 / 5, (2, 3): 3 / 8 * 4 / 5,
             (3, 0): 4 / 8 * 1 / 4, (3, 2): 4 / 8 * 3 / 4}  # fmt: skip
    counts = [int((found == pair).all(1).sum()) for pair in pairs]
    assert stats.chisquare(counts, MANY * np.array(list(pairs.values()))).pvalue > 1e-3


def test_very_small_and_very_large_weights_are_in_proportion():
    for scale in (1e-300, 1e300):
        found = draw("multinomial", np.array([1.0, 0.0, 1.0]) * scale, num_samples=1000, replacement=True)
        assert 400 < (found == 0).sum() < 600 and not (found == 1).any()


@pytest.mark.parametrize(
    ("weights", "attrs"),
    [
        ([1.0, -1.0], {}),
        ([1.0, np.inf], {}),
        ([0.0, 0.0], {"replacement": True}),
        ([1.0, 0.0, 0.0], {"num_samples": 2}),
    ],
)
def test_invalid_weights_are_refused(weights, attrs):
    with pytest.raises(ExecutionError) as error:
        draw("multinomial", weights, **attrs)
    assert error.value.code == "bad_probability"


def test_drawing_more_positions_than_exist_is_refused_before_the_run():
    with pytest.raises(ProgramError) as error:
        draw("multinomial", [0.5, 0.5], num_samples=3)
    assert error.value.code == "bad_attr"


SEVERAL = [
    ("truncated_gaussian", (), {"shape": (8,), "dtype": "float64"}),
    ("gaussian_random", (), {"shape": (8,), "dtype": "float64"}),
    ("exponential", (), {"shape": (8,), "dtype": "float64"}),
    ("randint", (), {"shape": (8,), "high": 2**50}),
    ("randperm", (), {"n": 30}),
    ("bernoulli", (np.full(64, 0.5),), {}),
    ("multinomial", (np.ones(64),), {"num_samples": 16}),
    ("multinomial", (np.ones(64),), {"num_samples": 16, "replacement": True}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), SEVERAL)
def test_equal_key_seed_and_stream_give_equal_bits_and_others_differ(op, inputs, attrs):
    base = draw(op, *inputs, **attrs)

    assert base.tobytes() == draw(op, *inputs, **attrs).tobytes()
    for other in ({"key": 6}, {"seed": 1}, {"stream": 1}):
        assert base.tobytes() != draw(op, *inputs, **attrs, **other).tobytes()


@pytest.mark.parametrize("op", ["uniform_random", "gaussian_random", "truncated_gaussian", "exponential"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_16_bit_dtypes_give_the_float64_numbers_rounded(op, dtype):
    wide = draw(op, shape=(100,), dtype="float64")

    found = draw(op, shape=(100,), dtype=dtype)

    assert str(found.dtype) == dtype
    np.testing.assert_allclose(found.astype("float64"), wide, rtol=2e-2, atol=2e-3)


def test_a_longer_draw_starts_with_the_shorter_one():
    short, long = (draw("uniform_random", shape=(n,), dtype="float64") for n in (5, 50))

    np.testing.assert_array_equal(short, long[:5])
