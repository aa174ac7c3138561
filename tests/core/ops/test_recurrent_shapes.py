"""Recurrent ops: an operand with another number of axes is refused by name."""

from __future__ import annotations

from itertools import product

import pytest

from core.ir import TensorType
from core.ir.builder import output_types
from core.ir.errors import ProgramError
from core.ir.registry import lookup

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
HIDDEN = 5
OPS = [f"{name}{cell}" for name, cell in product(GATES, ("", "_cell"))]


def operands_of(name: str) -> dict[str, tuple[int, ...]]:
    """Operand -> a shape that fits, for 2 sequences of rows with 4 numbers."""
    rows = GATES[name.removesuffix("_cell")] * HIDDEN
    states = {"h": (2, HIDDEN)} | ({"c": (2, HIDDEN)} if name.startswith("lstm") else {})
    x = (2, 4) if name.endswith("_cell") else (3, 2, 4)
    return {"x": x, **states, "weight_x": (rows, 4), "weight_h": (rows, HIDDEN), "bias_x": (rows,), "bias_h": (rows,)}


def types_of_results(name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[object, ...]:
    spec = lookup(name)
    return output_types(spec, tuple(TensorType(shape) for shape in shapes.values()), spec.complete({}))


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
