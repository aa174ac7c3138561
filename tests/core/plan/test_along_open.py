"""Ops along an axis whose size only the run tells are machine code, and agree with the reference executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.programs import Sketch

ROWS, COLUMNS = 70, 3
SHARES = (0.0, 0.02, 0.4, 1.0)
"""Of the rows that are chosen: none, few, many, all."""


def running(s: Sketch, rows: str) -> list[str]:
    kinds = [("cumsum", {}), ("cumsum", {"reverse": True}), ("cumsum", {"exclusive": True}), ("cumprod", {})]
    kinds += [("cumprod", {"reverse": True, "exclusive": True}), ("logcumsumexp", {})]
    return [s.op(type, rows, axis=0, **attrs) for type, attrs in kinds]


def sorts(s: Sketch, rows: str) -> list[str]:
    """Equal elements keep their order, and NaN and infinities have places of their own."""
    rounded = s.op("round", s.op("scale", rows, scale=2.0))
    wild = s.op("div", s.op("sub", rounded, "one"), s.op("mul", rounded, "zero"))
    whole = s.op("cast", rounded, dtype="int32")
    keys = (rows, rounded, wild, whole)
    orders = [s.op("argsort", each, axis=0, descending=d) for each in keys for d in (False, True)]
    tops = [s.op("sort", rows, axis=0, descending=d, out=[f"top{d}", f"at{d}"])[0] for d in (False, True)]
    return [*orders, *tops]


def slices(s: Sketch, rows: str) -> list[str]:
    parts = [(0, 5, 1), (2, 999, 1), (-4, 999, 1), (0, -3, 1), (-9, -2, 2), (1, -1, 3), (-1, -(2**31), -1), (9, 1, -2)]
    found = [s.op("slice", rows, axes=[0], starts=[a], ends=[b], steps=[c]) for a, b, c in parts]
    both = s.op("slice", rows, axes=[0, 1], starts=[1, 1], ends=[999, 3])
    return [*found, both, s.op("flip", rows, axes=[0])]


def borders(s: Sketch, rows: str) -> list[str]:
    numbers = s.op("pad_constant", s.op("cast", rows, dtype="int64"), paddings=[2, 1, 0, 0], value=7)
    return [s.op("pad_constant", rows, paddings=[1, 3, 0, 2], value=0.5), numbers]


def joins(s: Sketch, rows: str) -> list[str]:
    two = s.op("concat", [rows, s.op("sin", rows)], axis=0)
    mixed = s.op("concat", ["x", rows, "w", rows], axis=0)
    numbers = s.op("concat", [s.op("cast", rows, dtype="int64"), s.op("cast", "w", dtype="int64")], axis=0)
    turned = s.op("transpose", rows)
    return [two, mixed, numbers, s.op("concat", [turned, turned], axis=1), s.op("concat", [two, two], axis=1)]


def writes(s: Sketch, rows: str) -> list[str]:
    """Of rows that are written to one place the last one stays."""
    at = s.op("gather", "places", s.op("reshape", s.op("nonzero", "mask"), shape=[-1]))
    names = s.op("unsqueeze", at, axes=[1])
    return [s.op("scatter", "w", at, rows), s.op("scatter_nd_update", "w", names, rows)]


CASES = (running, sorts, slices, borders, joins, writes)


@pytest.mark.sampled(2, each="case")
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_and_gradients_agree_with_the_reference_executor(case, share):
    rng, s = np.random.default_rng(3), Sketch()
    s.feed("mask", rng.random(ROWS) < share, "bool")
    s.feed("places", rng.integers(0, 4, ROWS), "int64")
    s.feed("one", np.ones(()))
    s.feed("zero", np.zeros(()))
    s.param("x", rng.uniform(0.3, 1.5, (ROWS, COLUMNS)) * rng.choice([-1, 1], (ROWS, COLUMNS)))
    s.param("w", rng.standard_normal((5, COLUMNS)))
    found = case(s, s.op("compress", "x", "mask", axis=0))
    terms = [s.op("reduce_sum", s.op("sin", each)) for each in found if not is_integer(s, each)]
    s.op("sum", [*terms, s.op("reduce_sum", s.op("square", "w"))], out="loss")
    query = GradientQuery(targets=("loss",), inputs=("x", "w"), unconnected="zeros")
    executable = compile_gradient(read(s.document), query, fetch=found)
    block = executable.interpreter.block
    parts = plan_parts(block, CPU_TARGET)
    left = [*parts.refused.values(), *(each.reason for plan in parts.regions for each in plan.interpreted)]
    given = [np.asarray(s.values[v.name]) for v in executable.inputs]

    assert left == []
    native = native_interpreter(block, CpuBackend())
    with np.errstate(all="ignore"):
        wanted = interpreter_of(block)(Run(), *given)
        for _ in range(3):  # sizes that are larger than expected make the code anew
            for one, want in zip(native(Run(), *given), wanted, strict=True):
                assert one.shape == want.shape and one.dtype == want.dtype
                np.testing.assert_allclose(one, want, rtol=1e-9, atol=1e-12)


def is_integer(s: Sketch, name: str) -> bool:
    types = {op["outputs"]["out"][0]: op for op in ops_of(s) if "out" in op.get("outputs", {})}
    op = types.get(name)
    while op is not None and op["type"] in ("concat", "pad_constant"):
        op = types.get(next(iter(op["inputs"].values()))[0])
    return op is not None and (op["type"] == "argsort" or op["attrs"].get("dtype", "").startswith("int"))


def ops_of(s: Sketch) -> list[dict[str, Any]]:
    return [op for block in s.document["blocks"] for op in block["ops"]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("at", [[0, 1, 0], [2, -3, 1], [0, 3, 1], [0, -4, 1]])
@pytest.mark.parametrize("shape", [(9,), (9, 1)])
def test_positions_count_from_the_ends_of_the_chosen_rows_and_are_checked(shape, at):
    """Three of nine rows are chosen: a position of 3 is out of range, though the memory has more rows."""
    s, rng = Sketch(), np.random.default_rng(0)
    s.feed("mask", np.arange(9) % 3 == 1, "bool")
    s.feed("places", np.reshape(np.repeat(at, 3), shape), "int64")
    s.param("x", rng.standard_normal(shape))
    rows, index = (s.op("compress", name, "mask", axis=0) for name in ("x", "places"))
    s.total(s.op("sin", s.op("take_along_axis", rows, index, axis=0)))
    executable = compile_gradient(read(s.document), GradientQuery(targets=("loss",), inputs=("x",)), fetch=["loss"])
    block, given = executable.interpreter.block, [np.asarray(s.values[v.name]) for v in executable.inputs]
    native = native_interpreter(block, CpuBackend())

    if any(not -3 <= i < 3 for i in at):
        for run in (interpreter_of(block), native):
            with pytest.raises(ExecutionError) as caught:
                run(Run(), *given)
            assert caught.value.code == "index_out_of_range"
        return
    for one, want in zip(native(Run(), *given), interpreter_of(block)(Run(), *given), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-12)


@pytest.mark.parametrize("rows", [9, 12])
def test_rows_are_added_at_as_many_positions_only(rows):
    """Positions and rows are chosen by masks of their own, of 9 and of `rows` elements."""
    s, rng = Sketch(), np.random.default_rng(0)
    s.feed("one", np.arange(9) % 3 == 1, "bool")
    s.feed("other", np.arange(rows) % 4 == 1, "bool")
    s.param("x", rng.standard_normal((rows, 2)))
    s.param("w", rng.standard_normal((9, 2)))
    at = s.op("reshape", s.op("nonzero", "one"), shape=[-1])
    s.total(s.op("sin", s.op("index_add", "w", at, s.op("compress", "x", "other", axis=0))))
    query = GradientQuery(targets=("loss",), inputs=("x", "w"))
    executable = compile_gradient(read(s.document), query, fetch=["loss"])
    block, given = executable.interpreter.block, [np.asarray(s.values[v.name]) for v in executable.inputs]
    native = native_interpreter(block, CpuBackend())

    if rows == 9:  # 3 positions and 2 rows
        for run in (interpreter_of(block), native):
            with pytest.raises(ExecutionError):
                run(Run(), *given)
        return
    for one, want in zip(native(Run(), *given), interpreter_of(block)(Run(), *given), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-12)
