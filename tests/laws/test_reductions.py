"""Machine code agrees with the reference executor on random blocks that reduce different axes of the same arrays."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.reductions import reductions

PARTS = {"float64": 1e-9, "float32": 3e-4, "bfloat16": 0.15, "float16": 0.04}
"""Largest errors as parts of the largest element."""

SMALLEST = {"float64": 0.01, "float32": 0.01, "bfloat16": 0.1, "float16": 0.1}
"""A result whose elements are all smaller is the difference of larger values, or a sum of their rounding errors."""


def limited(draw: random.Random) -> CpuBackend:
    """The CPU, with limits that small arrays reach."""
    backend = CpuBackend()
    rows = replace(
        CPU_TARGET.rows,
        longest_row=draw.choice((16, 2**17, 2**17)),
        longest_total=draw.choice((16, 4096, 4096, 4096)),
        split_rows=draw.choice(((8192, 256, 16), (64, 16, 16))),
        unrelated=draw.choice((0, 100)),
    )
    backend.target = replace(CPU_TARGET, rows=rows)  # type: ignore[misc]
    return backend


def compare(seed: int) -> None:
    """Compare the gradients of a block, and sometimes the gradients of these.

    Where the reference executor is far from its own results in float64, machine code may be far from them, too.
    """
    draw = random.Random(seed)
    dtype = draw.choice(("float64", "float64", "float64", "float64", "float32", "float16", "bfloat16"))
    backend, statements = limited(draw), draw.choice((3, 5, 8, 12))
    (block, values), (exact, _) = (reductions(seed, each, statements) for each in (dtype, "float64"))
    rng = np.random.default_rng(seed)
    for order in range(1, 3 if dtype == "float64" and draw.random() < 0.25 else 2):
        values += [rng.standard_normal(block.types[n].shape).astype(as_dtype(dtype)) for n in block.results]
        block, exact = vjp(block), vjp(exact)
        with np.errstate(all="ignore"):
            wanted = interpreter_of(optimize(block))(Run(), *values)
            found = native_interpreter(optimize(block), backend)(Run(), *values)
            wide = interpreter_of(optimize(exact))(Run(), *(v.astype("f8") for v in values))
        for f, w, e in zip(found, wanted, wide, strict=True):
            away = 4 * np.abs(w.astype("f8") - e).max(initial=0.0) if dtype != "float64" else 0.0
            largest = np.abs(e).max(initial=SMALLEST[dtype])
            np.testing.assert_allclose(
                f.astype("f8"), w.astype("f8"), rtol=0, atol=PARTS[dtype] * order * largest + away
            )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", [*range(3), *(pytest.param(part, marks=pytest.mark.slow) for part in range(3, 6))])
def test_gradients_of_reductions_agree_with_the_reference_executor(part):
    for seed in range(part * 20, part * 20 + 20):
        compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_gradients_of_many_reductions_agree_with_the_reference_executor(part):
    for seed in range(part * 50 + 1000, part * 50 + 1050):
        compare(seed)
