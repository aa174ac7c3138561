"""Row kernels on an emulated GPU: long rows belong to blocks, and what many teams have is added up in two stages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.device.column_sums import ADDERS, FEW_ROWS, column_sums
from core.device.gpu import DEVICE_TARGET
from core.device.row_sums import finishing_blocks
from core.device.row_teams import (
    AT_ONCE,
    LONG,
    added_up,
    columns_of,
    most_columns,
    parts_of,
    pools,
    row_groups,
    teams_of,
    width_of,
)
from core.device.rows import row_kernel
from core.device.rules import Rules
from core.device.step import write_device_step, write_timed_step
from core.device.threads import Threads
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan.instructions import Rows
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.device.emulator import EmulatedBackend, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

WIDE = Rules(launch=0.0, block_bandwidth=1.0, block_flops=1.0)
"""Each instruction in a launch of its own on all blocks; sums of teams are added up by a second one."""

DTYPES = {1: ("float64", "float32"), 3: ("float64",), 9: ("float64",), 40: ("float64",)}
"""For each number of blocks."""

TOGETHER = Rules(launch=1.0, block_bandwidth=1.0, block_flops=1.0)
"""All instructions in one launch on all blocks."""


def softmax(rows: int, columns: int, dtype: str) -> Block:
    b = BlockBuilder()
    return optimize(b.build([b.emit("softmax", b.param(TensorType((rows, columns), dtype)))]))


def sums(rows: int, columns: int, dtype: str) -> Block:
    """Sums over the rows of a matrix, of squares and of their largest ones."""
    b = BlockBuilder()
    x = b.emit("square", b.param(TensorType((rows, columns), dtype)))
    return optimize(
        b.build([b.emit("reduce_sum", x, axes=(0,)), b.emit("reduce_max", x, axes=(0,)), b.emit("reduce_sum", x)])
    )


def columns(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Block:
    """Two sums over the same axes of an array."""
    b = BlockBuilder()
    x = b.param(TensorType(shape, dtype))
    y = b.emit("sin", x)
    return optimize(
        b.build([b.emit("reduce_sum", y, axes=axes), b.emit("reduce_max", b.emit("mul", x, y), axes=axes), y])
    )


def row_kernels(block: Block) -> list[Rows]:
    (plan,) = plan_parts(block, DEVICE_TARGET).regions
    return [each for each in plan.body.instructions if isinstance(each, Rows)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "columns"), [(1, LONG), (3, LONG + 37), (5, 2 * LONG + 1)])
@pytest.mark.parametrize("make", [softmax, sums])
def test_long_rows_belong_to_blocks_and_agree_with_the_reference_executor(make, rows, columns, dtype):
    block, threads = make(rows, columns, dtype), Threads(4, 64)
    assert any(width_of(each, threads) == 64 for each in row_kernels(block))

    check(block, (rows, columns), dtype, blocks=4)


def total(elements: int, dtype: str) -> Block:
    """The sum of the squares of a vector, and the sines, which are as long."""
    b = BlockBuilder()
    x = b.param(TensorType((elements,), dtype))
    return optimize(b.build([b.emit("reduce_sum", b.emit("square", x)), b.emit("sin", x)]))


@pytest.mark.sampled(2, each="rules")
@pytest.mark.parametrize("rules", [WIDE, TOGETHER], ids=["apart", "together"])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("elements", [1, 33, 70, 1000, 2450, 4900, 9001, 17_000])
def test_warps_that_share_a_single_row_have_parts_of_its_sum(elements, blocks, rules):
    block = total(elements, "float64")
    x = np.random.default_rng(elements).standard_normal(elements)
    native = native_interpreter(block, EmulatedBackend(blocks, 64, rules=rules))

    first, sines = native(Run(), x)
    again, _ = native(Run(), x)

    np.testing.assert_allclose(first, np.square(x).sum(), rtol=1e-12)
    np.testing.assert_allclose(sines, np.sin(x), rtol=1e-12)
    assert np.asarray(first).tobytes() == np.asarray(again).tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("blocks", [8, 12])
@pytest.mark.parametrize(("rows", "columns"), [(100, 40), (37, 5), (64, 3)])
def test_sums_of_many_teams_have_two_stages_and_agree_with_the_reference_executor(rows, columns, blocks):
    threads, block = Threads(blocks, 64), sums(rows, columns, "float64")
    teams = teams_of(row_kernels(block)[0], threads)
    assert parts_of(teams, columns, threads) > 1

    check(block, (rows, columns), "float64", blocks)


def check(block: Block, shape: tuple[int, ...], dtype: str, blocks: int) -> None:
    x = np.random.default_rng(shape[0]).standard_normal(shape).astype(dtype)
    wanted = interpreter_of(block)(Run(), x)
    rtol, atol = (1e-12, 1e-12) if dtype == "float64" else (2e-5, 1e-6)
    ways = ((WIDE, 1), (WIDE, 2), (TOGETHER, 3))
    found = [native_interpreter(block, EmulatedBackend(blocks, 64, seed=s, rules=r))(Run(), x) for r, s in ways]
    for one, other, together, want in zip(*found, wanted, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        np.testing.assert_allclose(one, want, rtol=rtol, atol=atol)
        np.testing.assert_allclose(together, want, rtol=rtol, atol=atol)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("blocks", [1, 3, 9])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((50, 7), (0,)),
        ((3, 40, 5), (1,)),
        ((6, 5, 4, 3), (0, 2)),
        ((2, 700), (0,)),
        ((300, 2), (0,)),
        ((4, 1, 9), (0,)),
    ],
)
def test_a_thread_has_a_column_of_sums_and_agrees_with_the_reference_executor(shape, axes, blocks):
    for dtype in DTYPES[blocks]:
        block = columns(shape, axes, dtype)
        plans = [column_sums(each, Threads(blocks, 64)) for each in row_kernels(block)]
        assert any(each is not None and each.rows == math.prod(shape[a] for a in axes) for each in plans)

        check(block, shape, dtype, blocks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize(("rows", "columns"), [(200, 3), (500, 7), (193, 1)])
def test_a_thread_has_a_short_row_and_agrees_with_the_reference_executor(rows, columns, blocks):
    for dtype in DTYPES[blocks]:
        block = softmax(rows, columns, dtype)
        assert columns == 1 or any(width_of(each, Threads(blocks, 64)) == 1 for each in row_kernels(block))

        check(block, (rows, columns), dtype, blocks)


def normalised(groups: int, rows: int, columns: int, dtype: str) -> Block:
    """Softmax of rows, its sums over the first axis and over both, and the largest elements over the first axis."""
    b = BlockBuilder()
    x = b.emit("softmax", b.param(TensorType((rows, groups, columns), dtype)))
    sums = [b.emit("reduce_sum", x, axes=axes) for axes in ((0,), (0, 1))]
    return optimize(b.build([*sums, b.emit("reduce_max", x, axes=(0,)), x]))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("blocks", [1, 3, 40])
@pytest.mark.parametrize(
    ("groups", "rows", "columns"), [(64, 5, 33), (70, 2, 130), (65, 3, 7), (66, 2, 128), (64, 2, 300)]
)
def test_a_team_has_the_rows_that_add_to_the_same_elements(groups, rows, columns, blocks):
    for dtype in DTYPES[blocks]:
        block = normalised(groups, rows, columns, dtype)
        found = [row_groups(each) for each in row_kernels(block) if column_sums(each, Threads(blocks, 64)) is None]
        assert any(each is not None and each.groups == groups for each in found)

        check(block, (rows, groups, columns), dtype, blocks)


def softmax_sums(rows: int, columns: int, dtype: str) -> Block:
    """Softmax of rows, sums of it over the rows and over everything, and the sum of the largest of each row."""
    b = BlockBuilder()
    x = b.emit("softmax", b.param(TensorType((rows, columns), dtype)))
    sums = [b.emit("reduce_sum", b.emit("square", x), axes=(0,)), b.emit("reduce_max", x, axes=(0,))]
    rest = [b.emit("reduce_sum", b.emit("sin", x)), b.emit("reduce_sum", b.emit("reduce_max", x, axes=(1,)))]
    return optimize(b.build([*sums, *rest]))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("blocks", [1, 3, 40])
@pytest.mark.parametrize(("rows", "columns"), [(50, 150), (9, 256), (40, 100), (7, 20), (33, 64), (5, 300)])
def test_the_threads_of_a_team_have_sums_of_few_columns_in_registers(rows, columns, blocks):
    for dtype in DTYPES[blocks]:
        block = softmax_sums(rows, columns, dtype)
        (each,) = row_kernels(block)
        width = width_of(each, Threads(blocks, 64))
        most = most_columns(each)
        assert width == (64 if 32 * most < columns <= 64 * most else 32)
        assert (columns_of(each, width) > 0) == (columns <= width * most)

        check(block, (rows, columns), dtype, blocks)


def scaled(shape: tuple[int, ...]) -> Block:
    """Squares of an array and the differences to it."""
    b = BlockBuilder()
    x = b.param(TensorType(shape, "float64"))
    y = b.emit("square", x)
    return optimize(b.build([y, b.emit("sub", y, x)]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("shape", [(1,), (64,), (65,), (128,), (255,), (256,), (257,), (513,), (1000,), (23, 41)])
def test_a_thread_loads_several_elements_at_once_and_computes_the_bits_of_the_cpu(shape, blocks):
    block = scaled(shape)
    x = np.random.default_rng(1).standard_normal(shape)

    found = native_interpreter(block, EmulatedBackend(blocks, 64))(Run(), x)

    for one, want in zip(found, (np.square(x), np.square(x) - x), strict=True):
        np.testing.assert_array_equal(np.asarray(one), want)


@pytest.mark.parametrize(("rows", "columns"), [(2000, 4), (500, 64), (500, 128), (500, 256), (500, 512), (500, 4096)])
def test_a_thread_loads_several_elements_of_a_row_before_it_uses_the_first(rows, columns):
    (each,), threads = row_kernels(softmax(rows, columns, "float32")), Threads(4, 256)
    count = columns_of(each, width_of(each, threads)) or AT_ONCE

    text = row_kernel("rows", each, threads).text()

    first = text.split(" fcmp ")[0]
    assert first.count("load float, ptr %v") == count


@pytest.mark.parametrize(("rows", "width"), [(1250, 800), (20_000, 300), (64, 100_000)])
def test_sums_over_rows_wait_for_no_other_block_and_fill_the_processors(rows, width):
    for block in (sums(rows, width, "float32"), columns((rows, width), (0,), "float32")):
        (plan,) = plan_parts(block, DEVICE_TARGET).regions
        code = write_device_step(plan, 132, 256, WIDE)

        assert not any(each.cooperative for each in code.launches)
        assert max(each.grid for each in code.launches) > 2 * 132


@pytest.mark.parametrize(("size", "teams"), [(1, 8448), (1, 2), (3, 40), (7, 100), (256, 1024), (800, 256), (10**6, 4)])
def test_a_launch_that_adds_up_has_a_thread_for_each_few_teams(size, teams):
    threads = Threads(1056, 256)
    blocks = finishing_blocks(size, teams, threads)
    assert blocks <= -(-size // 8) or size < 8
    assert blocks * threads.block >= min(size, threads.total)
    assert blocks * threads.block <= max(size * teams, 2 * size, threads.block)


@pytest.mark.parametrize("blocks", [1, 6, 132, 660, 1056])
@pytest.mark.parametrize(("rows", "width"), [(6, 51_200), (1250, 800), (20_000, 33), (90, 70_000)])
def test_as_many_threads_share_a_column_as_there_are(rows, width, blocks):
    threads = Threads(blocks, 256)
    for block, is_total in ((mean_of_sines(rows, width), True), (columns((rows, width), (0,), "float32"), False)):
        found = column_sums(row_kernels(block)[0], threads)
        assert found is not None
        assert found.parts == 1 or found.parts * found.columns <= threads.total
        assert found.parts <= found.rows
        if is_total:
            assert found.parts == found.rows or (found.parts + 1) * found.columns > threads.total
        elif rows <= FEW_ROWS:
            assert found.parts == 1
        else:  # as many sums are added up as each thread has rows, or some more
            assert found.parts**2 <= 4 * ADDERS * found.rows


def mean_of_sines(rows: int, width: int) -> Block:
    b = BlockBuilder()
    sines = b.emit("sin", b.param(TensorType((rows, width), "float32")))
    return optimize(b.build([b.emit("mean", sines), sines]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("blocks", [1, 3, 40])
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 31, 90])
@pytest.mark.parametrize("width", [7, 33, 128])
def test_the_warps_of_a_block_leave_one_sum_and_agree_with_the_reference_executor(rows, width, blocks):
    for dtype in DTYPES[blocks]:
        block = softmax_sums(rows, width, dtype)
        (each,), threads = row_kernels(block), Threads(blocks, 64)
        leaving = min(blocks, -(-rows // 2))
        assert added_up(each, threads) == (dict.fromkeys(pools(each, threads), leaving) if leaving > 1 else {})

        check(block, (rows, width), dtype, blocks)


@pytest.mark.parametrize(("rows", "width"), [(1250, 800), (300, 64), (700, 3000)])
def test_each_sum_has_blocks_of_its_own_in_the_launch_that_adds_up(rows, width):
    block = columns((rows, width), (0,), "float32")
    (each,), (plan,) = row_kernels(block), plan_parts(block, DEVICE_TARGET).regions

    first, last = write_device_step(plan, 132, 256, WIDE).launches

    ((_, teams), (_, others)) = added_up(each, Threads(first.grid, 256)).items()
    assert teams == others
    assert last.grid == 2 * finishing_blocks(width, teams, Threads(first.grid, 256))


def test_work_of_one_block_runs_in_the_launch_that_adds_up():
    """A sum for each column, on one block, and numbers that all its threads compute from them."""
    rows, width, rules = 200, 7, Rules(launch=1e-6, block_bandwidth=1e9, block_flops=1e9)
    b = BlockBuilder()
    x, y = (b.param(TensorType((n, width), "float64")) for n in (rows, 9))
    sums = b.emit("reduce_sum", b.emit("sin", x), axes=(0,))
    block = optimize(b.build([sums, b.emit("add", y, sums)]))
    (plan,) = plan_parts(block, DEVICE_TARGET).regions
    code, (apart, _) = write_device_step(plan, 8, 64, rules), write_timed_step(plan, 8, 64, rules)
    assert [each.grid > 1 for each in code.launches] == [True, False]
    assert len(apart.launches) == 3

    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((rows, width)), rng.standard_normal((9, width))
    for seed in range(4):
        backend = EmulatedBackend(8, 64, seed=seed, watches=True, rules=rules)
        found = native_interpreter(block, backend)(Run(), x, y)
        np.testing.assert_allclose(found[0], np.sin(x).sum(0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found[1], y + np.sin(x).sum(0), rtol=1e-12, atol=1e-12)


def test_one_block_has_sums_in_one_stage():
    assert parts_of(8, 40, Threads(1, 256)) == 1
    assert parts_of(1056, 256, Threads(132, 256)) == 32
    assert parts_of(1056, 20_000, Threads(132, 256)) == 1
