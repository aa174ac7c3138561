"""Random numbers from a counter: the same key, seed, stream and position give the same number, on any device.

A step replays bit for bit because nothing is hidden: the key comes in as a variable. The reader gives each program one
key variable, which every step sets anew and every trip of a loop advances, and each op its own stream.
"""

from __future__ import annotations

import math

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import as_dtype
from core.registry import Dtype, Example, op

__all__ = ["philox"]

_RANDOM = "its result does not depend on a floating-point input"


def philox(xp, counter, key):
    """Philox4x32 with ten rounds: four 32-bit words for each counter.

    counter: four uint64 arrays holding 32-bit words. key: two Python ints below 2**32. Returns four such arrays.
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
    # rounding to a shorter dtype may reach `high`, which is not in the range
    return xp.minimum(values.astype(kind), np.nextafter(kind.type(high), kind.type(low))).reshape(shape)


def _check_key(key) -> None:
    if key is not None and (key.dtype != "int64" or key.rank != 0):
        raise ProgramError(f"key must be int64[], not {key}", "type_mismatch")


def _random_type(shape, dtype, key):
    _check_key(key)
    if any(n < 0 for n in shape) or dtype not in ("float16", "float32", "float64"):
        raise ProgramError(f"random numbers need known sizes and a float dtype, not {dtype}{list(shape)}", "bad_attr")
    return TensorType(shape, dtype)


@op(no_gradient=_RANDOM)
def uniform_random(
    xp,
    key=None,
    *,
    shape: tuple[int, ...],
    min: float = -1.0,
    max: float = 1.0,
    dtype: Dtype = "float32",
    seed: int = 0,
    stream: int = 0,
):
    """Numbers evenly spread over [min, max)."""
    return _between(xp, shape, min, max, dtype, key, seed, stream)


@uniform_random.infer
def uniform_random_infer(key, *, shape, min, max, dtype, seed, stream):
    if not min < max:
        raise ProgramError(f"min {min} must be below max {max}", "bad_attr")
    return _random_type(shape, dtype, key)


uniform_random.example(
    lambda: [
        Example((np.array(7),), (), {"shape": (2, 3), "dtype": "float64"}),
        Example((np.array(7),), (), {"shape": (), "min": 0.0, "max": 5.0}),
    ]
)


@op(no_gradient=_RANDOM)
def uniform_random_like(xp, x, key=None, *, seed: int = 0, stream: int = 0):
    """Numbers evenly spread over [0, 1), with the shape and dtype of x."""
    return _between(xp, x.shape, 0.0, 1.0, str(x.dtype), key, seed, stream)


@uniform_random_like.infer
def uniform_random_like_infer(x, key, *, seed, stream):
    _random_type((), x.dtype, key)
    return x


uniform_random_like.example(
    lambda: [
        Example((np.ones((2, 3)), np.array(7)), (), {"seed": 1}),
        Example((np.ones((0, 3)), np.array(7)), (np.ones((0, 3)),)),
    ]
)


@op(no_gradient=_RANDOM)
def gaussian_random(
    xp,
    key=None,
    *,
    shape: tuple[int, ...],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: Dtype = "float32",
    seed: int = 0,
    stream: int = 0,
):
    """Numbers from the normal distribution with that mean and standard deviation (Box and Muller 1958)."""
    count = math.prod(shape)
    both = _uniform(xp, 2 * count, key, seed, stream)
    radius = xp.sqrt(-2.0 * xp.log1p(-both[:count]))
    return (mean + std * radius * xp.cos(2.0 * math.pi * both[count:])).astype(as_dtype(dtype)).reshape(shape)


@gaussian_random.infer
def gaussian_random_infer(key, *, shape, mean, std, dtype, seed, stream):
    if not std >= 0:
        raise ProgramError(f"std must not be negative: {std}", "bad_attr")
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
    _check_key(key)
    return key


next_key.example(lambda: [Example((np.array(7),), ()), Example((np.array(-1),), ())])
