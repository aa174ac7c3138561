"""Products of bfloat16 matrices equal numpy's: in tiles of the CPU, in pairs, and with substitutes for both."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from core.codegen import packed_gemm
from core.codegen.cpus import cpu
from core.codegen.machine import load
from core.codegen.module import Module
from core.codegen.product import product_function
from core.ops.common.types import as_dtype
from core.plan.instructions import Gemm
from core.plan.memory import Root, View
from tests.core.codegen.tiles import multiplies_pairs

__all__ = ["multiplies_pairs"]

BF16 = as_dtype("bfloat16")
MARGIN = 64

SIZES = [(64, 64, 64), (33, 32, 31), (1, 4, 1), (65, 70, 67), (100, 514, 130), (31, 1030, 100), (300, 16, 64),
         (129, 34, 65), (17, 1200, 40), (520, 20, 64), (16, 94, 160)]  # fmt: skip
"""m, k, n: whole tiles and parts of them, one block of steps and several."""


def matrix(shape: tuple[int, int], dtype: str, by_columns: bool = False, gap: int = 0) -> tuple[np.ndarray, View]:
    """A matrix of small integers between NaNs, and the view of it. gap: elements of NaN behind each line."""
    lines, length = shape[::-1] if by_columns else shape
    raw = np.full(lines * (length + gap) + 2 * MARGIN, np.nan, as_dtype(dtype))
    inside = raw[MARGIN:-MARGIN].reshape(lines, length + gap)[:, :length]
    inside[...] = np.random.default_rng(shape[0]).integers(-3, 4, inside.shape)
    found = inside.T if by_columns else inside
    return found, View(Root(0), dtype, shape, tuple(s // found.itemsize for s in found.strides))


def run(product: Gemm, *arrays: np.ndarray) -> None:
    """The product of the first two arrays, in the third one."""
    module = Module()
    function = product_function(module, product)
    library = load(module.text(), symbols=module.symbols)
    call = library.function(function.name, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
    for part in reversed(range(function.parts)):
        call(*(each.ctypes.data for each in arrays), part, part + 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_a_product_of_16_bit_matrices_equals_numpys_to_the_bit(m, k, n, multiplies_pairs, monkeypatch):
    """Sums of small integers are exact in any order. The stack is full of NaN before."""
    for by_columns, adds in itertools.product((False, True), repeat=2):
        gap = 6 * (by_columns != adds)
        monkeypatch.setattr(packed_gemm, "TILED_PANELS", 99 if adds else 1)
        turned = cpu().has_tiles and m > 1 and by_columns == adds
        a, a_view = matrix((m, k), "bfloat16", turned, gap)
        b, b_view = matrix((k, n), "bfloat16", by_columns, gap)
        c, c_view = matrix((m, n), "float32", gap=gap)
        wanted = a.astype("float64") @ b.astype("float64") + (c if adds else 0)
        longer = [matrix(shape, "bfloat16") for shape in ((m, k + 64), (k + 64, n))]
        other = matrix((m, n), "float32")
        for each, _ in longer:
            each[...] = np.nan

        run(Gemm(longer[0][1], longer[1][1], other[1]), longer[0][0], longer[1][0], other[0])
        run(Gemm(a_view, b_view, c_view, accumulate=adds), a, b, c)

        np.testing.assert_array_equal(c, wanted)
        whole = c.base if c.base.ndim == 1 else c.base.base
        assert np.isnan(whole).sum() == 2 * MARGIN + m * gap
