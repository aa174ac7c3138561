"""Windows in machine code: the results of the reference executor, and no access outside their arrays."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.autodiff.adjoint import vjp
from core.codegen import filter_sums, packed_gemm
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.codegen.cpus import NAMED, generating_for
from core.codegen.kernels import kernel_function, scratch_bytes, units
from core.codegen.machine import load
from core.codegen.module import Module
from core.codegen.step import write_step
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import arrange, convolution, plan_block
from core.plan.channel_lanes import channel_lanes_of
from core.plan.filter_sums import filter_sums_of
from core.plan.instructions import Kernel
from core.plan.partition import plan_parts
from core.plan.target import FilterSumLimits
from core.plan.winograd import winograd_of, winograd_sums_of
from core.plan.work import work_of
from core.runtime.control_words import CONTROL
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import both
from tests.programs import Sketch

QUIET = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
THOROUGH = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Case:
    """A convolution. image, filter, result: the three shapes; each is computed from the two others."""

    image: tuple[int, ...]
    filter: tuple[int, ...]
    result: tuple[int, ...]
    attrs: dict
    dtype: str


@st.composite
def convolutions(draw, longest: int = 20) -> Case:
    axes = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 2))
    channels, out = draw(st.sampled_from((1, 2, 3, 16))), draw(st.sampled_from((1, 2, 3, 5, 8, 16, 32, 48)))
    one_long = draw(st.integers(0, axes - 1))
    size, kernel, counts, strides, dilations, pads = [], [], [], [], [], []
    for axis in range(axes):
        k, stride, dilation = (draw(st.integers(1, n)) for n in (4, 3, 2))
        count = draw(st.integers(1, longest if axis == one_long else 3))
        before, after, beyond = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, stride - 1))
        n = (count - 1) * stride + (k - 1) * dilation + 1 + beyond - before - after
        while n < 1:  # padding alone would hold the windows
            before, after = max(before - 1, 0), max(after - 1, 0)
            n = (count - 1) * stride + (k - 1) * dilation + 1 + beyond - before - after
        size.append(n)
        kernel.append(k)
        counts.append(count)
        strides.append(stride)
        dilations.append(dilation)
        pads += [before, after]
    attrs = {"strides": tuple(strides), "paddings": tuple(pads), "dilations": tuple(dilations), "groups": groups}
    batch = draw(st.integers(1, 4))
    return Case(
        (batch, groups * channels, *size), (groups * out, channels, *kernel), (batch, groups * out, *counts), attrs,
        draw(st.sampled_from(DTYPES)),
    )  # fmt: skip


def plain(width: int, dtype: str, out: int = 3) -> Case:
    attrs = {"strides": (1, 1), "paddings": (0, 0), "dilations": (1, 1), "groups": 1}
    return Case((2, 2, 4, width + 2), (out, 2, 2, 3), (2, out, 3, width), attrs, dtype)


def three_forms(case: Case) -> Block:
    """A convolution and its two adjoints, of (image, filter, cotangent)."""
    b = BlockBuilder()
    x, f, ct = (b.param(TensorType(shape, case.dtype)) for shape in (case.image, case.filter, case.result))
    return b.build(
        [
            b.emit("correlate", x, f, **case.attrs),
            b.emit("correlate_input_adjoint", ct, f, x, **case.attrs),
            b.emit("correlate_filter_adjoint", ct, x, f, **case.attrs),
        ]
    )


def values_for(block: Block, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(block.types[p].shape).astype(block.types[p].dtype) for p in block.params]


def agree(block: Block, values: list[np.ndarray]) -> None:
    assert plan_parts(block, CPU_TARGET).refused == {}
    both(block, values)


def agree_in_all_forms(case: Case) -> None:
    """Machine code and the reference executor differ by the rounding of sums, whose terms may cancel each other."""
    block = three_forms(case)
    values = values_for(block)
    assert plan_parts(block, CPU_TARGET).refused == {}
    reference = interpreter_of(block)
    found, wanted = native_interpreter(block, CPU)(Run(), *values), reference(Run(), *values)
    sizes = reference(Run(), *map(np.abs, values))
    for result, right, size in zip(found, wanted, sizes, strict=True):
        assert (result.shape, result.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(result, right, rtol=0, atol=16 * np.finfo(right.dtype).eps * size.max())


@pytest.fixture(
    params=["direct", "columns", "columns of few", "panels", "panels of few", "sums", "sums of few", "lanes", "squares"]
)
def form(request, monkeypatch):
    """Every form of a convolution, for all sizes."""
    if request.param == "squares":  # for filters of 3 x 3 that move by 1
        every = replace(CPU_TARGET.winograd, channels=1, squares=1, products=1e9, vectors=99)
        monkeypatch.setattr(convolution, "winograd_of", lambda spec, windows, _: winograd_of(spec, windows, every))
        monkeypatch.setattr(
            convolution, "winograd_sums_of", lambda spec, windows, _: winograd_sums_of(spec, windows, every)
        )
        return
    for name in ("winograd_of", "winograd_sums_of"):
        monkeypatch.setattr(convolution, name, lambda spec, windows, limits: None)
    if request.param.startswith("sums"):
        always = FilterSumLimits(out=1, depth=1, terms=1, share_terms=1)
        monkeypatch.setattr(convolution, "filter_sums_of", lambda spec, limits: filter_sums_of(spec, always))
        monkeypatch.setattr(convolution, "channel_lanes_of", lambda spec, limits: None)
        if request.param == "sums of few":
            monkeypatch.setattr(filter_sums, "PIXELS", 5)
            monkeypatch.setattr(filter_sums, "BLOCK", 4)
        return
    monkeypatch.setattr(convolution, "filter_sums_of", lambda spec, limits: None)
    if request.param == "lanes":  # if the output channels fill whole vectors
        every = replace(CPU_TARGET.channel_lanes, depth=1, row=1)
        monkeypatch.setattr(convolution, "channel_lanes_of", lambda spec, limits: channel_lanes_of(spec, every))
        return
    monkeypatch.setattr(convolution, "channel_lanes_of", lambda spec, limits: None)
    monkeypatch.setattr(convolution, "_by_columns", lambda kind, spec, limits: request.param != "direct")
    if request.param.startswith("panels"):  # however small the product is
        monkeypatch.setattr(packed_gemm, "PACKED", 1)
    if request.param.endswith("of few"):
        parted = convolution.parted
        few = {"pixels": dict.fromkeys(CPU_TARGET.convolutions.pixels, 4), "share": 4, "column_elements": 32}
        monkeypatch.setattr(
            convolution, "parted", lambda spec, kind, limits: parted(spec, kind, replace(limits, **few))
        )


@pytest.mark.sampled(2)
@QUIET
@given(case=convolutions())
def test_convolutions_and_their_adjoints_equal_the_reference_executor(form, case):
    agree_in_all_forms(case)


@pytest.mark.slow
@THOROUGH
@given(case=convolutions(longest=70))
def test_many_convolutions_and_their_adjoints_equal_the_reference_executor(form, case):
    agree_in_all_forms(case)


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 100, 129])
def test_rows_of_any_length_are_convolved_to_their_last_element(width, dtype):
    agree_in_all_forms(plain(width, dtype, out=1 + width % 7))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "out", "height", "width"),
    [(3, 1, 1, 1, 15, 17), (7, 1, 1, 1, 17, 5), (5, 2, 1, 2, 9, 33), (3, 1, 2, 1, 2, 40), (3, 2, 2, 1, 29, 16)],
)
def test_depthwise_convolutions_equal_the_reference_executor(kernel, stride, dilation, out, height, width, dtype):
    """Heights beyond a tile, up to which rows of the result share the vectors of the image."""
    reach = (kernel - 1) * dilation
    size = [(n - 1) * stride + reach + 1 - 2 for n in (height, width)]
    attrs = {"strides": (stride,) * 2, "paddings": (1,) * 4, "dilations": (dilation,) * 2, "groups": 3}
    agree_in_all_forms(Case((2, 3, *size), (3 * out, 1, kernel, kernel), (2, 3 * out, height, width), attrs, dtype))


def test_the_work_of_a_convolution_counts_its_multiplications_and_additions_in_every_form(form):
    attrs = {"strides": (2, 2), "paddings": (0, 0), "dilations": (1, 1), "groups": 2}
    block = three_forms(Case((2, 8, 9, 9), (6, 4, 3, 3), (2, 6, 4, 4), attrs, "float32"))

    around = ("fill_room", "leave_room", "filter_panels", "filter_total")
    flops = [work_of(each).flops for each in kernels(block) if each.kind not in around]

    assert flops == 3 * [2 * (2 * 6 * 4 * 4) * (4 * 3 * 3)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("out", "size", "kinds"),
    [
        (177, 9, {"correlate_columns", "input_adjoint_columns", "filter_adjoint_columns"}),
        (176, 9, {"filter_panels", "correlate_lanes", "input_adjoint_columns", "filter_adjoint_columns"}),
        (177, 17, {"correlate_columns", "input_adjoint_columns", "filter_sums", "filter_total"}),
    ],
)
def test_a_convolution_of_many_channels_has_a_form_for_its_shape(out, size, kinds):
    """Whole vectors of output channels take the lanes; adjoints to filters do if there are many pixels."""
    attrs = {"strides": (2, 2), "paddings": (1, 1), "dilations": (1, 1), "groups": 1}
    after = (size + 1) // 2
    block = three_forms(Case((2, 192, size, size), (out, 192, 3, 3), (2, out, after, after), attrs, "float64"))

    assert {each.kind for each in kernels(block)} == kinds | {"fill_room", "leave_room"}
    agree(block, values_for(block))


@pytest.mark.parametrize("stride", [1, 2])
def test_filters_of_one_element_and_many_channels_are_products_of_matrices(stride):
    attrs = {"strides": (stride,) * 2, "paddings": (0, 0), "dilations": (1, 1), "groups": 1}
    after = -(-11 // stride)
    block = three_forms(Case((2, 24, 11, 11), (32, 24, 1, 1), (2, 32, after, after), attrs, "float32"))

    assert "correlate_columns" in {each.kind for each in kernels(block)}
    agree(block, values_for(block))


@pytest.mark.parametrize(("channels", "out", "width", "taps"), [(32, 64, 12, 5), (128, 128, 6, 3), (32, 48, 9, 3)])
def test_a_tile_of_filter_sums_has_enough_sums_to_hide_the_latency_of_additions(channels, out, width, taps):
    b = BlockBuilder()
    ct = b.param(TensorType((2, out, width, width), "float32"))
    image, like = (2, channels, width + taps - 1, width + taps - 1), (out, channels, taps, taps)
    x, w = (b.param(TensorType(shape, "float32")) for shape in (image, like))
    block = b.build([b.emit("correlate_filter_adjoint", ct, x, w, strides=(1, 1), dilations=(1, 1), paddings=(0,) * 4)])
    with generating_for(NAMED["x86-64-v4"]):
        (spec,) = (each.spec for each in kernels(block) if each.kind == "filter_sums")
        tile = filter_sums.tile_of(spec, 16)
    assert 20 <= tile.channels * tile.taps * tile.vectors <= 30


def test_a_long_sum_of_a_convolution_is_as_exact_as_its_parts():
    """Against float64: one chain of 4608 additions would lose 1.2e-6."""
    attrs = {"strides": (1, 1), "paddings": (1, 1), "dilations": (1, 1), "groups": 1}
    block = three_forms(Case((1, 512, 4, 13), (16, 512, 3, 3), (1, 16, 4, 13), attrs, "float32"))
    wide = three_forms(Case((1, 512, 4, 13), (16, 512, 3, 3), (1, 16, 4, 13), attrs, "float64"))
    values = values_for(block)

    found = native_interpreter(block, CPU)(Run(), *values)[0]

    wanted = interpreter_of(wide)(Run(), *(v.astype("float64") for v in values))[0]
    assert np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)) < 6e-7


# --- pooling -----------------------------------------------------------------------------------------------------


@st.composite
def pools(draw, longest: int = 20):
    """Shape of the images, and attributes."""
    axes = draw(st.integers(1, 3))
    tiling = draw(st.booleans())
    size, kernel, strides, pads = [], [], [], []
    for axis in range(axes):
        k = draw(st.integers(1, 4))
        stride = k if tiling else draw(st.integers(1, 6))
        before, after = (0, 0) if tiling else (draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1)))
        n = draw(st.integers(max(1, k - before - after), longest * stride if axis == axes - 1 else k + 3))
        size.append(n)
        kernel.append(k)
        strides.append(stride)
        pads += [before, after]
    attrs = {"kernel_size": tuple(kernel), "strides": tuple(strides), "paddings": tuple(pads)}
    attrs["ceil_mode"] = draw(st.booleans())
    planes = draw(st.sampled_from([(1, 1), (2, 3)]))
    return TensorType((*planes, *size), draw(st.sampled_from(DTYPES))), attrs


def pooled(op: str, type: TensorType, attrs: dict, results=slice(None)) -> Block:
    b = BlockBuilder()
    out = b.emit(op, b.param(type), **attrs)
    return b.build(list(out if isinstance(out, tuple) else (out,))[results])


def with_gradient(block: Block) -> Block:
    return optimize(vjp(block, block.params))


def check_pools(case, seed: int) -> None:
    type, attrs = case
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, type.shape).astype(type.dtype)  # many equal ones
    values[rng.random(type.shape) < 0.2] = -np.inf
    alone = pooled("max_pool", type, attrs)
    agree(alone, [values])
    for block in (pooled("max_pool", type, attrs, slice(1)), pooled("window_sum", type, attrs)):
        pulled = with_gradient(block)
        x = rng.standard_normal(type.shape).astype(type.dtype)
        agree(pulled, [x, *values_for(pulled, seed)[1:]])


@QUIET
@given(case=pools(), seed=st.integers(0, 99))
def test_pools_and_their_gradients_equal_the_reference_executor(case, seed):
    check_pools(case, seed)


@pytest.mark.slow
@THOROUGH
@given(case=pools(longest=50), seed=st.integers(0, 99))
def test_many_pools_and_their_gradients_equal_the_reference_executor(case, seed):
    check_pools(case, seed)


@pytest.mark.parametrize("size", [40, 700])
def test_a_window_over_the_whole_image_takes_the_first_maximum(size):
    type = TensorType((1, 2, size), "float32")
    x = np.zeros(type.shape, "float32")
    x[0, 1, [5, 30]] = 2

    agree(pooled("max_pool", type, {"kernel_size": (size,)}), [x])
    agree(with_gradient(pooled("window_sum", type, {"kernel_size": (size,)})), [x, x[:, :, :1]])


@pytest.mark.parametrize("counts", [3, 40])
def test_nan_is_the_maximum_at_any_position(counts):
    type = TensorType((2, 2, 4 * counts), "float32")
    x = np.random.default_rng(0).standard_normal(type.shape).astype("float32")
    x[np.random.default_rng(1).random(type.shape) < 0.3] = np.nan

    agree(pooled("max_pool", type, {"kernel_size": (4,)}), [x])


def scattering(op: str, spatial: tuple[int, ...], positions: tuple[int, ...]) -> Block:
    b = BlockBuilder()
    planes = TensorType((2, 2, *spatial), "float32")
    given, index = TensorType((2, 2, *positions), "float32"), TensorType((2, 2, *positions), "int64")
    if op == "pick":
        return b.build([b.emit("pick", b.param(planes), b.param(index))])
    return b.build([b.emit("unpool_like", b.param(given), b.param(index), b.param(planes))])


@pytest.mark.parametrize("op", ["pick", "unpool_like"])
@pytest.mark.parametrize("position", [0, 11, -12, 12, -13, 2**40])
def test_a_position_is_checked_before_it_is_used(op, position):
    block = scattering(op, (3, 4), (2,))
    index = np.array([[[0, 5], [-1, 5]], [[3, 3], [7, position]]])
    values = [np.ones(block.types[p].shape, "float32") for p in block.params]
    values[1] = index

    agree(block, values)


# --- programs ---------------------------------------------------------------------------------------------------


def test_gradients_of_windows_inside_a_loop_equal_the_reference_executor():
    """Each trip convolves and pools the result of the trip before; the loop records positions and images."""
    rng = np.random.default_rng(3)
    sketch = Sketch()
    x, w = (
        sketch.param(name, rng.standard_normal(shape)) for name, shape in (("x", (2, 2, 6, 7)), ("w", (2, 2, 3, 3)))
    )
    sketch.op("assign", x, out="h")
    with sketch.repeat(3):
        sketch.op("conv2d", "h", w, out="z", paddings=[1, 1])
        sketch.op("max_pool2d", "z", out=["h", "at"], kernel_size=[3, 3], strides=[1, 1], paddings=[1, 1])
    sketch.total("h")
    executable = compile_gradient(read(sketch.document), GradientQuery(loss="loss"), fetch=["loss", "h"])

    agree(executable.interpreter.block, [sketch.values[v.name] for v in executable.inputs])


# --- memory ------------------------------------------------------------------------------------------------------


def kernels(block: Block) -> list[Kernel]:
    return [each for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Kernel)]


def compiled(each: Kernel):
    """(the library to keep alive, the kernel as a function of addresses, numbers for its check, and units)"""
    module = Module()
    module.functions.append(kernel_function(module, "kernel", each))
    library = load(module.text(), symbols=module.symbols)
    pointers = len(each.views) + 1 + bool(scratch_bytes(each))
    return library, library.function("kernel", *[ctypes.c_void_p] * pointers, *[ctypes.c_int64] * 3)


POISON = 0xFF
"""A byte; numbers made of it are NaN, and positions out of range."""

MARGIN = 4096


def blocks_for_memory(dtypes):
    for dtype in dtypes:
        for case in (plain(5, dtype), plain(16, dtype), plain(21, dtype, out=7)):
            yield three_forms(case)
        attrs = {"strides": (2, 2), "paddings": (1, 1), "dilations": (1, 2), "groups": 2}
        yield three_forms(Case((2, 4, 8, 23), (6, 2, 3, 3), (2, 6, 4, 11), attrs, dtype))
        attrs = {"strides": (1, 1), "paddings": (1, 1), "dilations": (1, 1), "groups": 2}
        yield three_forms(Case((2, 32, 3, 21), (96, 16, 3, 3), (2, 96, 3, 21), attrs, dtype))
        attrs = {"strides": (1, 1), "paddings": (2, 0, 0, 1), "dilations": (1, 1), "groups": 1}
        yield three_forms(Case((1, 12, 15, 31), (20, 12, 3, 3), (1, 20, 15, 30), attrs, dtype))
        attrs = {"strides": (2, 2), "paddings": (1, 1), "dilations": (1, 1), "groups": 1}
        yield three_forms(Case((2, 64, 17, 25), (66, 64, 3, 3), (2, 66, 9, 13), attrs, dtype))
        yield three_forms(Case((4, 64, 9, 9), (66, 64, 3, 3), (4, 66, 5, 5), attrs, dtype))
        for n in (8, 21, 34):
            type = TensorType((1, 2, 4, n), dtype)
            for attrs in ({"kernel_size": (2,)}, {"kernel_size": (3,), "strides": (2,), "paddings": (1,)}):
                yield pooled("max_pool", type, attrs)
                yield with_gradient(pooled("max_pool", type, attrs, slice(1)))
                yield with_gradient(pooled("window_sum", type, attrs))


def poisoned(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """(the whole array, the part between its margins)"""
    whole = np.full(nbytes + 2 * MARGIN + 64, POISON, np.uint8)
    start = MARGIN + -(whole.ctypes.data + MARGIN) % 64
    return whole, whole[start : start + nbytes]


MEMORY = pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])


@pytest.mark.sampled(2)
@MEMORY
def test_kernels_write_only_their_arrays_and_read_no_uninitialized_element(form, dtype):
    for block in blocks_for_memory([dtype]):
        native = plan_block(block, CPU_TARGET)
        arena = arrange(native)
        module = write_step(native, arena)
        library = load(module.text(), symbols=module.symbols)
        step = library.function("step", *[ctypes.c_void_p] * 4)
        given = values_for(block)
        memory = [poisoned(v.root.nbytes) for v in (*native.params, *native.results)]
        memory.append(poisoned(arena.size + module.scratch))
        arrays = [
            inside.view(v.dtype).reshape(v.shape)
            for v, (_, inside) in zip((*native.params, *native.results), memory, strict=False)
        ]
        for array, values in zip(arrays, given, strict=False):
            array[...] = values
        control = np.zeros(len(CONTROL), np.int64)
        pointers = (ctypes.c_void_p * len(arrays))(*map(id, arrays))

        step(ctypes.addressof(pointers), memory[-1][1].ctypes.data, control.ctypes.data, 0)

        assert control[0] == 0
        for whole, inside in memory:
            start = inside.ctypes.data - whole.ctypes.data
            assert (whole[:start] == POISON).all()
            assert (whole[start + inside.size :] == POISON).all()
        for array, values in zip(arrays, given, strict=False):
            np.testing.assert_array_equal(array, values)
        for array in arrays[len(given) :]:
            assert not np.isnan(array).any()


GUARDED = """
import ctypes, mmap, sys
import numpy as np
from core.codegen.kernels import scratch_bytes, units
from tests.core.codegen.test_windows import blocks_for_memory, compiled, kernels

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE = mmap.PAGESIZE

def guarded(nbytes, at_end):
    pages = -(-nbytes // PAGE)
    start = libc.mmap(None, (pages + 2) * PAGE, 3, 0x22, -1, 0)
    libc.mprotect(start, PAGE, 0)
    libc.mprotect(start + (pages + 1) * PAGE, PAGE, 0)
    return start + PAGE + (pages * PAGE - nbytes if at_end else 0)

for block in blocks_for_memory(sys.argv[1:]):
    for each in kernels(block):
        library, run = compiled(each)
        for at_end in (False, True):
            sizes = [v.root.nbytes for v in each.views] + [8] + [n for n in [scratch_bytes(each)] if n]
            run(*(guarded(n, at_end) for n in sizes), 1, 0, units(each))
print("whole")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", pytest.param("float64", marks=pytest.mark.slow)])
def test_kernels_read_only_their_arrays(dtype):
    """The pages next to each array are protected; a process that accesses them is killed."""
    done = subprocess.run([sys.executable, "-c", GUARDED, dtype], capture_output=True, text=True, timeout=300)

    assert (done.returncode, done.stdout.split()) == (0, ["whole"]), done.stderr[-2000:]


@pytest.mark.sampled(3)
@MEMORY
def test_any_split_of_the_units_gives_the_same_bits(form, dtype):
    """A kernel gives the same bits for any split of its units."""
    rng = np.random.default_rng(0)
    for block in blocks_for_memory([dtype]):
        for each in kernels(block):
            _library, run = compiled(each)
            arrays = [
                rng.integers(0, 3, v.root.nbytes // np.dtype(v.dtype).itemsize).astype(v.dtype) for v in each.views
            ]
            arrays = [a + rng.random(a.shape).astype(a.dtype) if a.dtype.kind == "f" else a for a in arrays]
            error, scratch = np.zeros(1, np.int64), np.zeros(scratch_bytes(each), np.uint8)
            found = []
            for parts in ([0, units(each)], [*range(0, units(each), 2), units(each)]):
                mine = [a.copy() for a in arrays]
                addresses = [a.ctypes.data for a in (*mine, error, *([scratch] if scratch.size else []))]
                for first, end in reversed(list(pairwise(parts))):
                    run(*addresses, 1, first, end)
                found.append(mine[-each.written :])
            for one, other in zip(*found, strict=True):
                np.testing.assert_array_equal(one, other)
