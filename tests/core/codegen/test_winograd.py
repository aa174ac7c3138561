"""Convolutions by the algorithm of Winograd: the results of direct sums, for every shape, in the stated error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import convolution, plan_block
from core.plan.instructions import Kernel
from core.plan.target import WinogradLimits
from core.plan.winograd import winograd_of, winograd_sums_of
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.laws.agreement import both

DTYPES = ("float32", "float64")
EPS = {"float32": 2.0**-24, "float64": 2.0**-53}


@pytest.fixture
def everywhere(monkeypatch):
    """A function that sets limits with which every convolution with 3 x 3 filters takes this form."""
    assert CPU_TARGET.winograd is not None

    def allow(vectors: int = 99, elements: int = 2**16) -> None:
        limits: WinogradLimits = replace(
            CPU_TARGET.winograd,
            channels=1,
            squares=1,
            products=1e9,
            vectors=vectors,
            elements=elements,
            block=2,
            terms=1,
        )
        for make in (winograd_of, winograd_sums_of):
            monkeypatch.setattr(
                convolution, make.__name__, lambda spec, windows, _, make=make: make(spec, windows, limits)
            )

    return allow


def convolved(
    size: tuple[int, int], channels: int, out: int, paddings: tuple[int, int, int, int] = (1, 1, 1, 1),
    batch: int = 2, groups: int = 1, dtype: str = "float32", adjoint: str = "",
) -> Block:  # fmt: skip
    """A convolution of (image, filter), or its adjoint: of (cotangent, filter, image) to the image, of (cotangent,
    image, filter) to the filter.
    """
    top, bottom, left, right = paddings
    counts = (size[0] + top + bottom - 2, size[1] + left + right - 2)
    attrs = {"strides": (1, 1), "paddings": paddings, "dilations": (1, 1), "groups": groups}
    b = BlockBuilder()
    image, result = ((batch, groups * n, *s) for n, s in ((channels, size), (out, counts)))
    filter = (groups * out, channels, 3, 3)
    operands = {"": (image, filter), "input": (result, filter, image), "filter": (result, image, filter)}[adjoint]
    name = f"correlate_{adjoint}_adjoint" if adjoint else "correlate"
    return b.build([b.emit(name, *(b.param(TensorType(shape, dtype)) for shape in operands), **attrs)])


ADJOINTS = ("", "input", "filter")


def values_for(block: Block, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(block.types[p].shape).astype(block.types[p].dtype) for p in block.params]


def kinds(block: Block) -> set[str]:
    return {each.kind for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Kernel)}


def run(block: Block, values: list[np.ndarray]) -> np.ndarray:
    return np.array(native_interpreter(block, CPU)(Run(), *values)[0])


def direct(x: np.ndarray, f: np.ndarray, pads: int = 1) -> np.ndarray:
    """The convolution of [n, c, h, w] with [o, c, 3, 3] in float64, from its definition."""
    x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return np.einsum("nchwab,ocab->nohw", windows, f.astype("float64"))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.tuples(st.integers(3, 11), st.integers(3, 40)),
    paddings=st.tuples(*[st.integers(0, 3)] * 4),
    channels=st.integers(1, 5),
    out=st.sampled_from((1, 3, 8, 13)),
    groups=st.integers(1, 2),
    dtype=st.sampled_from(DTYPES),
    adjoint=st.sampled_from(ADJOINTS),
    vectors=st.sampled_from((5, 8, 99)),
    elements=st.sampled_from((1, 2**12, 2**16)),
)
def test_every_shape_equals_the_reference_executor(
    everywhere, size, paddings, channels, out, groups, dtype, adjoint, vectors, elements
):
    everywhere(vectors, elements)
    block = convolved(size, channels, out, paddings, groups=groups, dtype=dtype, adjoint=adjoint)

    both(block, values_for(block))


@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_many_channels_and_pixels_take_this_form(adjoint):
    wanted = {"winograd_sums", "winograd_total"} if adjoint == "filter" else {"winograd", "winograd_filters"}

    assert kinds(convolved((32, 32), 16, 16, adjoint=adjoint)) == wanted
    assert wanted.isdisjoint(kinds(convolved((32, 32), 4, 4, adjoint=adjoint)))
    assert wanted.isdisjoint(kinds(convolved((5, 5), 16, 16, adjoint=adjoint)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(16, 32), (14, 14), (9, 41)])
def test_the_error_is_below_the_stated_bound_and_near_that_of_direct_sums(size, dtype):
    block = convolved(size, 64, 16, dtype=dtype)
    x, f = values_for(block)

    found, wanted = run(block, [x, f]), direct(x, f)

    if dtype == "float32":  # in float64, the definition has errors of the same size
        assert np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)) < 8 * EPS[dtype]
    weights = np.abs(f.astype("float64")).sum(axis=(1, 2, 3))[:, None, None]
    assert (np.abs(found - wanted) <= (64 + 12) * 16 * EPS[dtype] * np.abs(x).max() * weights).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(32, 32), (14, 14), (9, 41)])
def test_the_error_of_an_adjoint_to_filters_is_below_the_stated_bound(size, dtype):
    block = convolved(size, 64, 24, batch=8, dtype=dtype, adjoint="filter")
    ct, x, _ = values = values_for(block)

    found = run(block, values)

    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=(2, 3))
    wanted = np.einsum("ncabhw,nohw->ocab", windows, ct.astype("float64"), optimize=True)
    if dtype == "float32":
        assert np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)) < 8 * EPS[dtype]
    terms = 8 * (size[0] + 1) // 2 * ((size[1] + 1) // 2)
    sums = np.abs(ct.astype("float64")).sum(axis=(0, 2, 3))[:, None, None, None]
    assert (np.abs(found - wanted) <= (terms + 12) * 16 * EPS[dtype] * np.abs(x).max() * sums).all()


@pytest.mark.parametrize("adjoint", ["", "input"])
@pytest.mark.parametrize("number", [np.inf, np.nan, 1e30])
def test_a_number_reaches_only_the_results_that_read_it(adjoint, number):
    block = convolved((12, 20), 12, 16, batch=2, adjoint=adjoint)
    values = values_for(block)
    plain = run(block, values)
    for place in ((0, 5, 6, 9), (1, 0, 0, 0), (1, 3, 11, 19), (0, 2, 0, 7)):
        values[0][place] = number

    found = run(block, values)

    reading = np.zeros(found.shape, bool)
    for n, y, x in ((0, 6, 9), (1, 0, 0), (1, 11, 19), (0, 0, 7)):
        reading[n, :, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2] = True
    np.testing.assert_allclose(found[~reading], plain[~reading], rtol=1e-5, atol=1e-5)
    if not np.isfinite(number):
        assert not np.isfinite(found[reading]).any()


@pytest.mark.parametrize("adjoint", ["", "filter"])
def test_the_bits_do_not_depend_on_the_number_of_threads(adjoint, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    block = convolved((21, 30), 64, 16, batch=3, adjoint=adjoint)
    values, found = values_for(block), []
    for threads in (1, 3):
        monkeypatch.setattr(backend, "thread_count", lambda threads=threads: threads)
        found.append(run(block, values))

    assert kinds(block) & {"winograd", "winograd_sums"}
    assert found[0].tobytes() == found[1].tobytes()


def test_places_of_squares_and_offsets_of_filters_are_tables_of_their_own():
    """A table of many numbers once had the name of the table of the single number 0, which a 1 x 1 filter has."""
    sums = {"strides": (1, 1), "paddings": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    point = {**sums, "paddings": (0, 0, 0, 0)}
    b = BlockBuilder()
    ct, x, like, weights = (
        b.param(TensorType(shape, "float64"))
        for shape in ((2, 16, 14, 14), (2, 16, 14, 14), (16, 16, 3, 3), (64, 16, 1, 1))
    )
    adjoint = b.emit("correlate_filter_adjoint", ct, x, like, **sums)
    block = b.build([adjoint, b.emit("correlate", x, weights, **point)])

    assert {"winograd_sums", "correlate_columns"} <= kinds(block)
    both(block, values_for(block))
