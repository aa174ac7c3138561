"""Scatters on an emulated GPU: equal indices, many and few results, and the bits of a CPU in any launch."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.device import index_orders, ranks, scatter
from core.device.gpu import DEVICE_TARGET
from core.device.index_patterns import with_patterns
from core.device.ptx import cubin_of, has_linker, ptx_of
from core.device.step import write_device_step
from core.device.threads import Threads
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common import scatter_rows
from core.plan import plan_block
from core.plan.flow import Loop
from core.plan.instructions import Gather, IndexPattern, Instructions, Kernel, ScatterAdd
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.device import emulator
from tests.device.agreement import agree
from tests.device.emulator import Emulated, EmulatedBackend, EmulatorFault, compiler
from tests.device.test_products import APART

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def scattering(
    count: int, size: int, inner: int = 3, op: str = "scatter_add_like", dtype: str = "float32"
) -> tuple[Block, list[np.ndarray]]:
    """A reduction of `count` rows to `size` rows, more of them to the first ones; operands for it."""
    rng = np.random.default_rng(count + size)
    index = np.minimum(rng.integers(0, size, count), rng.integers(0, size, count))
    if op == "scatter_add_like":
        index[rng.random(count) < 0.2] -= size  # counted from the end
    return block_of(op, ((count, inner), (size, inner)), count, dtype), [
        rng.standard_normal((count, inner)).astype(dtype), index, np.zeros((size, inner), dtype)
    ]  # fmt: skip


def block_of(op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], count: int, dtype: str, axis: int = 0) -> Block:
    b = BlockBuilder()
    given, made = (TensorType(shape, dtype) for shape in shapes)
    arrays = b.param(given), b.param(TensorType((count,), "int64")), b.param(made)
    block = b.build([b.emit(op, *arrays, **({"axis": axis} if axis else {}))])
    assert any(isinstance(i, ScatterAdd) for i in plan_block(block, DEVICE_TARGET).body.instructions)
    return block


@pytest.fixture(params=["looked through", "compared", "in buckets"])
def form(request, monkeypatch):
    """Every way to find the rows of a result, for all sizes."""
    monkeypatch.setattr(index_orders, "FEW", 1 << 20 if request.param == "looked through" else 0)
    for limit in ("MOST_COMPARED", "MOST_ON_ONE_BLOCK"):
        monkeypatch.setattr(ranks, limit, 0 if request.param == "in buckets" else 1 << 20)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 40), (150, 9), (200, 70), (130, 300), (9, 200), (40, 900)])
def test_results_have_the_bits_of_the_cpu(form, count, size, monkeypatch):
    """Numbers of a result are added in the order of the index."""
    monkeypatch.setattr(scatter, "_parts", lambda each, threads: 1)
    block, values = scattering(count, size)

    (found,) = native_interpreter(block, EmulatedBackend(2, 64, seed=count, rules=APART))(Run(), *values)

    (wanted,) = native_interpreter(block, CPU)(Run(), *values)
    assert found.tobytes() == wanted.tobytes()


def sums_in_blocks(x: np.ndarray, index: np.ndarray, size: int, block: int) -> np.ndarray:
    """Sums of float32 rows: `block` rows of each position one after another, then the sums of these blocks."""
    out = np.zeros((size, x.shape[1]), "float32")
    for position in range(size):
        own = x[index % size == position]
        parts = [np.cumsum(own[k : k + block], 0, dtype="float32")[-1] for k in range(0, len(own), block)]
        if parts:
            out[position] = np.cumsum(parts, 0, dtype="float32")[-1]
    return out


@pytest.mark.parametrize("op", ["scatter_add_like", "merge_rows"])
def test_many_rows_of_a_result_are_added_in_blocks(op, monkeypatch):
    monkeypatch.setattr(index_orders, "FEW", 0)
    monkeypatch.setattr(scatter_rows, "LEAST", 8)
    count, size, block = 600, 2, 64
    _, (x, index, like) = scattering(count, size)
    b = BlockBuilder()
    rows, at, table = (b.param(TensorType(each.shape, str(each.dtype))) for each in (x, index, like))
    made = b.emit(op, rows, at, table)
    code = optimize(b.build(list(made) if op == "merge_rows" else [made]))

    found = native_interpreter(code, EmulatedBackend(2, 64, seed=1, rules=APART))(Run(), x, index, like)[-1]

    wanted = sums_in_blocks(x, index, size, block)
    assert found.tobytes() == wanted.tobytes() != sums_in_blocks(x, index, size, count).tobytes()


@pytest.mark.parametrize("size", [400, 1500])
def test_rows_are_reduced_on_more_blocks_than_have_sorted_them(size):
    """More threads would sort in another way, and elsewhere in scratch memory."""
    count, backend = 500, EmulatedBackend(2, 64, rules=APART)
    block, values = scattering(count, size, 9)

    (found,) = native_interpreter(block, backend)(Run(), *values)

    sort, reduce = backend.compiled[0].emulated.code.launches
    assert sort.grid < reduce.grid and not reduce.cooperative
    assert not ranks.is_short(count, Threads(sort.grid, 64)) and ranks.is_short(count, Threads(reduce.grid, 64))
    (wanted,) = native_interpreter(block, CPU)(Run(), *values)
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.sampled(2, each="form")
@pytest.mark.parametrize("size", [90, 400, 1500])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_that_reduce_several_elements_agree_with_the_cpu(form, size, dtype, monkeypatch):
    monkeypatch.setattr(scatter, "MANY", 0)
    monkeypatch.setattr(scatter, "_parts", lambda each, threads: 1)
    block, values = scattering(100, size, 12, dtype=dtype)
    (each,) = [i for i in plan_block(block, DEVICE_TARGET).body.instructions if isinstance(i, ScatterAdd)]
    assert scatter.lanes_of(each) == 16 // np.dtype(dtype).itemsize

    (found,) = native_interpreter(block, EmulatedBackend(2, 64, rules=APART))(Run(), *values)

    (wanted,) = native_interpreter(block, CPU)(Run(), *values)
    assert found.tobytes() == wanted.tobytes()


def test_parts_of_rows_are_gathered_from_where_they_are():
    b = BlockBuilder()
    x, at = b.param(TensorType((9, 21), "float32")), b.param(TensorType((50,), "int64"))
    rows = b.emit("gather", x, at, axis=0)
    parts = b.emit("split", rows, sections=(16, 1, 4), axis=1)
    block = optimize(b.build([b.emit("exp", each) for each in parts]))
    gathers = [each for each in plan_block(block, DEVICE_TARGET).body.instructions if isinstance(each, Gather)]
    assert {each.x.shape for each in gathers} == {(1, 9, 1), (1, 9, 4)}
    rng = np.random.default_rng(3)

    agree(block, [rng.normal(size=(9, 21)).astype("f4"), rng.integers(-9, 9, 50)], EmulatedBackend())


def summed(*indices: str) -> tuple[Block, list[np.ndarray]]:
    """Rows scattered by each of these indices, one sum after the other; operands for it."""
    b, rng = BlockBuilder(), np.random.default_rng(5)
    x, like = b.param(TensorType((100, 3), "float32")), b.param(TensorType((40, 3), "float32"))
    names = {each: b.param(TensorType((100,), "int64")) for each in dict.fromkeys(indices)}
    block = b.build([b.emit("scatter_add_like", x, names[each], like) for each in indices])
    return block, [
        rng.standard_normal((100, 3)).astype("float32"),
        np.zeros((40, 3), "float32"),
        *(rng.integers(0, 40, 100) for _ in names),
    ]


def sorts_of(body: Instructions) -> list[Kernel]:
    return [each for each in body.instructions if isinstance(each, Kernel) and each.kind == index_orders.INDEX_ORDER]


@pytest.mark.parametrize("wrong", [None, 40])
def test_scatters_with_the_same_index_share_its_order(wrong):
    block, values = summed("a", "b", "a", "b", "b")
    plan = plan_block(block, DEVICE_TARGET)
    values[3][7] = values[3][7] if wrong is None else wrong

    assert len(sorts_of(index_orders.with_orders(plan.body))) == 2
    agree(block, values, EmulatedBackend(2, 64, rules=APART))
    agree(block, values, EmulatedBackend(2, 64))


def test_a_scatter_sorts_an_overwritten_index_again():
    block, _ = summed("a", "b", "a")
    one, other, last = plan_block(block, DEVICE_TARGET).body.instructions
    overwrites = Kernel("any", None, (other.index, one.index))

    ordered = index_orders.with_orders(Instructions((one, overwrites, last)))

    assert len(sorts_of(ordered)) == 2
    assert len(sorts_of(index_orders.with_orders(Instructions((one, last))))) == 1


def test_a_loop_sorts_the_index_of_each_trip():
    """A scatter behind a loop that has overwritten its index sorts it again, too."""
    block, _ = summed("a", "a")
    one, last = plan_block(block, DEVICE_TARGET).body.instructions
    inner = Loop(Instructions((one,)), (), False, (), (), False, 1, (0, 0), outside=(one.index.root,))

    _, loop, *rest = index_orders.with_orders(Instructions((one, inner, last))).instructions[1:]

    assert len(sorts_of(loop.body)) == 1
    assert len(sorts_of(Instructions(tuple(rest)))) == 1


@pytest.mark.parametrize(("count", "size"), [(500, 2), (70, 3), (64, 1)])
@pytest.mark.parametrize("op", ["scatter_add_like", "segment_max"])
def test_several_threads_look_for_the_rows_of_few_results(op, count, size):
    block, values = scattering(count, size, 5, op, "float64")
    each, *_ = [i for i in plan_block(block, DEVICE_TARGET).body.instructions if isinstance(i, ScatterAdd)]
    assert scatter._parts(each, Threads(4, 64)) > 1

    backends = [EmulatedBackend(4, 64, seed=seed, rules=APART) for seed in (1, 2)]
    agree(block, values, backends[0])
    one, other = (native_interpreter(block, each)(Run(), *values)[0].tobytes() for each in backends)
    assert one == other


@pytest.mark.parametrize("op", ["segment_max", "segment_prod"])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_reductions_agree_with_the_reference_executor(form, op, dtype):
    agree(*scattering(100, 40, 2, op, dtype), EmulatedBackend(2, 32, rules=APART))


def test_rows_of_several_matrices_are_reduced_apart(form):
    rng = np.random.default_rng(3)
    block = block_of("scatter_add_like", ((2, 50, 3), (2, 37, 3)), 50, "float32", axis=1)
    x, index = rng.standard_normal((2, 50, 3)).astype("float32"), rng.integers(-37, 37, 50)

    agree(block, [x, index, np.zeros((2, 37, 3), "float32")], EmulatedBackend(2, 64, rules=APART))


@pytest.mark.parametrize("wrong", [None, 60, -61])
def test_gathered_rows_are_reduced_without_a_copy_of_them(form, wrong):
    rng = np.random.default_rng(4)
    b = BlockBuilder()
    x, taken, at, like = (
        b.param(TensorType(shape, dtype))
        for shape, dtype in (((60, 3), "float32"), ((100,), "int64"), ((100,), "int64"), ((45, 3), "float32"))
    )
    block = b.build([b.emit("scatter_add_like", b.emit("gather", x, taken), at, like)])
    assert any(isinstance(i, ScatterAdd) and i.rows for i in plan_block(block, DEVICE_TARGET).body.instructions)
    rows = rng.integers(-60, 60, 100)
    rows[50] = rows[50] if wrong is None else wrong
    values = [
        rng.standard_normal((60, 3)).astype("float32"),
        rows,
        rng.integers(0, 45, 100),
        np.zeros((45, 3), "float32"),
    ]

    agree(block, values, EmulatedBackend(2, 64, rules=APART))


@pytest.mark.parametrize("wrong", [40, -41, 2**40])
def test_an_index_out_of_range_is_an_error(form, wrong):
    block, values = scattering(100, 40)
    values[1][77] = wrong

    agree(block, values, EmulatedBackend(2, 64, rules=APART))


def test_the_sizes_of_a_launch_and_the_order_of_threads_change_no_bits(monkeypatch):
    monkeypatch.setattr(ranks, "MOST_COMPARED", 4000)  # the smaller launches sort in buckets, the larger one compares
    block, values = scattering(600, 90, 2)
    launches = [(1, 32), (2, 32), (4, 64)]
    assert [ranks.is_short(600, Threads(*each)) for each in launches] == [False, False, True]
    backends = [EmulatedBackend(*each, rules=APART, seed=i) for i, each in enumerate(launches)]

    found = [native_interpreter(block, each)(Run(), *values)[0].tobytes() for each in backends]

    assert len(set(found)) == 1


def zeros(nbytes: int) -> np.ndarray:
    room = np.zeros(nbytes + emulator.ALIGNMENT, np.uint8)
    start = -room.ctypes.data % emulator.ALIGNMENT
    return room[start : start + nbytes]


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_a_barrier_of_a_sort_that_is_taken_out_is_a_race(most, monkeypatch):
    monkeypatch.setattr(ranks, "MOST_ON_ONE_BLOCK", most)
    monkeypatch.setattr(emulator, "_aligned", zeros)  # a position that is read too early is then one of the array
    block, values = scattering(90, 170)
    rules = replace(APART, shared_bytes=0)
    code = write_device_step(plan_block(block, DEVICE_TARGET), 1, 64, rules)
    barriers = [m.span() for m in re.finditer(r"  call void @dev_(?:block_)?barrier\(i32 \d+\)", code.text)]
    assert len(barriers) == (3 if most else 6)

    native = native_interpreter(block, backend := EmulatedBackend(1, 64, rules=rules))
    (region,) = backend.compiled
    for start, end in barriers:
        region.emulated = Emulated(replace(code, text=code.text[:start] + code.text[end:]), watches=True)
        with pytest.raises(EmulatorFault, match="a race"):
            native(Run(), *values)


def framed(first: int, count: int, step: int, length: int, stride: int, op: str) -> tuple[Block, list[np.ndarray]]:
    """Frames of a signal, added where they overlap; operands for it."""
    b, size = BlockBuilder(), first + (count - 1) * step + (length - 1) * stride + 3
    x = b.param(TensorType((2, count, length), "float32"))
    like = b.param(TensorType((2, size), "float32"))
    bounds = {"start": float(first), "end": float(first + count * step), "step": float(step)}
    starts = b.emit("unsqueeze", b.emit("range", dtype="int64", **bounds), axes=(1,))
    inside = b.emit("range", start=0.0, end=float(length * stride), step=float(stride), dtype="int64")
    places = b.emit("add", starts, b.emit("unsqueeze", inside, axes=(0,)))
    rng = np.random.default_rng(count)
    values = [rng.standard_normal((2, count, length)).astype("float32"), np.zeros((2, size), "float32")]
    return b.build([b.emit(op, x, places, like, axis=1)]), values


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize(
    ("count", "step", "length", "stride"),
    [
        (9, 4, 7, 1),
        (9, 7, 7, 1),
        (6, 11, 7, 1),
        (40, 1, 30, 1),
        (9, 4, 7, 3),
        (5, 6, 9, 4),
        (2, 40, 36, 1),
        (36, 1, 2, 50),
    ],
)
def test_frames_that_overlap_are_added_without_an_index_and_have_the_bits_of_the_cpu(
    first, count, step, length, stride
):
    block, values = framed(first, count, step, length, stride, "scatter_add_like")
    backend = EmulatedBackend(2, 64, rules=APART)

    (found,) = native_interpreter(block, backend)(Run(), *values)

    (wanted,) = native_interpreter(block, CPU)(Run(), *values)
    assert found.tobytes() == wanted.tobytes()
    (launch,) = backend.compiled[0].emulated.code.launches
    assert not launch.cooperative


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "kernel", "stride"), [(9, 3, 2), (13, 2, 2), (60, 3, 20)])
def test_an_index_that_is_part_of_the_code_is_sorted_when_it_is_made(size, kernel, stride):
    """Windows of images, added where they overlap; of the last ones most elements have no window."""
    b, rng = BlockBuilder(), np.random.default_rng(size)
    count = len(range(0, size - kernel + 1, stride)) ** 2
    x = b.param(TensorType((2, 3 * kernel**2, count), "float32"))
    made = b.emit("fold", x, output_size=(size, size), kernel=(kernel,), strides=(stride,))
    block, values = optimize(b.build([made])), [rng.standard_normal((2, 3 * kernel**2, count)).astype("float32")]
    backend = EmulatedBackend(2, 64, rules=APART)

    (found,) = native_interpreter(block, backend)(Run(), *values)

    (wanted,) = native_interpreter(block, CPU)(Run(), *values)
    assert found.tobytes() == wanted.tobytes()
    code = backend.compiled[0].emulated.code
    assert "index_order" not in code.text and "@scatter" in code.text


def test_an_index_with_a_pattern_that_leaves_the_rows_or_is_read_elsewhere_stays():
    block, _ = framed(0, 9, 4, 7, 1, "scatter_add_like")
    counts, scatter_of = plan_block(block, DEVICE_TARGET).body.instructions
    short = replace(scatter_of, out=replace(scatter_of.out, shape=(2, 38, 1)))
    reader = Kernel("any", None, (scatter_of.index, scatter_of.out))

    assert with_patterns(Instructions((counts, short))).instructions == (counts, short)
    assert [type(each) for each in with_patterns(Instructions((counts, scatter_of))).instructions] == [ScatterAdd]
    kept = with_patterns(Instructions((counts, scatter_of, reader))).instructions
    assert kept[0] is counts and kept[1].pattern == IndexPattern(0, 9, 4, 7, 1)
    twice = with_patterns(Instructions((counts, scatter_of, Kernel("any", None, (scatter_of.out, scatter_of.index)))))
    assert twice.instructions[1] is scatter_of


@pytest.mark.sampled(1)
@pytest.mark.skipif(not has_linker(), reason="no nvJitLink")
@pytest.mark.parametrize(("count", "size"), [(16, 50000), (8192, 50000), (1 << 20, 50000)])
def test_scatters_of_real_sizes_become_machine_code_without_spilled_registers(count, size):
    block = block_of("scatter_add_like", ((count, 512), (size, 512)), count, "float32")
    code = write_device_step(plan_block(block, DEVICE_TARGET), 132, 256, APART)

    assert cubin_of(ptx_of(code, "sm_90"), "sm_90").spilled == 0
