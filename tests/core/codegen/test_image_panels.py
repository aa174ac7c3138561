"""Products whose second operand is packed straight from images: numpy's numbers, and the bits of stored columns."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen import image_panels
from core.codegen.backend import CPU
from core.codegen.cpus import NAMED, cpu, generating_for
from core.codegen.image_panels import ImageColumns, ImagePanels
from core.codegen.kernels import scratch_bytes
from core.codegen.machine import load
from core.codegen.module import Module
from core.codegen.panel_widths import panel_widths_of
from core.codegen.product import packed_function, window_product
from core.codegen.window_parts import forward_form
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan.instructions import Gemm
from core.plan.memory import Root, View
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen.test_windows import kernels
from tests.core.codegen.tiles import multiplies_pairs

__all__ = ["multiplies_pairs"]

OLDER = [name for name, each in NAMED.items() if each.triple == cpu().triple and each.vector_bytes < cpu().vector_bytes]

COLUMNS = {
    "short runs": ImageColumns(200, (0, 1, 15, 16), ((9, 15),), 14),
    "runs longer than a panel": ImageColumns(420, (0, 3), ((4, 103),), 100),
    "runs of a whole vector": ImageColumns(1200, (0, 1, 2, 33, 34, 35, 66, 67, 68), ((30, 33),), 32),
    "one run": ImageColumns(197, (0,), (), 197),
    "one run of whole panels": ImageColumns(320, (0,), (), 320),
    "single pixels": ImageColumns(420, (0, 1, 2), ((7, 60), (15, 4)), 1),
    "images that overlap a panel": ImageColumns(50, (0, 1, 8), ((5, 3000), (5, 8)), 7),
    "windows that move back and forth": ImageColumns(700, (0, 40, 5), ((2, 300), (3, 100), (3, 20)), 19),
}
"""Their matrices have an even number of rows for an even number of channels."""


def numpys(columns: ImageColumns, image: np.ndarray, channels: int) -> np.ndarray:
    """The matrix of the windows, element by element."""
    number = int(np.prod([n for n, _ in columns.runs], dtype=int))
    found = np.zeros((channels * len(columns.taps), number * columns.length))
    for run, index in enumerate(np.ndindex(*(n for n, _ in columns.runs))):
        start = sum(i * step for i, (_, step) in zip(index, columns.runs, strict=True))
        for row, (c, tap) in enumerate((c, tap) for c in range(channels) for tap in columns.taps):
            first = start + c * columns.plane + tap
            found[row, run * columns.length : (run + 1) * columns.length] = image[first : first + columns.length]
    return found


def check_product(columns: ImageColumns, dtype: str, m: int, channels: int) -> None:
    """A product with the windows of an image of small integers: all sums are exact."""
    rng = np.random.default_rng(m)
    last = channels * columns.plane + max(columns.taps) + sum((n - 1) * step for n, step in columns.runs)
    image = rng.integers(-3, 4, last + columns.length - columns.plane).astype("float32").astype(as_dtype(dtype))
    b = numpys(columns, image.astype("float64"), channels)
    a = rng.integers(-3, 4, (m, b.shape[0])).astype("float32").astype(as_dtype(dtype))
    sums = "float32" if dtype == "bfloat16" else dtype
    c = np.full((m, b.shape[1]), np.nan, sums)
    views = [View(Root(0), kind, each.shape, (each.shape[1], 1)) for kind, each in ((dtype, a), (dtype, b), (sums, c))]
    packed = window_product(Gemm(*views), columns)
    assert packed is not None
    module = Module()
    function = packed_function(module, packed)
    arrays = [a, image, c, *([np.zeros(1, np.int64)] if function.polls else [])]
    library = load(module.text(), symbols=module.symbols)
    run = library.function(function.name, *[ctypes.c_void_p] * len(arrays), *[ctypes.c_int64] * 2)

    run(*(each.ctypes.data for each in arrays), 0, function.parts)

    assert np.abs(b).max() == 3
    np.testing.assert_array_equal(c, a.astype("float64") @ b)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "channels"), [(64, 3), (130, 4), (70, 301)])
def test_a_product_with_windows_of_images_equals_numpys(name, dtype, m, channels):
    check_product(COLUMNS[name], dtype, m, channels)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("m", "channels"), [(64, 4), (33, 30), (70, 1302)])
def test_a_product_with_windows_in_pairs_equals_numpys(name, m, channels, multiplies_pairs):
    check_product(COLUMNS[name], "bfloat16", m, channels)


@pytest.mark.sampled(2, each="older")
@pytest.mark.parametrize("older", OLDER)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_product_with_windows_for_an_older_cpu_equals_numpys(name, older):
    with generating_for(NAMED[older]):
        check_product(COLUMNS[name], "float32", 70, 5)


def test_groups_of_panels_are_packed_one_after_the_other(monkeypatch):
    """Of the smallest size: each group has one panel, or the last of more."""
    monkeypatch.setattr("core.codegen.packed_gemm.GROUP_BYTES", 2**13)
    for columns in COLUMNS.values():
        check_product(columns, "float32", 66, 30)


CASES = {
    "rows in parts": ((2, 96, 40, 37), (66, 96, 3, 3), {"strides": (1, 1), "dilations": (1, 1)}),
    "small images": ((4, 70, 9, 11), (66, 70, 3, 3), {"strides": (2, 2), "paddings": (1, 1, 1, 1)}),
    "groups": ((2, 136, 12, 12), (144, 68, 3, 2), {"groups": 2, "dilations": (2, 1)}),
    "one axis": ((3, 64, 200), (72, 64, 4), {"strides": (3,), "dilations": (2,), "paddings": (3, 1)}),
    "three axes": (
        (2, 64, 4, 6, 9), (70, 64, 2, 2, 3), {"strides": (1, 2, 1), "dilations": (1,) * 3, "paddings": (0, 1) * 3}
    ),
}  # fmt: skip
DEFAULTS = {"strides": (1, 1), "dilations": (1, 1), "paddings": (0, 0, 0, 0), "groups": 1}


def convolution_of_normal_numbers(name: str, dtype: str) -> tuple[Block, list[np.ndarray]]:
    image, filter, more = CASES[name]
    rng, b = np.random.default_rng(0), BlockBuilder()
    args = [rng.standard_normal(shape).astype("float32").astype(as_dtype(dtype)) for shape in (image, filter)]
    given = [b.param(TensorType(each.shape, dtype)) for each in args]
    return b.build([b.emit("correlate", *given, **(DEFAULTS | more))]), args


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_columns_in_memory_and_panels_of_the_image_give_the_same_bits(name, dtype, monkeypatch):
    """If the table of all panels is long, products take parts of images; too many different pieces need columns."""
    # Winograd's algorithm and lanes of output channels would take some of these
    monkeypatch.setattr("core.plan.convolution.winograd_of", lambda spec, windows, limits: None)
    monkeypatch.setattr("core.plan.convolution.channel_lanes_of", lambda spec, limits: None)
    block, args = convolution_of_normal_numbers(name, dtype)
    found, scratch, whole = [], [], []
    few = 24 if dtype == "bfloat16" and cpu().has_tiles else 12  # such panels are narrower
    for pieces, table in ((256, 1024), (256, few), (0, 1024)):
        monkeypatch.setattr(image_panels, "PIECES", pieces)
        monkeypatch.setattr(image_panels, "TABLE", table)
        columns = [each for each in kernels(block) if each.kind == "correlate_columns"]
        assert len(columns) == 1
        scratch.append(scratch_bytes(columns[0]))
        whole.append(not forward_form(columns[0].spec)[0].rows)
        found.append(np.asarray(native_interpreter(block, CPU)(Run(), *args)[0], "float64"))

    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    assert np.isfinite(found[0]).all() and found[0].std() > 1
    assert scratch[0] == scratch[1] < scratch[2]
    assert whole == ([True, False, False] if "parts" in name else [True] * 3)


def test_panels_with_equal_pieces_share_their_code():
    def panels(runs: int, length: int) -> ImagePanels:
        columns = ImageColumns(4000, (0, 1), ((runs, 70),), length)
        return ImagePanels(
            columns, panel_widths_of(columns.pixels, 16, 4, pairs=False), 64, 100, "float32", pairs=False
        )

    assert len(panels(60, 64).panels) == 60
    assert len({pieces for _, pieces in panels(60, 64).panels}) == 1
    assert panels(1000, 64).fits
    assert not panels(2000, 64).fits
    assert not panels(100, 63).fits


POINTS = {
    "one product an image": ((3, 34, 10, 10), (66, 34, 1, 1), {}, True),
    "large images": ((2, 40, 61, 60), (36, 40, 1, 1), {}, True),
    "groups": ((3, 80, 12, 13), (72, 40, 1, 1), {"groups": 2}, True),
    "three axes": (
        (2, 40, 5, 6, 8), (40, 40, 1, 1, 1), {"strides": (1,) * 3, "dilations": (1,) * 3, "paddings": (0,) * 6}, True
    ),
    "small images": ((6, 34, 6, 6), (40, 34, 1, 1), {}, False),
    "an odd number of pixels": ((4, 34, 11, 11), (40, 34, 1, 1), {}, False),
    "rows apart": ((3, 34, 24, 21), (40, 34, 1, 1), {"strides": (2, 1)}, False),
    "one channel": ((6, 1, 8, 8), (700, 1, 1, 1), {}, False),
}  # fmt: skip
"""Shapes of the images and filters of one element, attributes, and whether pairs are read in place."""


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", POINTS)
def test_adjoints_to_filters_of_one_element_read_images_in_place(name, dtype, monkeypatch):
    """Small integers: all sums are exact."""
    monkeypatch.setattr("core.plan.convolution.filter_sums_of", lambda spec, limits: None)
    monkeypatch.setattr("core.plan.convolution.channel_lanes_of", lambda spec, limits: None)
    image, filter, more, in_place = POINTS[name]
    attrs, rng = DEFAULTS | more, np.random.default_rng(0)
    down = attrs["strides"][0]
    result = (image[0], filter[0], -(-image[2] // down), *image[3:])
    x, w, ct = (rng.integers(-2, 3, n).astype("float32").astype(as_dtype(dtype)) for n in (image, filter, result))
    b = BlockBuilder()
    x_, w_, ct_ = (b.param(TensorType(each.shape, dtype)) for each in (x, w, ct))
    block = b.build([b.emit("correlate", x_, w_, **attrs), b.emit("correlate_filter_adjoint", ct_, x_, w_, **attrs)])

    out, filters = (np.asarray(each, "float64") for each in native_interpreter(block, CPU)(Run(), x, w, ct))

    groups = attrs["groups"]
    pixels = x[:, :, ::down].astype("float64").reshape(len(x), groups, image[1] // groups, -1)
    weights = w.astype("float64").reshape(groups, -1, image[1] // groups)
    given = ct.astype("float64").reshape(len(x), groups, filter[0] // groups, -1)
    sums = {"out": np.einsum("goc,bgcp->bgop", weights, pixels), "filters": np.einsum("bgop,bgcp->goc", given, pixels)}
    for found, wanted in ((out, sums["out"]), (filters, sums["filters"])):
        np.testing.assert_array_equal(found.ravel(), wanted.astype(as_dtype(dtype)).astype("float64").ravel())
    adjoints = [each for each in kernels(block) if each.kind == "filter_adjoint_columns"]
    if cpu().multiplies_pairs or dtype != "bfloat16":
        assert [scratch_bytes(each) == 0 for each in adjoints] == [in_place or ("odd" in name and dtype != "bfloat16")]


@pytest.mark.parametrize(("image", "together"), [((2, 48, 20, 20), 1), ((2, 24, 60, 70), 1), ((4, 1, 4, 4), 4)])
def test_a_narrow_convolution_of_pixels_reads_the_image_in_place(image, together, monkeypatch):
    """Its product packs nothing. Images of one channel follow each other without gaps."""
    monkeypatch.setattr("core.plan.convolution._by_columns", lambda kind, spec, limits: True)
    monkeypatch.setattr("core.plan.convolution.channel_lanes_of", lambda spec, limits: None)
    b = BlockBuilder()
    x, w = (b.param(TensorType(shape, "float32")) for shape in (image, (20, image[1], 1, 1)))
    block = b.build([b.emit("correlate", x, w, **DEFAULTS)])
    (each,) = kernels(block)
    rng = np.random.default_rng(0)
    pixels, filters = (rng.integers(-3, 4, block.types[n].shape).astype("float32") for n in block.params)

    (found,) = native_interpreter(block, CPU)(Run(), pixels, filters)

    assert (each.kind, each.spec.together) == ("correlate_columns", together)
    assert scratch_bytes(each) == (4 * found.size if together > 1 else 0)
    np.testing.assert_array_equal(found, np.einsum("oc,bcyx->boyx", filters[:, :, 0, 0], pixels))
