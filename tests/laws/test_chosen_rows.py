"""Random programs on chosen rows (`tests.chosen`): machine code agrees with the reference executor, reads and writes
only its arrays, and has the same bits on every run, whatever an earlier run left in its memory.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.codegen import backend as backends
from core.codegen import parallel
from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import Executable, GradientQuery, compile_gradient
from core.ir.errors import ExecutionError
from core.plan import instructions, linear, rows_at, side_by_side, sized_products, sizes
from core.plan.side_by_side import Limits
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.chosen import Chosen
from tests.laws.guards import Guarded, guards
from tests.laws.random_programs import POLICIES, second_order

__all__ = ["guards"]

ROWS = (0, 1, 2, 5, 9, 20)
DTYPES = ("float64", "float64", "float32", "float32", "bfloat16")
SHARES = (0.0, 0.3, 0.8, 1.0)
TOLERANCE = {"float64": 1e-9, "float32": 2e-3, "bfloat16": 0.2, "float16": 0.05}
"""Of the largest element. Some programs amplify a rounding; a wrong row or size is an error of another order."""

BLOCK = 8
"""Terms of a block of a product: shorter than usual, so that few rows make several."""


@pytest.fixture
def rare_forms(monkeypatch):
    """Limits so low that small programs reach what only large ones do: threads, blocks, stripes, lookups in fusions."""
    monkeypatch.setattr(parallel, "LONG", 1)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(rows_at, "LEAST", 2)
    monkeypatch.setattr(side_by_side, "LIMITS", Limits(longest=1e18, heavy=0.0, gain=-math.inf))
    monkeypatch.setattr(sizes, "FEWEST", 2)
    monkeypatch.setattr(sizes, "MOST", 8)
    for module in (instructions, sizes, sized_products, linear):
        monkeypatch.setattr(module, "PRODUCT_BLOCK", BLOCK)


def compiled(program: Chosen, draw: random.Random, order: int) -> Executable:
    first, second = (draw.choice(POLICIES) for _ in range(2))
    inputs = tuple(program.inputs)
    document = read(program.sketch.document)
    if order == 2:
        return second_order(document, inputs=inputs, memory=(first, second))
    query = GradientQuery(targets=("loss",), inputs=inputs, unconnected="zeros", loop_memory=first, hooks=hooks(draw))
    return compile_gradient(document, query, fetch=["loss"])


def hooks(draw: random.Random) -> tuple[Hook, ...]:
    if draw.random() < 0.6:
        return ()
    match = draw.choice(({"role": "parameter"}, {"op": "gather"}, {"op": "matmul"}, {"op": "split_by_mask"}))
    action = draw.choice((
        {"do": "clip_value", "min": -0.5, "max": 0.75}, {"do": "clip_value", "min": 0.01, "max": 2.0},
        {"do": "clip_norm", "max_norm": 0.5}, {"do": "scale", "factor": -0.5}, {"do": "check_finite"},
    ))  # fmt: skip
    return (Hook.read({"match": match, **action, "when": draw.choice(("after_accumulation", "each_contribution"))}),)


def outcome(run: Any, args: list[np.ndarray]) -> Any:
    """The results of a run, or the code of its error."""
    with np.errstate(all="ignore"):
        try:
            return [np.array(each) for each in run(Run(), *args)]
        except ExecutionError as error:
            return error.code


def agree(found: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert found == wanted
        return
    assert not isinstance(found, str), found
    for f, w in zip(found, wanted, strict=True):
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        if str(w.dtype) not in TOLERANCE:
            np.testing.assert_array_equal(f, w)
            continue
        allowed = TOLERANCE[str(w.dtype)]
        f, w = f.astype("f8"), w.astype("f8")
        largest = max(1.0, np.abs(w[np.isfinite(w)]).max(initial=0.0))
        tolerance = allowed * largest
        np.testing.assert_allclose(f, w, rtol=0, atol=tolerance)


def same_bits(found: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert found == wanted
        return
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(f, w)


def check(seed: int, order: int, monkeypatch: Any, held: list[Guarded]) -> None:
    draw = random.Random(seed)
    rows, share, dtype = draw.choice(ROWS), draw.choice(SHARES), draw.choice(DTYPES)
    program = Chosen(seed, rows, share, dtype)
    block = (executable := compiled(program, draw, order)).interpreter.block
    names = [v.name for v in executable.inputs]
    backend = CpuBackend()
    if draw.random() < 0.5:
        stripes = replace(
            CPU_TARGET.stripes, nbytes=0, least=draw.choice((2, 4)), stripe=64, batch=1, matrix=0, shared=64
        )
        backend.target = replace(backend.target, stripes=stripes)  # type: ignore[misc]
    if draw.random() < 0.5:  # loops of few trips compute products for several of them at once
        backend.target = replace(backend.target, products=replace(CPU_TARGET.products, terms=2 * rows + 1))  # type: ignore[misc]
    threads = draw.choice((1, 2, 3))
    monkeypatch.setattr(backends, "thread_count", lambda: threads)
    reference, native = interpreter_of(block), native_interpreter(block, backend)
    other = program.data(np.random.default_rng(seed + 1), draw.choice(SHARES))
    batches = [program.sketch.values, program.sketch.values | other]
    rounds: list[list[Any]] = []
    for number in range(4):  # in the first ones, sizes without a largest value are larger than the code expects
        results = []
        for values in batches:
            given = []
            for name in names:
                value = np.asarray(values[name])
                guarded = Guarded(value.shape, value.dtype)
                guarded.array[...] = value
                held.append(guarded)
                given.append(guarded.array)
            results.append(outcome(native, given))
            if number != 2:
                agree(results[-1], outcome(reference, [values[name] for name in names]))
            for array, name in zip(given, names, strict=True):
                np.testing.assert_array_equal(array, values[name])
            assert all(each.intact for each in held)
        rounds.append(results)
    for found, wanted in zip(rounds[-1], rounds[-2], strict=True):
        same_bits(found, wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_a_program_on_chosen_rows_agrees_with_the_reference_executor(seed, rare_forms, guards, monkeypatch):
    check(seed, 1 + seed % 2, monkeypatch, guards)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_programs_on_chosen_rows_agree_with_the_reference_executor(seed, order, rare_forms, guards, monkeypatch):
    check(seed, order, monkeypatch, guards)
