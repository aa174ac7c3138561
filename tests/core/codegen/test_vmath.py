"""The vector functions against the same functions with more digits, over the whole range of their dtype."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import special

from core.codegen import machine, vmath
from core.codegen.cpus import NAMED, cpu, generating_for
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
    least:  units are those of this number where the result is smaller: it has zeros that no float is.
    """

    exact: Callable[..., Any]
    single: float
    double: float
    near: tuple[float, float] = (-5.0, 5.0)
    least: float = 0.0


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


PI = 4 * np.arctan(np.longdouble(1))


def exact_erfinv(x):
    slow = (np.abs(x) > 1e-9) & (np.abs(x) <= 1)  # scipy takes microseconds for the others
    found = np.where(np.abs(x) < 1e-3, x * (np.sqrt(PI) / 2), x * np.nan).astype(x.dtype)
    found[slow] = special.erfinv(x[slow].astype(np.float64))
    if x.dtype == np.float64:
        return found
    with np.errstate(all="ignore"):
        for _ in range(2):  # Newton's method; where x is near 1, on the complement
            rest = np.where(
                np.abs(x) < 0.5, exact_erf(found) - x, np.sign(x) * (1 - np.abs(x) - exact_erfc(np.abs(found)))
            )
            found = np.where(
                np.isfinite(found) & (x != 0), found - rest * np.exp(found * found) * np.sqrt(PI) / 2, found
            )
    return found


MOVED = 25


def exact_lgamma(x):
    """By Stirling's series from 25 on, the product of the arguments on the way, and reflection."""
    if x.dtype == np.float64:
        return np.where(np.abs(x) < 1e-300, -np.log(np.abs(x)), np.where(np.isinf(x), np.abs(x), special.gammaln(x)))
    size = np.abs(x)
    near = size < MOVED
    z = np.where(near, size + MOVED, size)
    steps = np.arange(MOVED, dtype=x.dtype).reshape(-1, *(1 for _ in x.shape))
    product = np.prod(np.where(near, size + steps, 1), 0)
    halves = np.arange(1, 8)
    coefficients = (
        np.longdouble(1) * np.array([1, -1, 1, -1, 1, -691, 1]) / np.array([12, 360, 1260, 1680, 1188, 360360, 156])
    )
    series = sum(c / z ** (2 * k - 1) for k, c in zip(halves, coefficients, strict=True))
    above = (z - 0.5) * np.log(z) - z + np.log(2 * PI) / 2 + series - np.log(product)
    above = np.where(np.isinf(size), np.inf, above)
    turned = np.log(PI) - np.log(size * np.abs(np.sin(PI * (x - np.rint(x))))) - above
    return np.where((x < 0) & np.isfinite(x), turned, above)


def exact_digamma(x):
    """By its series from 25 on, the sum of the reciprocals on the way, and reflection."""
    if x.dtype == np.float64:
        return special.psi(x)
    y = np.where(x < 0, 1 - x, x)
    near = y < MOVED
    z = np.where(near, y + MOVED, y)
    steps = np.arange(MOVED, dtype=x.dtype).reshape(-1, *(1 for _ in x.shape))
    total = np.sum(np.where(near, 1 / (y + steps), 0), 0)
    coefficients = (
        np.longdouble(1) * np.array([1, -1, 1, -1, 1, -691, 1]) / np.array([12, 120, 252, 240, 132, 32760, 12])
    )
    series = sum(c / z ** (2 * k) for k, c in enumerate(coefficients, 1))
    above = np.log(z) - 1 / (2 * z) - series - total
    rest = x - np.rint(x)
    turned = np.where(rest == 0, np.nan, above - PI * np.cos(PI * rest) / np.sin(PI * rest))
    return np.where(x < 0, turned, np.where(x == 0, -1 / x, above))


def exact_floor_divide(x, y):
    """In the dtype of the operands before they were widened, as numpy rounds each of its steps."""
    narrow = np.float32 if x.dtype == np.float64 else np.float64
    return np.floor_divide(x.astype(narrow), y.astype(narrow)).astype(x.dtype)


CASES = {
    "arccos": Case(np.arccos, 1.3, 1.3, (-1.0, 1.0)),
    "arccosh": Case(np.arccosh, 2.0, 2.0, (1.0, 5.0)),
    "arcsin": Case(np.arcsin, 2.0, 2.0, (-1.0, 1.0)),
    "arcsinh": Case(np.arcsinh, 2.0, 2.0),
    "arctan": Case(np.arctan, 1.5, 1.5),
    "arctanh": Case(np.arctanh, 2.2, 2.2, (-1.0, 1.0)),
    "cos": Case(np.cos, 1.6, 1.6, (-100.0, 100.0)),
    "cosh": Case(np.cosh, 1.8, 1.8, (-712.0, 712.0)),
    "digamma": Case(exact_digamma, 1, 4, (-30.0, 30.0), least=32.0),
    "erf": Case(exact_erf, 1.4, 1.4, (-6.5, 6.5)),
    "erfc": Case(exact_erfc, 4.6, 6.5, (-6.5, 27.5)),
    "erfinv": Case(exact_erfinv, 0.6, 8, (-1.0, 1.0)),
    "exp": Case(np.exp, 0.9, 0.9, (-750.0, 720.0)),
    "exp2": Case(np.exp2, 0.9, 0.9, (-1080.0, 1030.0)),
    "expm1": Case(np.expm1, 1.8, 1.8, (-50.0, 720.0)),
    "lgamma": Case(exact_lgamma, 1, 8, (-30.0, 30.0), least=1.0),
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
    "floor_divide": Case(exact_floor_divide, 0, 0, (-50.0, 50.0)),
    "fmod": Case(np.fmod, 0, 0, (-50.0, 50.0)),
    "hypot": Case(np.hypot, 0.6, 1.3),
    "logaddexp": Case(np.logaddexp, 2.0, 2.0, (-50.0, 50.0)),
    "mod": Case(np.mod, 0.5, 0.5, (-50.0, 50.0)),
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


def units(found: np.ndarray, exact: np.ndarray, least: float = 0.0) -> np.ndarray:
    """The distance of `found` from the wider `exact` in units of its last place, or of that of `least`; inf where only
    one is NaN.
    """
    info = np.finfo(found.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        _, exponent = np.frexp(np.maximum(np.abs(exact), max(info.tiny, least)))
        # an overflow counts as the next power of 2
        reached = np.where(np.isinf(found), np.copysign(np.ldexp(exact.dtype.type(1), info.maxexp), exact), found)
        distance = np.abs(reached - exact) / np.ldexp(exact.dtype.type(1), exponent - 1 - info.nmant)
    distance[(found == rounded) | (np.isnan(found) & np.isnan(exact))] = 0
    distance[np.isnan(distance)] = INF
    distance[(found == 0) & (rounded == 0) & (np.signbit(found) != np.signbit(exact))] = INF
    return distance


def assert_within(bound: float, found: np.ndarray, exact: np.ndarray, *arrays: np.ndarray, least: float = 0.0) -> None:
    error = units(found, exact, least)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_float32_is_within_its_bound_over_the_whole_range(name):
    found = compiled(name, "float32", 16)(SINGLES)

    with np.errstate(all="ignore"):
        exact = CASES[name].exact(SINGLES.astype(np.float64))
        assert_within(CASES[name].single, found, exact, SINGLES, least=CASES[name].least)


def doubles(near: tuple[float, float], size: int) -> np.ndarray:
    random = np.random.default_rng(7)
    anywhere = random.integers(0, 2**64, size, dtype=np.uint64).view(np.float64)
    moderate = random.choice([-1.0, 1.0], size) * np.exp2(random.uniform(-60, 11, size))
    return np.concatenate([anywhere, moderate, random.uniform(*near, 2 * size)])


@pytest.mark.sampled(2)
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs long doubles longer than doubles")
@pytest.mark.parametrize("name", CASES)
def test_float64_is_within_its_bound_over_the_whole_range(name):
    x = doubles(CASES[name].near, 4 * BLOCK)

    found = compiled(name, "float64", 8)(x)

    with np.errstate(all="ignore"):
        exact = CASES[name].exact(x.astype(np.longdouble))
        assert_within(CASES[name].double, found, exact, x, least=CASES[name].least)


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


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*CASES, *OF_TWO])
def test_the_bits_do_not_depend_on_the_lanes(name, dtype):
    with np.errstate(all="ignore"):
        arrays = (doubles(CASES[name].near, BLOCK).astype(dtype),) if name in CASES else pairs(name, dtype)

    results = [compiled(name, dtype, lanes)(*arrays) for lanes in (1, 8, 16)]

    assert all(np.array_equal(each, results[0], equal_nan=True) for each in results)


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.skipif(not cpu().scales, reason="needs a CPU with AVX-512 to do without it")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*CASES, *OF_TWO])
def test_the_bits_do_not_depend_on_the_instructions(name, dtype):
    with np.errstate(all="ignore"):
        arrays = (doubles(CASES[name].near, BLOCK).astype(dtype),) if name in CASES else pairs(name, dtype)
    expected = compiled(name, dtype, 8)(*arrays)

    with generating_for(NAMED["x86-64-v3"]):
        found = compiled.__wrapped__(name, dtype, 8)(*arrays)

    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", [1, 2, 3, 7, 20])
def test_polygamma_of_every_order_agrees_with_hurwitz_zeta(order, dtype, monkeypatch):
    function = vmath.polygamma(order)
    monkeypatch.setitem(vmath.FUNCTIONS, function.__name__, function)
    random = np.random.default_rng(order)
    x = np.concatenate([np.exp2(random.uniform(-20, 20, 3000)), random.uniform(-6, 20, 3000)])
    x = np.concatenate([x[np.abs(x - np.rint(x)) > 1e-3 / np.abs(x)], [0.0, 1.0, 2.0, INF, -INF, -1.0, -2.0]]).astype(
        dtype
    )
    sign = -1.0 if order % 2 == 0 else 1.0
    with np.errstate(all="ignore"):
        wanted = sign * math.factorial(order) * special.zeta(order + 1.0, x.astype(np.float64))

    found = compiled(function.__name__, dtype, 8)(x)

    # around the zeros below 0, the terms on both sides of the reflection cancel
    scale = math.pi ** (order + 1) * math.factorial(order) * 1e-16 if order % 2 == 0 else 0.0
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            found, wanted.astype(dtype), rtol=1e-12 if dtype == "float64" else 3e-7, atol=10 * scale
        )


UNDERFLOW = 0x10
"""FE_UNDERFLOW of x86: the processor sets it where it took the slow way to a denormal number or to zero."""

HIDDEN = {
    ("exp", (-1e9,)), ("exp", (-800.0,)), ("exp2", (-1e9,)), ("logaddexp", (1.0, -1e9)),  # 0
    ("exp", (-90.1, -740.1)), ("exp2", (-130.3, -1070.3)), ("erfc", (9.7, 27.0)),  # denormal
}  # fmt: skip
"""(function, its arguments, or the argument in float32 and in float64), with a result below the normal numbers."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the flags of an x86 processor")
@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 4), ("float32", 8), ("float32", 16), ("float64", 8)])
@pytest.mark.parametrize(("name", "arguments"), sorted(HIDDEN))
@pytest.mark.parametrize("named", ["x86-64-v3", None])
def test_the_exponential_of_a_hidden_score_takes_no_longer_than_others(name, arguments, dtype, lanes, named):
    if name != "logaddexp":
        arguments = arguments[-1:] if dtype == "float64" else arguments[:1]
    with generating_for(NAMED[named]) if named else nullcontext():
        run = compiled.__wrapped__(name, dtype, lanes)
    arrays = [np.full(BLOCK, each) for each in arguments]

    assert not underflows(run, arrays)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the flags of an x86 processor")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_denormal_product_raises_the_flag(dtype, monkeypatch):
    monkeypatch.setitem(vmath.FUNCTIONS, "square", lambda f, x: f.binary("fmul", x, x))

    assert underflows(compiled("square", dtype, 8), [np.full(BLOCK, 1e-21 if dtype == "float32" else 1e-161)])


def underflows(run, arrays) -> bool:
    flags = ctypes.CDLL(None)
    flags.feclearexcept(UNDERFLOW)
    run(*arrays)
    return bool(flags.fetestexcept(UNDERFLOW))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("named", ["x86-64-v3", None])
def test_the_smallest_exponentials_are_rounded_to_whole_multiples_of_the_smallest_number(dtype, named):
    x = np.linspace(-104.2, -86.5, 20001) if dtype == "float32" else np.linspace(-745.3, -707.5, 20001)
    x = x.astype(dtype)
    wanted = np.exp(x.astype(WIDER[dtype]))
    with generating_for(NAMED[named]) if named else nullcontext():
        run = compiled.__wrapped__("exp", dtype, 8)

    found = run(x)

    unit = np.maximum(np.finfo(dtype).smallest_subnormal, np.spacing(found))
    assert (np.abs(found.astype(WIDER[dtype]) - wanted) <= 0.9 * unit).all()
    small = wanted < 1000 * np.finfo(dtype).smallest_subnormal  # hardly any digits: rounding decides
    assert small.sum() > 1000
    error = np.abs(found[small].astype(WIDER[dtype]) - wanted[small]).max()
    assert error <= 0.501 * np.finfo(dtype).smallest_subnormal
