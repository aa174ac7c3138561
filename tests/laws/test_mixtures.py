"""Machine code agrees with the reference executor on random mixtures of attention, lookups, losses over labels,
recurrent cells, convolutions, small products and scores of gathered rows, in forms that only large arrays have
otherwise.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend as codegen_backend
from core.codegen import cpu_target, gemm, gemv, packed_gemm, parallel, stripes
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.codegen.llvm import itemsize
from core.compiler.compile import optimize
from core.ir import Block
from core.ops.common.types import as_dtype
from core.plan import gathered_products, moments, rows_at, side_by_side
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.laws.guards import Guarded, guards
from tests.mixtures import mixture
from tests.nested_mixtures import nested_mixture

__all__ = ["guards"]

PARTS = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.1, "float16": 0.02}
"""Largest errors as parts of the largest element."""

SCORED = (0, 3, 11, 24)

NESTED = (3, 6, 7, 8, 20)
"""7: a loop adds up products of several trips whose operands are rows of stripes."""

QUICK = (3, 14, 25, 112, 238, 324, 3031, 6015, 6034)
"""112: products of bfloat16 pairs in stripes of one row. 238, 324: channels that are not the last axis in memory, some
as rows, and all of them in a copy. 3031: the variance of long rows. 6015, 6034: windows and
frequencies."""


def rare_forms(draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    """The CPU with thresholds so small that small programs run in stripes, in threads and with lookups in fusions."""
    monkeypatch.setattr(rows_at, "LEAST", draw.choice((1, 1, 2, 16)))
    threads = draw.choice((1, 2, 3))
    monkeypatch.setattr(codegen_backend, "thread_count", lambda: threads)
    monkeypatch.setattr(packed_gemm, "PACKED", draw.choice((64, 16, 4)))
    packing = random.Random(draw.getstate()[1][0])
    monkeypatch.setattr(packed_gemm, "GROUP_BYTES", packing.choice((1, 2**12, 2**20)))
    monkeypatch.setattr(packed_gemm, "ROWS_BYTES", packing.choice((1, 2**11, 200_000)))
    monkeypatch.setattr(packed_gemm, "USES_BY_ROWS", packing.choice((0, 0, 32)))
    monkeypatch.setattr(packed_gemm, "USES_BY_COLUMNS", packing.choice((0, 4)))
    monkeypatch.setattr(packed_gemm, "SPANS", packing.choice((0, 2**18)))
    any_size = packed_gemm.Far(1, 1, 1)
    monkeypatch.setattr(packed_gemm, "BY_ROWS", packing.choice((any_size, packed_gemm.BY_ROWS)))
    monkeypatch.setattr(packed_gemm, "BY_COLUMNS", packing.choice((any_size, packed_gemm.BY_COLUMNS)))
    monkeypatch.setattr(packed_gemm, "LONG_ROW", packing.choice((1, 2**11)))
    monkeypatch.setattr(gemm, "FAR_ROW", packing.choice((1, 1, 2**11)))
    monkeypatch.setattr(gemm, "FAR_BYTES", 1)
    monkeypatch.setattr(gemm, "FAR_DEPTH", packing.choice((2, 4, 32)))
    monkeypatch.setattr(gemm, "FAR_RESULTS", packing.choice((1, 2**10, 2**18)))
    monkeypatch.setattr(gemv, "DEPTH", packing.choice((1, 256)))
    monkeypatch.setattr(cpu_target, "PANELS", packing.choice((1, 1, 2**17)))
    monkeypatch.setattr(parallel, "LONG", draw.choice((1, 1, 10**5)))
    monkeypatch.setattr(parallel, "LONG_PRODUCT", draw.choice((1, 1, 10**6)))
    monkeypatch.setattr(stripes, "LONG", draw.choice((0, 10**6)))
    limits = replace(
        CPU_TARGET.stripes, nbytes=0, least=draw.choice((1, 2, 4)), stripe=draw.choice((1, 1, 400, 2**40)),
        repeated=draw.choice((0, 0, 2**62)), matrix=draw.choice((0, 0, 2**26)), batch=draw.choice((1, 2)),
        shared=draw.choice((1, 500, 5000)),
    )  # fmt: skip
    monkeypatch.setattr(gathered_products, "LEAST_SUMS", random.Random(str(limits)).choice((1, 8, 256)))
    rare = random.Random(str(limits))
    limits = replace(limits, block=rare.choice((2, 4, 64)))
    monkeypatch.setattr(moments, "LONGEST", rare.choice((40, 40, 4096)))
    squares = CPU_TARGET.winograd
    if squares is not None and rare.random() < 0.7:
        squares = replace(
            squares, channels=1, squares=1, products=1e9, vectors=rare.choice((8, 99)), block=rare.choice((1, 32)),
            elements=rare.choice((1, 2**12, 2**16)), terms=rare.choice((1, 256)),
        )  # fmt: skip
    many = side_by_side.Limits(longest=1e18, heavy=0.0, gain=-math.inf)
    monkeypatch.setattr(side_by_side, "LIMITS", rare.choice((many, many, side_by_side.LIMITS)))
    backend = CpuBackend()
    turns = rare.choice((CPU_TARGET.products.turns, lambda rows, columns, terms: True))
    products = replace(CPU_TARGET.products, turns=turns)
    backend.target = replace(CPU_TARGET, stripes=limits, winograd=squares, products=products)  # type: ignore[misc]
    return backend


def agree(
    block: Block,
    values: list[np.ndarray],
    backend: CpuBackend,
    part: float,
    guards: list[Guarded],
    wide: Block | None = None,
) -> None:
    """Compare machine code, on guarded arrays and in two runs, with the reference executor.

    wide: the same block in float64. Where the reference executor is far from its results, machine code may be, too.
    """
    block = optimize(block)
    given = []
    for value in values:
        guards.append(Guarded(value.shape, value.dtype))
        guards[-1].array[...] = value
        given.append(guards[-1].array)
    with np.errstate(all="ignore"):
        wanted = interpreter_of(block)(Run(), *values)
        run = native_interpreter(block, backend)
        found, again = run(Run(), *given), run(Run(), *given)
        exact = wanted if wide is None else interpreter_of(optimize(wide))(Run(), *map(widened, values))
    for f, g, w, e in zip(found, again, wanted, exact, strict=True):
        assert (f.dtype, f.shape) == (w.dtype, w.shape)
        assert f.tobytes() == g.tobytes()
        w = w.astype("f8")
        finite = np.isfinite(w) & np.isfinite(e)
        largest = np.abs(w[finite]).max(initial=1.0)
        away = 2 * np.abs(w[finite] - e.astype("f8")[finite]).max(initial=0.0)
        np.testing.assert_allclose(f.astype("f8"), w, rtol=0, atol=part * largest + away)
    assert all(each.intact for each in guards)


def widened(value: np.ndarray) -> np.ndarray:
    return value.astype("f8") if value.dtype in (ml_dtypes.bfloat16, np.float16) else value


def compare(
    seed: int, monkeypatch: pytest.MonkeyPatch, guards: list[Guarded], scored: bool = False, nested: bool = False
) -> None:
    """Compare a mixture, its gradients, and sometimes the gradients of these."""
    draw = random.Random(seed * 7 + 1)
    dtype = draw.choice(("float64", "float64", "float64", "float32", ("bfloat16", "float16")[seed % 2]))
    backend = rare_forms(draw, monkeypatch)
    statements = draw.choice((1, 2, 3, 3, 4))

    def made(dtype: str) -> tuple[Block, list[np.ndarray], list[str]]:
        if nested:
            return nested_mixture(seed, dtype, min(statements, 2))
        return mixture(seed, dtype, statements, scored)

    block, values, wrt = made(dtype)
    wide = vjp(*made("float64")[::2]) if itemsize(dtype) == 2 else None
    rng = np.random.default_rng(seed)
    orders = 2 if dtype == "float64" and draw.random() < 0.35 else 1
    for order in range(1, orders + 1):
        values += [rng.standard_normal(block.types[n].shape).astype(as_dtype(dtype)) for n in block.results]
        count = len(block.params)
        block = vjp(block, wrt)
        agree(block, values, backend, PARTS[dtype] * order, guards, wide)
        wrt = [*wrt, *block.params[count:]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", QUICK)
def test_a_mixture_agrees_with_the_reference_executor(seed, monkeypatch, guards):
    compare(seed, monkeypatch, guards)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SCORED)
def test_a_mixture_with_scores_of_gathered_rows_agrees_with_the_reference_executor(seed, monkeypatch, guards):
    compare(seed, monkeypatch, guards, scored=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", NESTED)
def test_a_mixture_inside_of_loops_and_branches_agrees_with_the_reference_executor(seed, monkeypatch, guards):
    compare(seed, monkeypatch, guards, nested=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_many_mixtures_inside_of_loops_and_branches_agree_with_the_reference_executor(part, monkeypatch, guards):
    for seed in range(part * 40 + 200, part * 40 + 240):
        compare(seed, monkeypatch, guards, nested=True)
        guards.clear()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_mixtures_agree_with_the_reference_executor(part, monkeypatch, guards):
    for seed in range(part * 40 + 200, part * 40 + 240):
        compare(seed, monkeypatch, guards, scored=seed % 2 == 1)
        guards.clear()
