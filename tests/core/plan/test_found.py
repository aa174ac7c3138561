"""Ops that find positions compile to machine code, and so do the ops that read these positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ExecutionError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.partition import plan_parts
from core.wire import read
from tests.laws.agreement import both
from tests.laws.random_programs import second_order
from tests.programs import Sketch

SIZES = [(1, 1), (3, 4), (5, 20), (40, 13)]
"""Numbers of sequences, and their largest length. The last case has more positions than a block of a product."""


def unpadded(s: Sketch, n: int, width: int, rng: np.random.Generator) -> str:
    """A loss over the steps of padded sequences that are no padding."""
    x = s.feed("x", rng.standard_normal((n, width, 3)))
    h = s.op("tanh", s.op("matmul", x, s.param("w", rng.standard_normal((3, 5)))))
    return s.op("mean", s.op("square", s.op("sequence_unpad", h, "lengths")))


def shrunk(s: Sketch, n: int, width: int, rng: np.random.Generator) -> str:
    """A step of a recurrence for the sequences that have it; `lengths` descend."""
    x = s.feed("x", rng.standard_normal((n, 3)))
    h = s.op("matmul", x, s.param("w", rng.standard_normal((3, 4))))
    step = s.feed("step", np.array(width // 2), "int64")
    return s.op("reduce_sum", s.op("square", s.op("shrink_rnn_memory", h, "lengths", step)))


def masked(s: Sketch, n: int, width: int, rng: np.random.Generator) -> str:
    """A mean over each sequence under a mask of a known width."""
    x = s.feed("x", rng.standard_normal((n, width, 2)))
    h = s.op("matmul", x, s.param("w", rng.standard_normal((2, 3))))
    mask = s.op("sequence_mask", "lengths", maxlen=width, dtype="float64")
    return s.op("mean", s.op("tanh", s.op("mul", h, s.op("unsqueeze", mask, axes=[2]))))


PROGRAMS: list[Callable[[Sketch, int, int, np.random.Generator], str]] = [unpadded, shrunk, masked]


def lengths_of(n: int, width: int, rng: np.random.Generator) -> list[np.ndarray]:
    drawn = np.sort(rng.integers(0, width + 1, n))[::-1].copy()
    drawn[0] = max(drawn[0], 1)
    return [drawn, np.full(n, width)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "width"), SIZES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_step_on_sequences_of_different_lengths_is_machine_code_and_equals_the_reference_executor(program, n, width):
    for lengths in lengths_of(n, width, np.random.default_rng(n)):
        s = Sketch()
        s.feed("lengths", lengths, "int64")
        s.op("assign", program(s, n, width, np.random.default_rng(0)), out="loss")
        document = read(s.document)
        orders = [compile_gradient(document, GradientQuery(loss="loss"))]
        if n == 3:
            orders.append(second_order(document, inputs=("w",)))
        for executable in orders:
            block = executable.interpreter.block
            assert not plan_parts(block, CPU_TARGET).refused
            assert not plan_block(block, CPU_TARGET).interpreted
            both(block, [s.values[v.name] for v in executable.inputs])


@pytest.mark.parametrize("lengths", [[3, 5], [-1, 2]])
def test_lengths_that_do_not_fit_are_the_error_of_the_reference_executor(lengths):
    s = Sketch()
    s.feed("lengths", np.array(lengths), "int64")
    s.op("assign", unpadded(s, 2, 4, np.random.default_rng(0)), out="loss")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    errors = []
    for each in (executable, executable.compiled()):
        with pytest.raises(ExecutionError) as caught:
            each.step(s.values)
        errors.append((caught.value.code, caught.value.location))
    assert errors[0] == errors[1]


NAN = float("nan")
NUMBERS = [[1.5, NAN, -1.5, 1.5, NAN], [0.0, -0.0, 0.0], [NAN, NAN], [float("inf"), -float("inf"), 2.0, NAN] * 20]
IDS = [[4], [2, 2, 2], [5, 1, 5, 0, 1, 5], list(range(9, -1, -1)), [7, -3, 7, 2**40, -(2**40), 0] * 30]


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        *((ids, dtype) for ids in IDS for dtype in ("int64", "int32", "uint8")),
        *((numbers, dtype) for numbers in NUMBERS for dtype in ("float64", "float32", "bfloat16", "float16")),
    ],
    ids=lambda each: each if isinstance(each, str) else len(each),
)
def test_distinct_elements_are_found_as_numpy_finds_them(values, dtype):
    given = np.array(values).astype(as_dtype(dtype))
    if given.size % 2 == 0:
        given = given.reshape(-1, 2)
    s = Sketch()
    x, table = s.feed("x", given, dtype), s.param("w", np.random.default_rng(0).standard_normal((given.size, 3)))
    _, inverse, _ = s.op("unique_positions", x, out=["first", "inverse", "counts"])
    rows = s.op("square", s.op("gather", table, inverse))
    s.op("reduce_sum", rows, out="loss")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=("first", "counts"))

    assert not plan_block(executable.interpreter.block, CPU_TARGET).interpreted
    both(executable.interpreter.block, [s.values[v.name] for v in executable.inputs])
    outputs = executable.compiled().step(s.values)
    wide = given.astype("float64") if dtype in HALVES else given
    _, at, where, times = np.unique(wide.ravel(), return_index=True, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(outputs.fetched["first"], at)
    np.testing.assert_array_equal(outputs.fetched["counts"], times)
    np.testing.assert_allclose(
        outputs.gradients["w"],
        2 * s.values["w"] * np.bincount(where.ravel(), minlength=given.size)[:, None],
    )
