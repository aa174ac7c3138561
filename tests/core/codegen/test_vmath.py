"""The vector functions against the same functions with more digits, over the whole range of their dtype."""

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
    """The bounds of a function.

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
    # x^2 in two parts: its last bits matter in an exponent
    high = np.round(x * 1024) / 1024
    return np.exp(-high * high) * np.exp(-(x - high) * (x + high)) / below / np.sqrt(4 * np.arctan(np.longdouble(1)))


CASES = {
    "arccos": Case(np.arccos, 1.3, 1.3, (-1.0, 1.0)),
    "arccosh": Case(np.arccosh, 2.0, 2.0, (1.0, 5.0)),
    "arcsin": Case(np.arcsin, 2.0, 2.0, (-1.0, 1.0)),
    "arcsinh": Case(np.arcsinh, 2.0, 2.0),
    "arctan": Case(np.arctan, 1.5, 1.5),
    "arctanh": Case(np.arctanh, 2.2, 2.2, (-1.0, 1.0)),
    "cos": Case(np.cos, 1.6, 1.6, (-100.0, 100.0)),
    "cosh": Case(np.cosh, 1.8, 1.8, (-712.0, 712.0)),
    "erf": Case(exact_erf, 1.4, 1.4, (-6.5, 6.5)),
    "erfc": Case(exact_erfc, 4.6, 6.5, (-6.5, 27.5)),
    "exp": Case(np.exp, 0.9, 0.9, (-750.0, 720.0)),
    "exp2": Case(np.exp2, 0.9, 0.9, (-1080.0, 1030.0)),
    "expm1": Case(np.expm1, 1.8, 1.8, (-50.0, 720.0)),
    "log": Case(np.log, 1.0, 1.0, (0.4, 2.5)),
    "log10": Case(np.log10, 1.1, 1.1, (0.4, 2.5)),
    "log1p": Case(np.log1p, 1.6, 1.6, (-1.0, 2.0)),
    "log2": Case(np.log2, 1.1, 1.1, (0.4, 2.5)),
    "sigmoid": Case(exact_sigmoid, 2.5, 2.5, (-750.0, 40.0)),
    "sin": Case(np.sin, 1.6, 1.6, (-100.0, 100.0)),
    "sinh": Case(np.sinh, 2.1, 2.1, (-712.0, 712.0)),
    "tan": Case(np.tan, 3.7, 3.0, (-100.0, 100.0)),
    "tanh": Case(np.tanh, 2.6, 2.6),
}
OF_TWO = {
    "arctan2": Case(np.arctan2, 1.6, 1.6),
    "logaddexp": Case(np.logaddexp, 2.0, 2.0, (-50.0, 50.0)),
    "power": Case(np.power, 0.6, 1.5),
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

    run.library = library  # type: ignore[attr-defined]  # keeps the code alive
    return run


def units(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance of `found` from the wider `exact` in units of its last place; inf where only one is NaN."""
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


@pytest.mark.parametrize("name", [*CASES, *OF_TWO])
def test_the_docstring_states_the_error_bound(name):
    case = (CASES | OF_TWO)[name]
    also = "" if case.double == case.single else f"; float64 {case.double:g}"

    assert f"Within {case.single:g} ulp{also}" in vmath.FUNCTIONS[name].__doc__


def test_every_function_has_an_error_bound():
    assert (CASES | OF_TWO).keys() == vmath.FUNCTIONS.keys()


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
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_next_to_quarter_turns_keep_all_digits(name, dtype):
    if dtype == "float64" and np.finfo(np.longdouble).nmant < 60:
        pytest.skip("needs long doubles longer than doubles")
    wider = WIDER[dtype]
    quarters = np.arange(1, 200_001) * (2 * np.arctan(wider(1)))
    x = quarters.astype(dtype)

    found = compiled(name, dtype, 8)(x)

    bound = CASES[name].single if dtype == "float32" else CASES[name].double
    assert_within(bound, found, CASES[name].exact(x.astype(wider)), x)


def pairs(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special numbers, and pairs of random numbers."""
    telling = [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 7.0, 1e-320, 1e-42, 2.0**24 + 1, 2.0**24 - 1, 2.0**53 + 2, 1e15 + 1, INF]
    grid = np.array([*telling, *(-x for x in telling), NAN])
    random = np.random.default_rng(9)
    with np.errstate(all="ignore"):
        some = [random.permutation(doubles(OF_TWO[name].near, 4 * BLOCK)).astype(dtype) for _ in range(2)]
    # bases near 1 with powers for which the result is finite, and the other way round
    near_one = 1 + random.uniform(-1e-2, 1e-2, BLOCK)
    steep = random.uniform(-4000, 4000, BLOCK)
    wide = np.exp2(random.uniform(-100, 100, BLOCK))
    gentle = random.uniform(-1, 1, BLOCK)
    a, b = np.meshgrid(grid, grid)
    return (
        np.concatenate([a.ravel(), some[0], near_one, wide]).astype(dtype),
        np.concatenate([b.ravel(), some[1], steep, gentle]).astype(dtype),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_arguments_are_within_their_bounds(name, dtype):
    if dtype == "float64" and np.finfo(np.longdouble).nmant < 60:
        pytest.skip("needs long doubles longer than doubles")
    case = OF_TWO[name]
    with np.errstate(all="ignore"):
        a, b = pairs(name, dtype)
        exact = case.exact(a.astype(WIDER[dtype]), b.astype(WIDER[dtype]))

    found = compiled(name, dtype, machine.lanes(dtype))(a, b)

    bound = case.single if dtype == "float32" else case.double
    if name == "logaddexp":  # near 0 its digits are those of the operands
        with np.errstate(all="ignore"):
            moved = np.copysign(np.maximum(np.abs(exact), np.abs(np.maximum(a, b))), exact)
            distance = (found - exact).astype(dtype)
            usual = np.isfinite(exact) & (np.abs(exact) < np.finfo(dtype).max)
            assert np.all(np.abs(distance[usual]) <= bound * np.spacing(np.abs(moved[usual]).astype(dtype)))
            found, exact = found[~usual], exact[~usual]
            a, b = a[~usual], b[~usual]
    assert_within(bound, found, exact, a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_of_the_base_have_exact_logarithms(dtype):
    info = np.finfo(dtype)
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    twos = np.ldexp(np.ones(1, dtype), exponents)
    tens = np.arange(11 if dtype == "float32" else 23)

    assert np.array_equal(compiled("log2", dtype, 8)(twos), exponents)
    assert np.array_equal(compiled("exp2", dtype, 8)(exponents), twos)
    assert np.array_equal(compiled("log10", dtype, 8)(np.array([float(f"1e{k}") for k in tens])), tens)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_infinities_nan_zeros_and_denormals_give_numpys_results(name, dtype):
    least = float(np.finfo(dtype).smallest_subnormal)
    x = np.array([INF, -INF, NAN, 0.0, -0.0, least, -least, 1.0, -1.0], dtype)
    with np.errstate(all="ignore"):
        expected = CASES[name].exact(x.astype(np.float64)).astype(dtype)

    found = compiled(name, dtype, 8)(x)

    real = ~np.isnan(expected)
    assert np.array_equal(np.signbit(found[real]), np.signbit(expected[real]))
    assert_within(2.0, found, expected.astype(WIDER[dtype]), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*CASES, *OF_TWO])
def test_the_bits_do_not_depend_on_the_lanes(name, dtype):
    with np.errstate(all="ignore"):
        arrays = (doubles(CASES[name].near, BLOCK).astype(dtype),) if name in CASES else pairs(name, dtype)

    results = [compiled(name, dtype, lanes)(*arrays) for lanes in (1, 8, 16)]

    assert all(np.array_equal(each, results[0], equal_nan=True) for each in results)


@pytest.mark.skipif("avx512vl" not in machine.cpu().features, reason="needs a CPU with AVX-512 to do without it")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*CASES, *OF_TWO])
def test_the_bits_do_not_depend_on_the_instructions(name, dtype, monkeypatch):
    with np.errstate(all="ignore"):
        arrays = (doubles(CASES[name].near, BLOCK).astype(dtype),) if name in CASES else pairs(name, dtype)
    expected = compiled(name, dtype, 8)(*arrays)
    older = machine.Cpu("haswell", "+avx2,+fma", 32, converts_float16=True, dots_bfloat16=False)
    monkeypatch.setattr(machine, "cpu", lambda: older)

    found = compiled.__wrapped__(name, dtype, 8)(*arrays)

    assert np.array_equal(found, expected, equal_nan=True)
