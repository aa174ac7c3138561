"""Discrete Fourier transforms equal their definition, for every length, on any axis, for any number of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from core.codegen.kernels import units
from core.ops.common.types import as_dtype
from core.plan import fourier
from core.plan.instructions import Kernel
from tests.core.codegen.stepwise import all_compiled, block_of, compiled

LENGTHS = [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 19, 20, 26, 34, 35, 60, 64, 97, 128, 143, 257]
"""Of one pass and of several, with each radix, and with prime factors that need a convolution."""

LINES = [((), ()), ((5,), ()), ((19,), ()), ((), (3,)), ((2,), (8,)), ((2,), (21,)), ((3, 2), (2, 5))]
"""The axes before and after the transformed one: whole and partial vectors of lines."""


def pairs(*shape: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal((*shape, 2)).astype(dtype)


def by_definition(x: np.ndarray, axis: int, inverse: bool, norm: str) -> np.ndarray:
    z = np.moveaxis(x[..., 0].astype("float64") + 1j * x[..., 1], axis, -1)
    n = z.shape[-1]
    powers = np.outer(np.arange(n), np.arange(n)) % n
    divisor = {"ortho": n**0.5, "backward": n if inverse else 1, "forward": 1 if inverse else n}[norm]
    found = np.moveaxis(z @ np.exp((2j if inverse else -2j) * np.pi * powers / n) / divisor, -1, axis)
    return np.stack([found.real, found.imag], -1)


def agree(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
    assert error < (4e-7 if dtype == "float32" else 3e-15)


def cases(
    n: int, lines: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Arrays with lines of length n, and the attributes of a transform of each."""
    how = [(False, "backward"), (True, "backward"), (False, "ortho"), (True, "forward")]
    for number, (before, after) in enumerate(lines):
        inverse, norm = how[(number + n) % 4]
        x = pairs(*before, n, *after, dtype=("float32", "float64")[number % 2])
        yield x, {"axis": len(before), "inverse": inverse, "norm": norm}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_of_every_length_equal_their_definition(n):
    for x, attrs in cases(n, LINES):
        agree(compiled("dft", x, **attrs), by_definition(x, **attrs), str(x.dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [1024, 1000, 1009])
def test_long_transforms_equal_their_definition(n):
    x = pairs(2, n, dtype="float32")
    agree(compiled("dft", x, axis=1), by_definition(x, 1, False, "backward"), "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_transforms_of_16_bit_floats_are_computed_in_float32(dtype):
    x = pairs(3, 12, dtype="float32").astype(as_dtype(dtype))
    wanted = compiled("dft", x.astype("float32"), axis=1).astype(x.dtype)
    np.testing.assert_array_equal(compiled("dft", x, axis=1), wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_line(bad):
    x = pairs(19, 6)
    x[4, 2, 0] = bad
    found = compiled("dft", x, axis=1)

    assert np.isnan(found[4]).any() or np.isinf(found[4]).any()
    assert np.isfinite(np.delete(found, 4, 0)).all()


def test_a_long_transform_stays_with_the_reference_executor(monkeypatch):
    monkeypatch.setattr(fourier, "LONGEST", 5)

    assert not all_compiled(block_of("dft", pairs(2, 6), axis=1))
    assert all_compiled(block_of("dft", pairs(2, 5), axis=1))


@pytest.mark.parametrize(("outer", "inner", "most"), [(64, 1, 16), (5, 1, 5), (3, 40, 30), (2, 3, 2)])
def test_lines_are_split_into_units_for_threads(outer, inner, most):
    spec = fourier.Fourier("float32", outer, 8, inner, False, 1.0)
    assert 1 <= units(Kernel("fourier", spec, ())) <= most


def real_by_definition(x: np.ndarray, axis: int, norm: str, inner: float) -> np.ndarray:
    """The first frequencies of real lines."""
    n = x.shape[axis]
    found = by_definition(np.stack([x, 0 * x], -1), axis, False, norm)
    kept = np.moveaxis(found, axis, -2)[..., : n // 2 + 1, :]
    factors = [inner if 0 < 2 * k < n else 1.0 for k in range(n // 2 + 1)]
    return np.moveaxis(kept * np.array(factors)[:, None], -2, axis)


def lines_by_definition(x: np.ndarray, n: int, axis: int, norm: str, inner: float) -> np.ndarray:
    """Real lines from their first frequencies: the sums of these and of their conjugates."""
    z = np.moveaxis(x[..., 0].astype("float64") + 1j * x[..., 1], axis, -1)
    factors = [2 * inner if 0 < 2 * k < n else 1.0 for k in range(n // 2 + 1)]
    powers = np.outer(np.arange(n // 2 + 1), np.arange(n)) % n
    divisor = {"ortho": n**0.5, "backward": n, "forward": 1}[norm]
    return np.moveaxis(((z * factors) @ np.exp(2j * np.pi * powers / n)).real / divisor, -1, axis)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n", [1, *LENGTHS])
def test_transforms_of_real_lines_of_every_length_equal_their_definition(n):
    for x, attrs in cases(n, LINES):
        how = {"axis": attrs["axis"], "norm": attrs["norm"], "inner": 0.5 if attrs["inverse"] else 1.0}
        whole = np.ascontiguousarray(x[..., 0])
        agree(compiled("real_dft", whole, **how), real_by_definition(whole, **how), str(x.dtype))
        half = np.ascontiguousarray(np.moveaxis(np.moveaxis(x, how["axis"], 0)[: n // 2 + 1], 0, how["axis"]))
        agree(compiled("real_from_dft", half, n=n, **how), lines_by_definition(half, n, **how), str(x.dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [1024, 1000, 2018, 1009])
def test_long_transforms_of_real_lines_equal_their_definition(n):
    x = pairs(3, n, dtype="float32")[..., 0]
    agree(compiled("real_dft", x, axis=1), real_by_definition(x, 1, "backward", 1.0), "float32")


@pytest.mark.parametrize("n", [6, 7])
def test_nan_stays_in_its_real_line(n):
    x = pairs(19, n)[..., 0]
    x[4, 2] = np.nan
    found = compiled("real_dft", x, axis=1)

    assert np.isnan(found[4]).any()
    assert np.isfinite(np.delete(found, 4, 0)).all()


@pytest.mark.parametrize("n", [6, 7])
def test_imaginary_parts_of_real_frequencies_have_no_effect(n):
    x = pairs(3, n // 2 + 1)
    other = x.copy()
    other[:, 0, 1] = np.nan
    if n % 2 == 0:
        other[:, -1, 1] = np.inf

    np.testing.assert_array_equal(*(compiled("real_from_dft", each, n=n, axis=1) for each in (x, other)))


def test_real_lines_of_an_even_length_are_transformed_as_half_as_many_numbers():
    even, odd = (fourier.Fourier("float32", 5, n, 1, False, 1.0, real=True) for n in (12, 15))

    assert (even.length, odd.length) == (6, 15)
