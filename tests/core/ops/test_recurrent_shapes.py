"""Recurrent ops: an operand with another number of axes is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder, output_types
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import lookup
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.rounding import ROUNDING

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
HIDDEN = 5
OPS = [f"{name}{cell}" for name, cell in product(GATES, ("", "_cell"))]


def operands_of(name: str) -> dict[str, tuple[int, ...]]:
    """Operand -> a shape that fits, for 2 sequences of rows with 4 numbers."""
    rows = GATES[name.removesuffix("_cell")] * HIDDEN
    states = {"h": (2, HIDDEN)} | ({"c": (2, HIDDEN)} if name.startswith("lstm") else {})
    x = (2, 4) if name.endswith("_cell") else (3, 2, 4)
    return {"x": x, **states, "weight_x": (rows, 4), "weight_h": (rows, HIDDEN), "bias_x": (rows,), "bias_h": (rows,)}


def types_of_results(name: str, shapes: Mapping[str, tuple[int, ...] | None]) -> tuple[object, ...]:
    spec = lookup(name)
    types = tuple(None if shape is None else TensorType(shape) for shape in shapes.values())
    return output_types(spec, types, spec.complete({}))


@pytest.mark.parametrize("name", OPS)
def test_operands_that_fit_are_accepted(name):
    assert types_of_results(name, operands_of(name))


@pytest.mark.parametrize("name", OPS)
def test_an_operand_with_another_number_of_axes_is_refused_by_name(name):
    fitting = operands_of(name)

    for operand, shape in fitting.items():
        if operand.startswith("bias"):  # a bias broadcasts
            continue
        for other in ((), shape[-1:], (1, *shape), (1, 1, *shape)):
            if len(other) == len(shape):
                continue
            with pytest.raises(ProgramError, match=rf"^{operand} must be \[") as raised:
                types_of_results(name, {**fitting, operand: other})
            assert raised.value.code == "shape_mismatch"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OPS)
def test_every_shape_of_an_operand_is_accepted_or_refused_as_a_mistake_of_the_program(name):
    fitting = operands_of(name)

    for operand in fitting:
        for rank in range(5):
            for shape in product((0, 2, HIDDEN, -1), repeat=rank):
                try:
                    types_of_results(name, {**fitting, operand: shape})
                except ProgramError:
                    continue


def wrong_sizes(name: str) -> list[dict[str, tuple[int, ...]]]:
    """Operands with fewer or more rows than their gates and hidden numbers need, or one sequence for two states."""
    gates = GATES[name.removesuffix("_cell")]
    rows = [(gates, gates), (gates * 3, gates * 3), (gates * HIDDEN + 1,) * 2, (gates, gates * HIDDEN)]
    return [
        *({"weight_x": (n, 4), "weight_h": (m, HIDDEN)} for n, m in [*rows, *((m, n) for n, m in rows)]),
        {"x": (1, 4) if name.endswith("_cell") else (3, 1, 4)},
        {"h": (2, 1)},
    ]


@pytest.mark.parametrize("name", OPS)
def test_operands_of_sizes_that_do_not_fit_are_refused(name):
    for wrong in wrong_sizes(name):
        with pytest.raises(ProgramError) as raised:
            types_of_results(name, {**operands_of(name), **wrong, "bias_x": None, "bias_h": None})
        assert raised.value.code == "shape_mismatch"


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", OPS)
def test_open_sizes_that_do_not_fit_are_refused_by_the_run_with_and_without_steps(name, steps):
    if name.endswith("_cell") and steps == 0:
        return
    fitting = {operand: shape for operand, shape in operands_of(name).items() if not operand.startswith("bias")}
    b = BlockBuilder()
    given = [b.param(TensorType((-1,) * len(shape), "float64")) for shape in fitting.values()]
    out = b.emit(name, *given)
    block = optimize(b.build(list(out) if isinstance(out, tuple) else [out]))

    for run in (interpreter_of(block), native_interpreter(block, ROUNDING)):
        for wrong in ({}, *wrong_sizes(name)):
            shapes = (fitting | wrong).values()
            values = [np.ones((steps, *shape[1:]) if len(shape) == 3 else shape) for shape in shapes]
            if not wrong:
                run(Run(), *values)
                continue
            with pytest.raises(ExecutionError) as raised:
                run(Run(), *values)
            assert raised.value.code == "shape_mismatch"
