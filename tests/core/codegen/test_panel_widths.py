"""Widths of the packed panels of a product: they cover its columns, and products of pairs have no narrow last panel."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
import pytest

from core.codegen.machine import load
from core.codegen.module import Module
from core.codegen.panel_widths import panel_widths_of
from core.codegen.product import product_function
from core.ops.common.types import as_dtype
from core.plan.instructions import Gemm
from core.plan.memory import Root, View
from tests.core.codegen.tiles import multiplies_pairs

__all__ = ["multiplies_pairs"]


@pytest.mark.parametrize(("lanes", "most"), [(16, 4), (16, 3), (8, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize("pairs", [False, True])
def test_panels_cover_all_columns_once(lanes, most, pairs):
    for columns in range(1, 40 * lanes):
        widths = panel_widths_of(columns, lanes, most, pairs)
        starts = [widths.start(i) for i in range(widths.count + 1)]
        sizes = [end - start for start, end in pairwise(starts)]

        assert (starts[0], starts[-1]) == (0, columns)
        assert widths.count == -(-columns // (lanes * most))
        assert all(0 < size <= lanes * most for size in sizes)
        assert all(start % lanes == 0 for start in starts[:-1])
        firsts = [panel for panel, _ in widths.kinds] + [widths.count]
        of_kinds = [n for (_, n), (a, b) in zip(widths.kinds, pairwise(firsts), strict=True) for _ in range(a, b)]
        assert of_kinds == sizes
        assert len(widths.kinds) <= 3


def test_the_last_panel_of_pairs_has_more_than_one_vector():
    vectors = lambda n, pairs: [
        -(-(widths.start(i + 1) - widths.start(i)) // 16)
        for widths in [panel_widths_of(n, 16, 4, pairs)]
        for i in range(widths.count)
    ]

    assert vectors(196, pairs=True) == [4, 3, 3, 3]
    assert vectors(80, pairs=True) == [3, 2]
    assert vectors(784, pairs=True) == [4] * 10 + [3] * 3
    assert vectors(208, pairs=False) == [4, 4, 4, 1]
    assert vectors(224, pairs=True) == [4, 4, 4, 2]
    assert vectors(9, pairs=True) == [1]


@pytest.mark.sampled(2, each="multiplies_pairs")
@pytest.mark.parametrize("n", [68, 80, 196, 208, 270])
@pytest.mark.parametrize("by_columns", [False, True])
def test_a_product_of_pairs_with_panels_of_two_widths_equals_numpys(n, by_columns, multiplies_pairs):
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-3, 4, shape).astype("float32").astype(as_dtype("bfloat16")) for shape in ((65, 38), (38, n)))
    stored = np.ascontiguousarray(b.T) if by_columns else b
    c = np.full((65, n), np.nan, "float32")
    module = Module()
    views = [
        View(Root(0), "bfloat16", a.shape, (38, 1)),
        View(Root(0), "bfloat16", b.shape, (1, 38) if by_columns else (n, 1)),
        View(Root(0), "float32", c.shape, (n, 1)),
    ]
    function = product_function(module, Gemm(*views))
    library = load(module.text(), symbols=module.symbols)

    library.function(function.name, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)(
        a.ctypes.data, stored.ctypes.data, c.ctypes.data, 0, function.parts
    )

    np.testing.assert_array_equal(c, a.astype("float64") @ b.astype("float64"))
