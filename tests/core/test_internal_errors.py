"""Invariants that guard memory are raised errors: `python -O` removes asserts, and would run the code regardless."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import core
from core.codegen.cpu_target import CPU_TARGET
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.codegen.operands import Operands
from core.codegen.product import product_function
from core.codegen.vector_slices import load_phases
from core.ir.errors import InternalError, Location
from core.plan.fusion import Fusion
from core.plan.instructions import Gemm, Rows
from core.plan.memory import Root, View
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.runtime.memory import LENT, Arenas

ROOMS = ("codegen", "plan", "runtime")
FILES = sorted(
    path
    for room in ROOMS
    for path in (Path(core.__file__).parent / room).rglob("*.py")
    if re.search(r"^ *assert\b", path.read_text(), re.M)
)


def narrows(test: ast.expr) -> bool:
    """Whether an assert only narrows the type of a value: `isinstance` or `is not None`."""
    if isinstance(test, ast.BoolOp):
        return all(map(narrows, test.values))
    if isinstance(test, ast.Compare):
        is_none = [isinstance(each, ast.Constant) and each.value is None for each in test.comparators]
        return all(is_none) and all(isinstance(each, ast.IsNot) for each in test.ops)
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_asserts_of_compiled_code_only_narrow_types(path):
    asserts = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]

    assert [ast.unparse(each) for each in asserts if not narrows(each.test)] == []


def test_an_internal_error_names_its_place_and_keeps_the_closest():
    error = InternalError("a vector of 4 lanes").at(Location(0, 2, "add")).at(Location(1, 0, "loop"))

    assert str(error) == "block 0, op 2 (add): a vector of 4 lanes"


def test_a_vector_is_not_splatted_to_other_lanes():
    with pytest.raises(InternalError, match=r"cannot splat <4 x float> %v to 8 lanes"):
        Function("f", []).splat(IRValue("%v", "float32", 4), 8)


def test_neighbors_beyond_the_stride_are_not_read():
    f = Function("f", [("x", "ptr")])

    with pytest.raises(InternalError, match="cannot read 3 neighbors"):
        load_phases(f, f.param("x"), "float32", stride=1, lanes=1, count=1, wanted=3)


def test_a_fusion_takes_no_array_that_would_split_its_row():
    fusion = Fusion((2, 20), 0, CPU_TARGET.rows)
    x = View(Root(160), "float32", (2, 20), (20, 1))
    of_rows = View(Root(8), "float32", (2, 20), (1, 0))
    fusion.reduce("sum", fusion.load(x, (0, 1)), frozenset({0, 1}), "float32")

    with pytest.raises(InternalError, match="its sums partial"):
        fusion.load(of_rows, (0, 1))


def test_a_store_of_one_element_needs_an_operand_with_one_element_a_row():
    kernel = RowKernel((4,), 8, (Operand("float32", (8,), 1, True),), (RowInstruction("store", "float32", operand=0),))
    operands = Operands(Function("f", [("p0", "ptr")]), kernel, 4)

    with pytest.raises(InternalError, match="stores one element of a row of 8 to operand 0"):
        operands.put_one(0, I64(0))


def test_an_unpacked_product_takes_no_epilogue():
    a, b, c = (View(Root(64), "float32", (4, 4), (4, 1)) for _ in range(3))
    product = Gemm(a, b, c, then=Rows(RowKernel((4,), 4, (), ()), ()))

    with pytest.raises(InternalError, match="only a packed product has an epilogue"):
        product_function(Module(), product)


def test_a_shared_arena_is_not_owned():
    with pytest.raises(InternalError, match=f"an arena of {LENT} bytes is shared"):
        _ = Arenas(LENT).small
