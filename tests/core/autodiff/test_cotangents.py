"""Cotangents: the sum, names and order of the contributions to each variable's cotangent."""

from __future__ import annotations

import pytest

import core.compiler.compile  # noqa: F401  (declares every op)
from core.autodiff.cotangents import Cotangents, gradient_name
from core.autodiff.hooks import Hook, Hooks
from core.ir import Block
from core.ir.builder import BlockBuilder, SparseRows, Value
from tests.core.blocks import Writer


def of_square(*hooks: Hook) -> tuple[BlockBuilder, Cotangents]:
    """A builder with the variables of ``y = square(x)`` and no adjoint op, and the cotangents of these variables."""
    w = Writer(x=(2,))
    w.op("y", "square", "x")
    block = w.block("y")
    b = BlockBuilder()
    b.params.extend(block.params)
    b.types.update(block.types)
    return b, Cotangents(block, b, Hooks(hooks, {"x": "parameter"}))


def scale_by_3(**more: str) -> Hook:
    return Hook.read({"match": {"variable": "x"}, "do": "scale", "factor": 3.0, **more})


def lines(cotangents: Cotangents) -> list[str]:
    """The adjoint ops as ``out = type(inputs)``."""
    return [f"{', '.join(op.outputs)} = {op.type}({', '.join(op.inputs)})" for op in cotangents.ops()]


def one(b: BlockBuilder, value: float) -> Value:
    return b.constant(value, "float64", (2,))


def test_a_variable_without_a_contribution_has_no_cotangent():
    _, cotangents = of_square()

    assert not cotangents.waiting("x")
    assert cotangents.complete("x") is None


def test_a_single_contribution_is_named_after_the_variable():
    b, cotangents = of_square()

    cotangents.contribute("x", one(b, 1.0))

    assert cotangents.waiting("x")
    total = cotangents.complete("x")
    assert total is not None
    assert cotangents.final(total.name) == "x@GRAD"
    assert lines(cotangents) == ["x@GRAD = fill_constant()"]
    assert not cotangents.waiting("x")


def test_one_sum_right_after_the_last_contribution_adds_them():
    b, cotangents = of_square()

    for value in (1.0, 2.0, 3.0):
        cotangents.contribute("x", one(b, value))
    b.constant(9.0, "float64")  # an adjoint op written before the cotangent is complete
    cotangents.complete("x")

    *parts, total, other = lines(cotangents)
    assert parts == [f"x@GRAD@RENAME@{i} = fill_constant()" for i in range(3)]
    assert total == "x@GRAD = sum(x@GRAD@RENAME@0, x@GRAD@RENAME@1, x@GRAD@RENAME@2)"
    assert other.endswith("fill_constant()")


def test_a_complete_cotangent_stays_the_same_value():
    b, cotangents = of_square()
    cotangents.contribute("x", one(b, 1.0))

    assert cotangents.complete("x") is cotangents.complete("x")
    assert len(cotangents.ops()) == 1


def test_a_forward_variable_as_a_contribution_is_copied_by_assign():
    b, cotangents = of_square()

    cotangents.contribute("x", b.value("y"))
    cotangents.complete("x")

    assert lines(cotangents) == ["x@GRAD = assign(y)"]


def test_one_value_as_the_cotangent_of_two_variables_keeps_both_names():
    b, cotangents = of_square()
    ct = one(b, 1.0)

    for name in ("y", "x"):
        cotangents.contribute(name, ct)
        cotangents.complete(name)

    assert lines(cotangents) == ["y@GRAD = fill_constant()", "x@GRAD = assign(y@GRAD)"]
    assert cotangents.origin == {"y@GRAD": "y", "x@GRAD": "x"}


def test_a_hook_after_accumulation_acts_once_on_the_total():
    b, cotangents = of_square(scale_by_3())
    for value in (1.0, 2.0):
        cotangents.contribute("x", one(b, value))
    cotangents.complete("x")

    assert [line for line in lines(cotangents) if "scale" in line] == ["x@GRAD = scale(x@GRAD@WHOLE)"]
    assert cotangents.hooks.applied == [(0, "0:x")]


def test_a_hook_on_each_contribution_acts_on_every_one():
    b, cotangents = of_square(scale_by_3(when="each_contribution"))
    for value in (1.0, 2.0):
        cotangents.contribute("x", one(b, value))
    cotangents.complete("x")

    assert sum("scale(" in line for line in lines(cotangents)) == 2
    assert cotangents.hooks.applied == [(0, "0:x")] * 2


def of_table() -> tuple[BlockBuilder, Cotangents]:
    b = BlockBuilder()
    w = Writer(table=(5, 2))
    block: Block = w.block("table")
    b.params.extend(block.params)
    b.types.update(block.types)
    return b, Cotangents(block, b, Hooks())


def rows(b: BlockBuilder) -> SparseRows:
    return SparseRows(b.constant(1, "int64", (1,)), b.constant(2.0, "float64", (1, 2)))


def test_the_sum_of_row_sparse_contributions_is_row_sparse():
    b, cotangents = of_table()

    cotangents.contribute("table", rows(b))
    cotangents.contribute("table", rows(b))
    total = cotangents.complete("table")

    assert isinstance(total, SparseRows)
    assert sum(op.type == "merge_rows" for op in cotangents.ops()) == 1
    assert cotangents.densified == []


def test_rows_added_to_a_dense_cotangent_become_dense_and_the_reason_is_recorded():
    b, cotangents = of_table()

    cotangents.contribute("table", rows(b))
    cotangents.contribute("table", b.constant(1.0, "float64", (5, 2)))
    total = cotangents.complete("table")

    assert isinstance(total, Value)
    assert sum(op.type == "scatter_add_like" for op in cotangents.ops()) == 1
    assert [each.as_document() for each in cotangents.densified] == [
        {"variable": "0:table", "reason": "dense_contribution", "at": None}
    ]


@pytest.mark.parametrize("name", ["x", "layer/w", "1:h"])
def test_the_gradient_of_a_variable_is_named_after_it(name):
    assert gradient_name(name) == f"{name}@GRAD"
