"""Products of matrices equal numpy's for any strides of their operands and any order of their parts."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from core.codegen import gemm, packed_gemm
from core.codegen.machine import load
from core.codegen.module import Module
from core.codegen.parallel import product_chunks
from core.codegen.product import product_function
from core.plan.instructions import Gemm
from core.plan.memory import Root, View

MARGIN = 256

PANELS = [(64, 64, 64), (65, 70, 67), (100, 513, 130), (71, 1030, 100), (300, 16, 64), (129, 33, 65), (64, 1, 200),
          (520, 20, 64), (256, 40, 256)]  # fmt: skip
"""m, k, n: whole and partial tiles, vectors and blocks of steps; one band and several."""

FAR = [(2, 513, 1100), (8, 300, 640), (19, 260, 517), (23, 131, 1025), (40, 270, 530), (17, 1100, 66), (70, 20, 530)]
"""m, k, n: few rows, and a second operand or a result that is much larger."""

ROWS = [(1, 8, 64), (7, 600, 33), (63, 64, 65), (200, 17, 10), (5, 3, 1)]

FEW = [(1, 1, 1), (1, 1, 2), (1, 40, 30), (1, 700, 300), (1, 3, 5), (3, 17, 13), (13, 20, 6), (1, 16400, 9),
       (4, 129, 8), (15, 31, 63), (1, 128, 1), (6, 8229, 7)]  # fmt: skip


def matrix(shape: tuple[int, int], dtype: str, by_columns: bool) -> tuple[np.ndarray, View]:
    """A random matrix between margins of NaN, and the view of it."""
    raw = np.full(shape[0] * shape[1] + 2 * MARGIN, np.nan, dtype)
    inside = raw[MARGIN:-MARGIN].reshape(shape[::-1] if by_columns else shape)
    inside[...] = np.random.default_rng(shape[0]).standard_normal(inside.shape)
    found = inside.T if by_columns else inside
    size = found.itemsize
    return found, View(Root(0), dtype, shape, (found.strides[0] // size, found.strides[1] // size))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "k", "n"), [*FAR, *ROWS, *FEW, (9, 37, 130), (21, 70, 65), (5, 9, 193)])
def test_a_product_whose_second_operand_comes_from_far_equals_numpys(m, k, n, dtype, monkeypatch):
    monkeypatch.setattr(gemm, "FAR_ROW", 1)
    monkeypatch.setattr(gemm, "FAR_BYTES", 1)
    monkeypatch.setattr(gemm, "FAR_DEPTH", 4)
    monkeypatch.setattr(gemm, "FAR_RESULTS", 2**12)
    test_a_product_computed_in_parts_equals_numpys(m, k, n, dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "k", "n"), PANELS + FAR + ROWS + FEW)
def test_a_product_computed_in_parts_equals_numpys(m, k, n, dtype):
    for turned_a, turned_b, adds in itertools.product((False, True), repeat=3):
        a, a_view = matrix((m, k), dtype, turned_a)
        b, b_view = matrix((k, n), dtype, turned_b)
        c, c_view = matrix((m, n), dtype, False)
        wanted = a.astype("float64") @ b + (c if adds else 0)
        module = Module()
        function = product_function(module, Gemm(a_view, b_view, c_view, accumulate=adds))
        call = load(module.text(), symbols=module.symbols).function(
            function.name, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64
        )
        share = (function.unit or function.parts) * (1 if adds else 3)
        for start in sorted(range(0, function.parts, share), key=lambda at: at * 7 % 5):
            end = min(start + share, function.parts)
            call(a.ctypes.data, b.ctypes.data, c.ctypes.data, start, end)

        np.testing.assert_allclose(c, wanted, rtol=0, atol=(2e-5 if dtype == "float32" else 1e-13) * np.sqrt(k) * 5)
        assert np.isnan(c.base[:MARGIN]).all()
        assert np.isnan(c.base[-MARGIN:]).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "k", "n"), [*PANELS, (300, 1100, 301), (40, 270, 530), (70, 20, 530)])
def test_groups_of_panels_blocks_of_rows_and_threads_change_no_bit(m, k, n, dtype, monkeypatch):
    for turned_a, turned_b in itertools.product((False, True), repeat=2):
        a, a_view = matrix((m, k), dtype, turned_a)
        b, b_view = matrix((k, n), dtype, turned_b)
        found = []
        for group, rows, uses, threads in ((1, 1, 999, 1), (1, 1, 0, 1), (2**16, 2**14, 0, 1), (2**20, 2**18, 4, 3)):
            monkeypatch.setattr(packed_gemm, "GROUP_BYTES", group)
            monkeypatch.setattr(packed_gemm, "ROWS_BYTES", rows)
            for name, least in (("USES_BY_ROWS", uses), ("USES_BY_COLUMNS", uses), ("SPANS", 0)):
                monkeypatch.setattr(packed_gemm, name, least)
            c, c_view = matrix((m, n), dtype, False)
            module = Module()
            function = product_function(module, Gemm(a_view, b_view, c_view), threads)
            call = load(module.text()).function(function.name, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
            for part in reversed(range(function.parts)):
                call(a.ctypes.data, b.ctypes.data, c.ctypes.data, part, part + 1)
            found.append(c)

        np.testing.assert_allclose(
            found[0], a.astype("float64") @ b, rtol=0, atol=1e-3 if dtype == "float32" else 1e-11
        )
        for each in found[1:]:
            np.testing.assert_array_equal(each, found[0])


@pytest.mark.parametrize(("m", "k", "n", "shared"), [(1, 256, 1024, True), (1, 256, 256, False), (1024, 256, 1, True)])
def test_threads_share_a_large_product_of_one_row_or_column(m, k, n, shared):
    views = [matrix(shape, "float32", False)[1] for shape in ((m, k), (k, n), (m, n))]
    product = Gemm(*views)
    function = product_function(Module(), product, threads=2)
    assert (product_chunks(product, function, threads=2) > 1) == shared


def test_a_product_with_one_panel_has_a_part_for_each_thread():
    a, a_view = matrix((64, 300), "float32", False)
    b, b_view = matrix((300, 64), "float32", False)
    c, c_view = matrix((64, 64), "float32", False)
    module = Module()

    function = product_function(module, Gemm(a_view, b_view, c_view), threads=3)

    assert function.parts >= 3
    call = load(module.text()).function(function.name, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
    for part in range(function.parts):
        call(a.ctypes.data, b.ctypes.data, c.ctypes.data, part, part + 1)
    np.testing.assert_allclose(c, a.astype("float64") @ b, rtol=0, atol=2e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("turned_a", "turned_b"), list(itertools.product((False, True), repeat=2)))
def test_products_of_other_sizes_share_the_functions_for_their_tiles_and_squares(turned_a, turned_b):
    module = Module()
    counts = []
    for m, k, n in ((192, 256, 576), (384, 128, 960), (576, 1024, 768)):
        a, b, c = (matrix(*each)[1] for each in (((m, k), "float32", turned_a), ((k, n), "float32", turned_b),
                                                 ((m, n), "float32", False)))  # fmt: skip
        before = len(module.functions)
        product_function(module, Gemm(a, b, c))
        counts.append(len(module.functions) - before)
    assert counts[0] > 1
    assert counts[1:] == [1, 1], "the function of the product itself"
