"""Sorted positions equal numpy's stable sort for every dtype, row length and direction."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.order_sorting import SHORT
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Instruction
from tests.core.codegen.stepwise import block_of, compiled
from tests.core.ops.test_kinks_elementwise import run

ODD = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-40, -1e-40]


def instructions(name: str, *values: np.ndarray, **attrs: int) -> tuple[Instruction, ...]:
    return plan_block(block_of(name, *values, **attrs), CPU.target).body.instructions


def rows(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers with many equal ones, both signs, and for floats those without an order."""
    rng = np.random.default_rng(0)
    if dtype.startswith("float"):
        x = np.round(rng.standard_normal(shape), 1).astype(dtype)
        places = rng.integers(0, x.size, x.size // 4)
        x.flat[places] = rng.choice(ODD, len(places))
        return x
    if dtype == "bool":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    few = rng.integers(limits.min, limits.max, 9, dtype=dtype, endpoint=True)
    return rng.choice(few, shape).astype(dtype)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "int16", "uint8", "bool"])
@pytest.mark.parametrize("size", [9, SHORT + 5])
def test_positions_in_order_equal_numpys_for_every_dtype(dtype, size):
    x = rows(dtype, (3, size))

    np.testing.assert_array_equal(compiled("argsort", x), np.argsort(x, -1, kind="stable"))


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("shape", [(1,), (1, 8), (2, 8, 1), (3, 7, 2), (2, SHORT - 1), (2, SHORT, 3), (1, 3000)])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_positions_in_order_equal_numpys_on_every_axis(shape, descending, dtype):
    x = rows(dtype, shape)
    for axis in {0, len(shape) - 1}:
        turned = -x if descending else x
        wanted = np.argsort(turned, axis, kind="stable")
        if descending:  # NaN comes first: a number below all others stands for it
            wanted = np.argsort(np.where(np.isnan(x), -np.inf, turned) - 0.0, axis, kind="stable")
            if np.isinf(x).any() and np.isnan(x).any():
                key = np.where(np.isnan(x), 0, 1)
                number = np.where(np.isnan(x), 0, turned)
                each = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
                wanted = np.lexsort((np.broadcast_to(each, x.shape), number, key), axis)

        np.testing.assert_array_equal(compiled("argsort", x, axis=axis, descending=descending), wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("size", [1, 20, 300])
def test_the_last_of_equal_integers_is_marked(dtype, size):
    x = np.random.default_rng(1).integers(-4, 4, size).astype(dtype)

    found = compiled("is_last", x)

    assert found.tolist() == [value not in x[i + 1 :] for i, value in enumerate(x)]


def kinds_of_rows(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Rows in which few, or all, elements are put in place among the kept ones."""
    falling = -np.arange(np.prod(shape), dtype="float32").reshape(shape)
    return {"random": rows("float32", shape), "rising": -falling, "falling": falling, "equal": 0 * falling}


@pytest.mark.sampled(2, each="largest")
@pytest.mark.parametrize(
    ("size", "k"), [(9, 2), (40, 1), (64, 2), (130, 7), (700, 8), (700, 130), (3000, 8), (3000, 64), (50, 40)]
)
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_positions_are_those_of_the_whole_order(size, k, largest):
    for x in kinds_of_rows((3, size)).values():
        whole = compiled("argsort", x, descending=largest)
        values, positions = compiled("topk", x, k=k, largest=largest)

        np.testing.assert_array_equal(positions, whole[:, :k])
        np.testing.assert_array_equal(values, np.take_along_axis(x, whole, 1)[:, :k])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int32", "int16", "uint8", "bool"])
def test_the_first_positions_are_those_of_the_whole_order_for_every_dtype_and_axis(dtype):
    x = rows("float32", (40, 3, 36)).astype(as_dtype(dtype)) if "float" in dtype else rows(dtype, (40, 3, 36))
    for axis in (0, 2):
        order = run("argsort", x, axis=axis)
        _, positions = compiled("topk", x, k=4, axis=axis, largest=False)

        np.testing.assert_array_equal(positions, order.take(range(4), axis))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "k"), [(9, 5), (40, 40), (130, 66), (700, 1), (700, 350), (3000, 2999)])
def test_a_position_within_the_order_is_that_of_the_whole_order(size, k):
    for dtype in ("float32", "float64", "int64", "uint8"):
        kinds = {"few": rows(dtype, (3, size))} if "float" not in dtype else kinds_of_rows((3, size))
        for x in kinds.values():
            x = x.astype(dtype)
            _, position = compiled("kthvalue", x, k=k)

            np.testing.assert_array_equal(position, np.argsort(x, -1, kind="stable")[:, k - 1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_part_within_the_order_has_no_memory_for_others(axis, dtype):
    shape = (200, 6) if axis == 0 else (6, 200)
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    (kernel,) = [each for each in instructions("median", x, axis=axis) if getattr(each, "kind", "") == "order"]

    assert kernel.views[1].root.nbytes == 6 * 2 * 8
    np.testing.assert_allclose(compiled("median", x, axis=axis), np.median(x, axis), 1e-6)
    x[axis - 1 and 3, axis and 3] = np.nan
    np.testing.assert_allclose(compiled("median", x, axis=axis), np.median(x, axis), 1e-6)


def test_only_the_first_positions_have_memory_where_nothing_reads_others():
    x = rows("float32", (3, 64))

    (kernel,) = [each for each in instructions("topk", x, k=2) if getattr(each, "kind", "") == "order"]
    assert kernel.spec.wanted == 2 and kernel.views[1].root.nbytes == 3 * 2 * 8
