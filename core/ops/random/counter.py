"""Random numbers from a counter: the same key, seed, stream and position give the same number, on any device.

The key is a variable, so a step can be replayed bit for bit. The reader adds one key variable to each program, which
each step sets and each trip of a loop advances, and gives each op its own stream.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from core.ir import FLOATS, TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, op
from core.ops.common.on_cuda import scipy_function
from core.ops.common.ranges import NotNegative, Positive, Size
from core.ops.common.types import as_dtype

__all__ = ["RANDOM", "check_key", "philox"]

RANDOM = "its result does not depend on a floating-point input"


def philox(xp, counter, key):
    """Philox4x32 with ten rounds: four 32-bit words for each counter.

    counter: four uint64 arrays of 32-bit words. key: two Python ints below 2**32. Returns four such arrays.
    Salmon, Moraes, Dror and Shaw 2011.
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> half) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _words(xp, count, key, seed, stream):
    """`count` pairs of 32-bit words, as two uint64 arrays."""
    key = 0 if key is None else int(key) % 2**64
    blocks = xp.arange((count + 1) // 2, dtype=xp.uint64)
    zero = blocks * np.uint64(0)
    counter = (
        blocks & np.uint64(0xFFFFFFFF),
        blocks >> np.uint64(32),
        zero + np.uint64(stream % 2**32),
        zero + np.uint64((seed ^ (seed >> 32)) % 2**32),
    )
    a, b, c, d = philox(xp, counter, (key % 2**32, key >> 32))
    return xp.stack([a, c], 1).ravel()[:count], xp.stack([b, d], 1).ravel()[:count]


def _uniform(xp, count, key, seed, stream):
    """`count` float64 numbers in [0, 1) with 53 random bits each."""
    a, b = _words(xp, count, key, seed, stream)
    return ((a >> np.uint64(5)) * np.uint64(1 << 26) + (b >> np.uint64(6))).astype(xp.float64) * 2.0**-53


def _between(xp, shape, low, high, dtype, key, seed, stream):
    kind = as_dtype(dtype)
    values = low + (high - low) * _uniform(xp, math.prod(shape), key, seed, stream)
    # rounding to a shorter dtype may give `high`, which is outside the range
    return xp.minimum(values.astype(kind), np.nextafter(kind.type(high), kind.type(low))).reshape(shape)


def check_key(key) -> None:
    if key is not None and (key.dtype != "int64" or key.rank != 0):
        raise ProgramError(f"key must be int64[], not {key}", "type_mismatch")


def _random_type(shape, dtype, key):
    check_key(key)
    if any(n < 0 for n in shape) or dtype not in FLOATS:
        raise ProgramError(
            f"random numbers must have known sizes and a float dtype, not {dtype}{list(shape)}", "bad_attr"
        )
    return TensorType(shape, dtype)


@op(no_gradient=RANDOM)
def uniform_random(
    xp,
    key=None,
    *,
    shape: tuple[Size, ...],
    min: float = -1.0,
    max: float = 1.0,
    dtype: Dtype = "float32",
    seed: int = 0,
    stream: int = 0,
):
    """Numbers from the uniform distribution over [min, max): density ``1 / (max - min)``."""
    return _between(xp, shape, min, max, dtype, key, seed, stream)


@uniform_random.infer
def uniform_random_infer(key, *, shape, min, max, dtype, seed, stream):
    if not min < max or math.isinf(max - min):
        raise ProgramError(f"min must be below max, at a finite distance, not {min} and {max}", "bad_attr")
    return _random_type(shape, dtype, key)


uniform_random.example(
    lambda: [
        Example((np.array(7),), (), {"shape": (2, 3), "dtype": "float64"}),
        Example((np.array(7),), (), {"shape": (), "min": 0.0, "max": 5.0}),
    ]
)


@op(no_gradient=RANDOM)
def gaussian_random(
    xp,
    key=None,
    *,
    shape: tuple[Size, ...],
    mean: float = 0.0,
    std: NotNegative = 1.0,
    dtype: Dtype = "float32",
    seed: int = 0,
    stream: int = 0,
):
    """Numbers from the normal distribution with mean `mean` and standard deviation `std` (Box and Muller 1958)."""
    count = math.prod(shape)
    both = _uniform(xp, 2 * count, key, seed, stream)
    radius = xp.sqrt(-2.0 * xp.log1p(-both[:count]))
    return (mean + std * radius * xp.cos(2.0 * math.pi * both[count:])).astype(as_dtype(dtype)).reshape(shape)


@gaussian_random.infer
def gaussian_random_infer(key, *, shape, mean, std, dtype, seed, stream):
    return _random_type(shape, dtype, key)


gaussian_random.example(
    lambda: [
        Example((np.array(7),), (), {"shape": (4,), "dtype": "float64", "seed": 2}),
        Example((np.array(7),), (np.full(3, 2.0),), {"shape": (3,), "mean": 2.0, "std": 0.0, "dtype": "float64"}),
    ]
)


@op(no_gradient="its result is an integer")
def next_key(xp, key):
    """The key for the next trip of a loop."""
    a, b, _, _ = philox(
        xp,
        tuple(xp.full((1,), n, dtype=xp.uint64) for n in (0, 0, 0, 0x6B657921)),
        (int(key) % 2**32, int(key) % 2**64 >> 32),
    )
    return (a | b << np.uint64(32)).astype(xp.uint64).view(xp.int64).reshape(())


@next_key.infer
def next_key_infer(key):
    check_key(key)
    return key


next_key.example(lambda: [Example((np.array(7),), ()), Example((np.array(-1),), ())])


# --- integers, permutations and other distributions ------------------------------------------------------------


@op(no_gradient=RANDOM)
def truncated_gaussian(
    xp,
    key=None,
    *,
    shape: tuple[Size, ...],
    mean: float = 0.0,
    std: NotNegative = 1.0,
    dtype: Dtype = "float32",
    seed: int = 0,
    stream: int = 0,
):
    """Numbers from the normal distribution, limited to two standard deviations from the mean."""
    erfinv = scipy_function(xp, "special", "erfinv")
    bound = math.erf(math.sqrt(2.0))
    values = erfinv((2.0 * _uniform(xp, math.prod(shape), key, seed, stream) - 1.0) * bound) * math.sqrt(2.0)
    return (mean + std * xp.clip(values, -2.0, 2.0)).astype(as_dtype(dtype)).reshape(shape)


truncated_gaussian.infer(gaussian_random_infer)
truncated_gaussian.example(
    lambda: [
        Example((np.array(7),), (), {"shape": (4,), "dtype": "float64", "seed": 2}),
        Example((np.array(7),), (np.full(3, 2.0),), {"shape": (3,), "mean": 2.0, "std": 0.0, "dtype": "float64"}),
    ]
)


@op(no_gradient=RANDOM)
def exponential(
    xp,
    key=None,
    *,
    shape: tuple[Size, ...],
    rate: Positive = 1.0,
    dtype: Dtype = "float32",
    seed: int = 0,
    stream: int = 0,
):
    """Numbers from the exponential distribution: density ``rate exp(-rate x)``, mean ``1 / rate``."""
    values = -xp.log1p(-_uniform(xp, math.prod(shape), key, seed, stream)) / rate
    return values.astype(as_dtype(dtype)).reshape(shape)


@exponential.infer
def exponential_infer(key, *, shape, rate, dtype, seed, stream):
    return _random_type(shape, dtype, key)


exponential.example(
    lambda: [
        Example((np.array(7),), (), {"shape": (4,), "rate": 2.0, "dtype": "float64"}),
        Example((np.array(7),), (np.zeros((0, 2)),), {"shape": (0, 2), "dtype": "float64"}),
    ]
)


@op(no_gradient=RANDOM)
def randint(
    xp,
    key=None,
    *,
    shape: tuple[Size, ...],
    low: int = 0,
    high: int,
    dtype: Literal["int32", "int64"] = "int64",
    seed: int = 0,
    stream: int = 0,
):
    """Integers from `low` to `high` - 1, all equally likely."""
    drawn = xp.floor(_uniform(xp, math.prod(shape), key, seed, stream) * (high - low)).astype("int64")
    return (low + xp.minimum(drawn, high - low - 1)).astype(dtype).reshape(shape)


@randint.infer
def randint_infer(key, *, shape, low, high, dtype, seed, stream):
    if not 0 < high - low <= 2**53:
        raise ProgramError(
            f"the range low to high - 1 must have 1 to 2**53 integers, not {low} to {high} - 1", "bad_attr"
        )
    if dtype == "int32" and not -(2**31) <= low < high <= 2**31:
        raise ProgramError(f"int32 cannot hold all integers from {low} to {high} - 1", "bad_attr")
    return TensorType(_random_type(shape, "float64", key).shape, dtype)


randint.example(
    lambda: [
        Example((np.array(7),), (), {"shape": (2, 3), "high": 10}),
        Example((np.array(7),), (np.full(3, 5),), {"shape": (3,), "low": 5, "high": 6, "dtype": "int32"}),
    ]
)


@op(no_gradient=RANDOM)
def randperm(xp, key=None, *, n: Size, dtype: Literal["int32", "int64"] = "int64", seed: int = 0, stream: int = 0):
    """The integers 0 to `n` - 1 in a random order."""
    return xp.argsort(_uniform(xp, n, key, seed, stream), kind="stable").astype(dtype)


@randperm.infer
def randperm_infer(key, *, n, dtype, seed, stream):
    if dtype == "int32" and n > 2**31:
        raise ProgramError(f"int32 cannot hold all integers below {n}", "bad_attr")
    return TensorType(_random_type((n,), "float64", key).shape, dtype)


randperm.example(
    lambda: [
        Example((np.array(7),), (), {"n": 5}),
        Example((np.array(7),), (np.array([0]),), {"n": 1, "dtype": "int32"}),
        Example((np.array(7),), (np.zeros(0, int),), {"n": 0}),
    ]
)


@op(no_gradient=RANDOM)
def bernoulli(xp, p, key=None, *, seed: int = 0, stream: int = 0):
    """``P(out = 1) = p``: 1 with probability `p`, else 0, for each element of p; in the dtype of p.

    The elements of p must be from 0 to 1.
    """
    if not bool(xp.all((p >= 0) & (p <= 1))):
        raise ExecutionError("probabilities must be from 0 to 1", "bad_probability")
    drawn = _uniform(xp, p.size, key, seed, stream).reshape(p.shape)
    return (drawn < p.astype("float64")).astype(p.dtype)


@bernoulli.infer
def bernoulli_infer(p, key, *, seed, stream):
    _random_type((), p.dtype, key)
    return p


bernoulli.example(
    lambda: [
        Example((np.array([0.3, 0.7]), np.array(7)), ()),
        Example((np.array([[0.0, 1.0]]), np.array(7)), (np.array([[0.0, 1.0]]),)),
        Example((np.zeros((0, 2)), np.array(7)), (np.zeros((0, 2)),)),
    ]
)


@op(no_gradient=RANDOM)
def multinomial(xp, p, key=None, *, num_samples: Size = 1, replacement: bool = False, seed: int = 0, stream: int = 0):
    """Positions, int64 [..., num_samples], drawn with probabilities proportional to p [..., n].

    Without `replacement` no position is drawn twice (Gumbel top-k, Vieira 2014).
    """
    rows, n = math.prod(p.shape[:-1]), p.shape[-1]
    weights = p.reshape(rows, n).astype("float64")
    usable = int(xp.min(xp.sum(weights > 0, axis=1))) if rows else num_samples
    if bool(xp.any(weights < 0)) or not bool(xp.all(xp.isfinite(weights))):
        raise ExecutionError("probabilities must be finite and not negative", "bad_probability")
    if usable < (min(num_samples, 1) if replacement else num_samples):
        raise ExecutionError(
            f"cannot draw {num_samples} positions: too few in a row have a probability above 0",
            "bad_probability",
        )
    shape = (*p.shape[:-1], num_samples)
    if rows == 0 or num_samples == 0:
        return xp.zeros(shape, "int64")
    if replacement:
        drawn = _uniform(xp, rows * num_samples, key, seed, stream).reshape(rows, num_samples)
        return _inverted(xp, weights, drawn).reshape(shape)
    noise = -xp.log(-xp.log1p(-_uniform(xp, rows * n, key, seed, stream).reshape(rows, n)) + 2.0**-60)
    score = xp.where(weights > 0, xp.log(xp.where(weights > 0, weights, 1.0)) + noise, -np.inf)
    return xp.argsort(-score, axis=1, kind="stable")[:, :num_samples].astype("int64").reshape(shape)


def _inverted(xp, weights, drawn):
    """The position of each number in [0, 1) of `drawn` [rows, k] in the sums of `weights` [rows, n]: int64 [rows,
    k].
    """
    total = xp.cumsum(weights / xp.max(weights, axis=1, keepdims=True), axis=1)
    # rounding may give the end of the row, which is no position
    drawn = xp.minimum(drawn * total[:, -1:], xp.nextafter(total[:, -1:], 0.0))
    low = xp.zeros(drawn.shape, "int64")  # position of the first total above the number, by bisection
    high = xp.full(drawn.shape, weights.shape[1] - 1, "int64")
    for _ in range(weights.shape[1].bit_length()):
        middle = (low + high) // 2
        above = xp.take_along_axis(total, middle, axis=1) > drawn
        low, high = xp.where(above, low, xp.minimum(middle + 1, high)), xp.where(above, middle, high)
    return low


@multinomial.infer
def multinomial_infer(p, key, *, num_samples, replacement, seed, stream):
    check_key(key)
    if not p.is_float or p.rank == 0:
        raise ProgramError(f"p must be floats with at least one axis, not {p}", "dtype_mismatch")
    if not replacement and 0 <= p.shape[-1] < num_samples:
        raise ProgramError(f"cannot draw {num_samples} positions from {p}", "bad_attr")
    return TensorType((*p.shape[:-1], num_samples), "int64")


_P = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
multinomial.example(
    lambda: [
        Example((_P, np.array(7)), (np.array([[1], [2]]),)),
        Example((_P, np.array(7)), (np.array([[1, 1], [2, 2]]),), {"num_samples": 2, "replacement": True}),
        Example((np.array([0.2, 0.3, 0.5]), np.array(7)), (), {"num_samples": 3}),
        Example((_P[:0], np.array(7)), (np.zeros((0, 2), int),), {"num_samples": 2, "replacement": True}),
    ]
)
