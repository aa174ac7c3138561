"""The vector functions against the same functions in more digits, over the whole range of their dtype."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import special

from core.codegen import machine, vmath
from core.codegen.llvm import I64, Function

INF, NAN = math.inf, math.nan
WIDER = {"float32": np.float64, "float64": np.longdouble}
BLOCK = 4096  # elements; a multiple of all lanes


@dataclass(frozen=True)
class Case:
    """What a function must be.

    exact:  the function, for arrays of float64 and of long doubles.
    single: the largest error allowed in float32, in units of the last place of the exact result.
    double: the same in float64.
    near:   where half of the float64 samples lie; the others are spread over all magnitudes.
    """

    exact: Callable[..., Any]
    single: float
    double: float
    near: tuple[float, float] = (-5.0, 5.0)


def exact_sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def exact_erf(x):
    if x.dtype == np.float64:
        return special.erf(x)
    return np.where(np.abs(x) < 2, _erf_series(x), np.copysign(1 - _erfc_fraction(np.abs(x)), x))


def exact_erfc(x):
    if x.dtype == np.float64:
        return special.erfc(x)
    tail = _erfc_fraction(np.abs(x))
    return np.where(np.abs(x) < 2, 1 - _erf_series(x), np.where(x < 0, 2 - tail, tail))


def _erf_series(x):
    """``2 / sqrt(pi) exp(-x^2) (x + 2 x^3 / 3 + 4 x^5 / (3 5) + ...)`` for |x| < 2: no term is negative."""
    x = np.clip(x, -2, 2)
    term = total = x
    for n in range(1, 60):
        term = term * (2 * x * x / (2 * n + 1))
        total = total + term
    return total * np.exp(-x * x) / np.sqrt(np.arctan(np.longdouble(1)))


def _erfc_fraction(x):
    """``exp(-x^2) / sqrt(pi) / (x + (1/2) / (x + (2/2) / (x + (3/2) / ...)))`` for x >= 2."""
    x = np.clip(x, 2, 100)
    below = x
    for n in range(200, 0, -1):
        below = x + (n / 2) / below
    # x^2 in two parts: its last bits count once they stand in an exponent
    high = np.round(x * 1024) / 1024
    return np.exp(-high * high) * np.exp(-(x - high) * (x + high)) / below / np.sqrt(4 * np.arctan(np.longdouble(1)))


CASES = {
    "exp": Case(np.exp, 0.9, 0.9, (-750.0, 720.0)),
    "sigmoid": Case(exact_sigmoid, 2.2, 2.2, (-750.0, 40.0)),
    "tanh": Case(np.tanh, 2.5, 2.5),
    "log": Case(np.log, 0.9, 0.9, (0.4, 2.5)),
    "erf": Case(exact_erf, 1.3, 1.3, (-6.5, 6.5)),
    "erfc": Case(exact_erfc, 4.5, 6.5, (-6.5, 27.5)),
    "sin": Case(np.sin, 1.6, 1.6, (-100.0, 100.0)),
    "cos": Case(np.cos, 1.6, 1.6, (-100.0, 100.0)),
    "tan": Case(np.tan, 3.0, 3.0, (-100.0, 100.0)),
}


@cache
def compiled(name: str, dtype: str, lanes: int) -> Callable[..., np.ndarray]:
    """The function over whole arrays, `lanes` elements at a time."""
    count = vmath.FUNCTIONS[name].__code__.co_argcount - 1
    f = Function("kernel", [("out", "ptr"), *((f"x{i}", "ptr") for i in range(count)), ("n", "int64")])
    with f.loop(I64(0), f.param("n"), lanes) as i:
        values = [f.load(f.at(f.param(f"x{k}"), i, dtype), dtype, lanes) for k in range(count)]
        f.store(vmath.FUNCTIONS[name](f, *values), f.at(f.param("out"), i, dtype))
    library = machine.load("\n".join([*sorted(f.declarations), f.text(), "attributes #0 = { nounwind }"]))
    kernel = library.function("kernel", *[ctypes.c_void_p] * (count + 1), ctypes.c_int64)

    def run(*arrays: np.ndarray) -> np.ndarray:
        size = -(-arrays[0].size // BLOCK) * BLOCK
        padded = [np.resize(np.asarray(a, dtype), size) for a in arrays]
        out = np.empty(size, dtype)
        kernel(out.ctypes.data, *(a.ctypes.data for a in padded), size)
        return out[: arrays[0].size]

    run.library = library  # type: ignore[attr-defined]  # the code lives as long as it
    return run


def units(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """How far `found` is from the wider `exact`, in units of the last place of its dtype; inf where only one is NaN."""
    info = np.finfo(found.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        _, exponent = np.frexp(np.maximum(np.abs(exact), info.tiny))
        # an overflow counts as the next power of 2
        reached = np.where(np.isinf(found), np.copysign(np.ldexp(exact.dtype.type(1), info.maxexp), exact), found)
        distance = np.abs(reached - exact) / np.ldexp(exact.dtype.type(1), exponent - 1 - info.nmant)
    distance[(found == rounded) | (np.isnan(found) & np.isnan(exact))] = 0
    distance[np.isnan(distance)] = INF
    distance[(found == 0) & (rounded == 0) & (np.signbit(found) != np.signbit(exact))] = INF
    return distance


def assert_within(bound: float, found: np.ndarray, exact: np.ndarray, *arrays: np.ndarray) -> None:
    error = units(found, exact)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (
        f"{error[worst]:.2f} ulp at {[a[worst] for a in arrays]}: {found[worst]}, not {exact[worst]}"
    )


# every 2053rd of all float32: 2,092,000 of them, of all signs, magnitudes, denormals, infinities and NaN
SINGLES = np.arange(0, 2**32, 2053, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_float32_is_within_its_bound_over_the_whole_range(name):
    found = compiled(name, "float32", 16)(SINGLES)

    with np.errstate(all="ignore"):
        assert_within(CASES[name].single, found, CASES[name].exact(SINGLES.astype(np.float64)), SINGLES)


def doubles(near: tuple[float, float], size: int) -> np.ndarray:
    random = np.random.default_rng(7)
    anywhere = random.integers(0, 2**64, size, dtype=np.uint64).view(np.float64)
    moderate = random.choice([-1.0, 1.0], size) * np.exp2(random.uniform(-60, 11, size))
    return np.concatenate([anywhere, moderate, random.uniform(*near, 2 * size)])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs long doubles longer than doubles")
@pytest.mark.parametrize("name", CASES)
def test_float64_is_within_its_bound_over_the_whole_range(name):
    x = doubles(CASES[name].near, 4 * BLOCK)

    found = compiled(name, "float64", 8)(x)

    with np.errstate(all="ignore"):
        assert_within(CASES[name].double, found, CASES[name].exact(x.astype(np.longdouble)), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_do_not_depend_on_the_lanes(name, dtype):
    with np.errstate(all="ignore"):
        x = doubles(CASES[name].near, BLOCK).astype(dtype)

    results = [compiled(name, dtype, lanes)(x) for lanes in (1, 8, 16)]

    assert all(np.array_equal(each, results[0], equal_nan=True) for each in results)
