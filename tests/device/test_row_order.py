"""The order of ids by their rows on an emulated GPU has the results of the sort of the processor."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.codegen.llvm import I64, Function
from core.codegen.module import Module
from core.device import ranks
from core.device.buckets import PrefixSums, padded_sums, shift_of
from core.device.gpu import DEVICE_TARGET
from core.device.kernels import sort_bytes, sort_merge
from core.device.launches import PARAMETERS, DeviceCode, Launch
from core.device.merge_sort import MergeSort, MergeWriter, merge_sort
from core.device.ranks import Ranks, is_short, padded
from core.device.row_order import takes_order
from core.device.rules import RULES, Rules
from core.device.step import write_device_step
from core.device.threads import MOST_THREADS, Threads
from core.ir import Block, TensorType
from core.ir.aligned import aligned_copy, aligned_empty
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Kernel
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.device import emulator
from tests.device.emulator import Emulated, EmulatedBackend, EmulatorFault, compiler
from tests.device.test_scatters import zeros

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

SIZE = 23
WIDE = Rules(launch=0.0, block_bandwidth=1.0, block_flops=1.0)


def merged(count: int, dtype: str, padding: int | None, kept: bool, size: int = SIZE) -> Block:
    """The rows of a table that ids name, merged; some ids may be left out."""
    b = BlockBuilder()
    types = [TensorType((count, 2), "float64"), TensorType((count,), dtype), TensorType((size, 2), "float64")]
    given = [b.param(each) for each in [*types, *([TensorType((count,), "bool")] if kept else [])]]
    return b.build(list(b.emit("merge_rows_padded", *given, padding_idx=padding)))


def drawn(seed: int, count: int, dtype: str, kept: bool, size: int = SIZE) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal((count, 2)), rng.integers(-size, size, count).astype(dtype)]
    return [*values, rng.standard_normal((size, 2)), *([rng.random(count) < 0.6] if kept else [])]


def orders(block: Block, backend: EmulatedBackend) -> list[Kernel]:
    region = native_interpreter(block, backend).region
    return [each for each in region.plan.body.instructions if isinstance(each, Kernel) and "row_order" in each.kind]


@pytest.fixture(params=["compared", "in buckets"])
def form(request, monkeypatch):
    """Both ways to sort, for all sizes."""
    for limit in ("MOST_COMPARED", "MOST_ON_ONE_BLOCK"):
        monkeypatch.setattr(ranks, limit, 0 if request.param == "in buckets" else 1 << 20)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("padding", [None, 0, SIZE - 1])
@pytest.mark.parametrize(("count", "dtype"), [(1, "int64"), (7, "int32"), (128, "int64"), (300, "int32")])
def test_an_order_agrees_with_the_reference_executor_on_one_block_and_on_several(form, count, dtype, padding, kept):
    block = merged(count, dtype, padding, kept)
    values: list[Any] = drawn(count, count, dtype, kept)
    wanted = interpreter_of(block)(Run(), *values)

    for blocks, rules in ((1, Rules()), (3, WIDE)):
        backend = EmulatedBackend(blocks, 64, seed=blocks, rules=rules)
        assert all(map(takes_order, orders(block, backend)))
        for f, w in zip(native_interpreter(block, backend)(Run(), *values), wanted, strict=True):
            np.testing.assert_array_equal(f, w)


@pytest.mark.sampled(1, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
@pytest.mark.parametrize("inner", [1, 3, 100])
def test_merged_rows_have_the_bits_of_sums_in_the_order_of_the_ids(inner, dtype):
    rng, count = np.random.default_rng(inner), 200
    ids = rng.integers(-SIZE, SIZE, count)
    x = (rng.standard_normal((count, inner)) * 8).astype(as_dtype(dtype))
    table, b = np.zeros((SIZE, inner), x.dtype), BlockBuilder()
    given = [b.param(TensorType(each.shape, each.dtype.name)) for each in (x, ids, table)]
    block = b.build(list(b.emit("merge_rows_padded", *given, padding_idx=None)))
    sums = np.zeros((SIZE, inner), "float32" if dtype == "bfloat16" else x.dtype)
    for one, id in zip(x, ids, strict=True):
        sums[id] += one.astype(sums.dtype)

    for blocks, rules in ((1, Rules()), (3, WIDE)):
        rows, found, n = native_interpreter(block, EmulatedBackend(blocks, 64, rules=rules))(Run(), x, ids, table)
        assert sorted(rows[: int(n)]) == sorted(set((ids % SIZE).tolist()))
        for row, sum in zip(rows[: int(n)], found[: int(n)], strict=True):
            assert sum.tobytes() == sums[row].astype(x.dtype).tobytes()


@pytest.mark.sampled(2, each="shared")
@pytest.mark.parametrize("shared", [0, 99 << 10])
@pytest.mark.parametrize("size", [5, SIZE, 300, 50_000])
@pytest.mark.parametrize("count", [Rules().sorted_apart, 1000])
def test_one_block_of_many_threads_sorts_in_its_own_memory_as_far_as_it_has_that(count, size, shared):
    """All keys fall into few rows, in their own, or into buckets of several rows; some ids are left out."""
    block, values = merged(count, "int64", None, True, size), drawn(count, count, "int64", True, size)
    values[1][::3] = values[1][0]
    backend = EmulatedBackend(3, 64, rules=replace(WIDE, shared_bytes=shared))

    found = native_interpreter(block, backend)(Run(), *values)

    sort = backend.compiled[0].emulated.code.launches[0]
    assert (sort.grid, sort.block, sort.shared > 0) == ((1, 256, True) if shared else (3, 64, False))
    for f, w in zip(found, interpreter_of(block)(Run(), *values), strict=True):
        np.testing.assert_array_equal(f, w)


def order_of(how: MergeSort, block: int) -> DeviceCode:
    """A launch that writes the numbers of the keys in `given`, in order, to `arena`."""
    threads = Threads(1, block)
    f = Function("order", [(name, "ptr") for name in PARAMETERS], noalias=False)
    writer = MergeWriter(f, threads, how, threads.shared(f, 2 * how.array_bytes))
    with f.loop(threads.number(f), I64(how.count), block) as i:
        writer.put(i, f.load(f.at(f.param("given"), i, "int64"), "int64"))
    writer.fill()
    threads.barrier(f)
    writer.sort()
    threads.barrier(f)
    with f.loop(threads.number(f), I64(how.count), block) as i:
        f.store(writer.number(i), f.at(f.param("arena"), i, "int64"))
    module = Module()
    module.functions.append(f)
    return DeviceCode(module.text(), (Launch("order", 1, block, shared=threads.shared_bytes),), 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("block", [32, 96, 256])
def test_a_merge_sort_is_stable_for_all_keys(block, dtype):
    """Few words for each thread and many, some threads without words; keys in order, in reverse, equal, and drawn."""
    size = 70_000 if dtype == "int32" else 2**40
    draw = np.random.default_rng(block)
    for count in (2, 33, 100, 3 * block, 4 * block + 1, 17 * block if block < 96 else 5 * block - 7):
        how = merge_sort(count, size, Threads(1, block), 1 << 20)
        assert how is not None and how.dtype == dtype
        code, row = Emulated(order_of(how, block), watches=True), min(size, 2**40)
        skewed = np.where(draw.random(count) < 0.7, 7, draw.integers(0, row, count))
        for keys in (np.arange(count), np.arange(count)[::-1], np.full(count, row), skewed, draw.integers(0, 3, count)):
            given, found = aligned_copy(keys), aligned_empty((count,), np.dtype("int64"))
            code.run([given.ctypes.data, found.ctypes.data, 0, 0], seed=count)
            np.testing.assert_array_equal(found, np.argsort(keys, kind="stable"))


def test_a_merge_sort_has_no_more_words_than_there_is_room_for():
    threads, room = Threads(1, 1024), 227 << 10

    assert merge_sort(10_240, 100_000, threads, room).each == 11
    assert merge_sort(17 * 1024, 2000, threads, room) is not None
    assert merge_sort(17 * 1024 + 1, 2000, threads, room) is None
    assert merge_sort(17 * 1024, 10**6, threads, room) is None  # words of 8 bytes
    assert 2 * merge_sort(10_240, 100_000, threads, 99 << 10).array_bytes <= 99 << 10
    assert merge_sort(1000, 100, Threads(2, 512), room) is None


@pytest.mark.parametrize("size", [5, 100_000])
@pytest.mark.parametrize("count", [300, 3000, 12_000, 40_000])
def test_a_sort_in_a_launch_of_its_own_never_compares_all_keys_of_a_bucket(count, size):
    """Its time does not depend on the keys: all may name one row."""
    plan = plan_block(merged(count, "int64", None, False, size), DEVICE_TARGET)
    (sort,) = [each for each in plan.body.instructions if isinstance(each, Kernel) and takes_order(each)]
    apart = Threads(1, MOST_THREADS)

    for rules in (RULES, replace(RULES, shared_bytes=227 << 10)):
        code = write_device_step(plan, 132, 256, rules)
        own = [each for each in code.launches if each.block == MOST_THREADS]
        quick = is_short(count, apart) or sort_merge(sort, apart, rules) is not None
        assert bool(own) == (quick and sort_bytes(sort, apart, rules) <= rules.shared_bytes)


def test_sorts_of_one_launch_use_the_same_shared_memory_one_after_the_other():
    b = BlockBuilder()
    types = [TensorType((40, 2), "float64"), TensorType((SIZE, 2), "float64"), *[TensorType((40,), "int64")] * 2]
    x, like, *ids = [b.param(each) for each in types]
    block = b.build([n for one in ids for n in b.emit("merge_rows_padded", x, one, like, padding_idx=None)])
    rng, backend = np.random.default_rng(3), EmulatedBackend(1, 64)
    values = [rng.standard_normal((40, 2)), np.zeros((SIZE, 2)), *rng.integers(0, SIZE, (2, 40))]

    native = native_interpreter(block, backend)
    for f, w in zip(native(Run(), *values), interpreter_of(block)(Run(), *values), strict=True):
        np.testing.assert_array_equal(f, w)

    (region,) = backend.compiled
    (launch,) = region.emulated.code.launches
    assert launch.shared > 0
    code = region.emulated.code
    ends = [m.span() for m in re.finditer(r"  call void @dev_(?:block_)?barrier\(i32 \d+\)\n(?=  ret void)", code.text)]
    assert len(ends) == 1
    region.emulated = Emulated(replace(code, text=code.text[: ends[0][0]] + code.text[ends[0][1] :]), watches=True)
    with pytest.raises(EmulatorFault, match="a race"):
        native(Run(), *values)


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_a_barrier_of_an_order_that_is_taken_out_is_a_race(most, monkeypatch):
    monkeypatch.setattr(ranks, "MOST_ON_ONE_BLOCK", most)
    monkeypatch.setattr(emulator, "_aligned", zeros)  # a position that is read too early is then one of the array
    count = 300  # words for both warps, of whose sums each waits for the other's
    block, values = merged(count, "int64", None, True, count), drawn(1, count, "int64", True, count)
    native = native_interpreter(block, backend := EmulatedBackend(1, 64, rules=replace(WIDE, shared_bytes=0)))
    (region,) = backend.compiled
    code = region.emulated.code
    start = code.text.index("@kept_row_order")
    end = code.text.index("\n}", start)
    barriers = [m.span() for m in re.finditer(r"  call void @dev_(?:block_)?barrier\(i32 \d+\)", code.text[start:end])]
    assert len(barriers) == (4 if most else 8)

    for first, last in barriers:
        text = code.text[: start + first] + code.text[start + last :]
        region.emulated = Emulated(replace(code, text=text), watches=True)
        with pytest.raises(EmulatorFault, match="a race"):
            native(Run(), *values)


def test_an_order_that_leaves_out_all_ids_has_no_rows(form):
    block = merged(5, "int64", None, True)
    values = drawn(1, 5, "int64", True)
    values[-1][:] = False
    values[1][2] = 10**6  # an id that is left out may be out of range

    (rows, sums, count) = native_interpreter(block, EmulatedBackend(2, 64, rules=WIDE))(Run(), *values)

    assert int(count) == 0 and not np.asarray(rows).any() and not np.asarray(sums).any()


def test_an_id_out_of_range_is_an_error(form):
    block = merged(5, "int64", None, False)
    values = drawn(1, 5, "int64", False)
    values[1][3] = SIZE

    with pytest.raises(ExecutionError) as caught:
        native_interpreter(block, EmulatedBackend(2, 64, rules=WIDE))(Run(), *values)
    assert caught.value.code == "index_out_of_range"


def test_threads_share_the_comparisons_of_a_key_as_far_as_there_are_enough():
    counts, threads = (10, 1056, 2048, 10240, 1 << 18), Threads(132, 256)
    lanes = {count: Ranks(Function("f", []), threads, count).lanes for count in counts}

    assert lanes == {10: 32, 1056: 32, 2048: 16, 10240: 2, 1 << 18: 1}
    assert Ranks(Function("f", []), threads, 10240, 8).lanes == 8
    assert (padded(1), padded(128), padded(129)) == (128, 128, 256)
    assert [is_short(count, threads) for count in counts] == [True, True, True, False, False]


@pytest.mark.parametrize("size", [0, 1, 7, 100, 10**6, 2**31 - 2])
@pytest.mark.parametrize("count", [1, 2, 50, 1000])
def test_there_are_at_most_twice_as_many_buckets_as_keys(count, size):
    shift = shift_of(count, size)

    assert (size >> shift) + 1 <= 2 * count
    assert not shift or (size >> (shift - 1)) + 1 > 2 * count


@pytest.mark.sampled(1)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("count", [1, 127, 128, 129, 5000, 40000])
def test_prefix_sums_are_those_of_numpy(count, blocks):
    words = np.random.default_rng(count).integers(0, 9, padded_sums(count), dtype="int32")
    words[count:] = 0
    threads = Threads(blocks, 64)
    f = Function("sums", [(name, "ptr") for name in PARAMETERS], noalias=False)
    PrefixSums(f, threads, f.param("given"), count, f.param("arena")).write()
    module = Module()
    module.functions.append(f)
    code = DeviceCode(module.text(), (Launch("sums", blocks, 64),), 0)
    found, room = aligned_copy(words), aligned_empty((padded_sums(threads.warps),), np.dtype("int32"))

    Emulated(code, watches=True).run([found.ctypes.data, room.ctypes.data, 0, 0], seed=1)

    assert np.array_equal(found[:count], np.cumsum(words[:count]) - words[:count])
