"""The roles of the operands and outputs of loops and branches."""

from __future__ import annotations

from core.ir import Block, Op, StackType, TensorType
from core.ir.registry import is_loop, roles_of

X = TensorType((2,), "float64")


def loop_op(carried: int, captured: int, inputs: int, outputs: int) -> Op:
    names = [f"x{i}" for i in range(inputs)], [f"y{i}" for i in range(outputs)]
    return Op("loop", tuple(names[0]), tuple(names[1]), {"carried": carried, "captured": captured})


def test_the_operands_of_a_loop_are_carried_then_captured_then_elements():
    roles = roles_of(loop_op(carried=2, captured=1, inputs=5, outputs=3))

    assert roles is not None
    assert roles.split("abcde") == ("ab", "c", "de")
    assert list(roles.passed) == [0, 1, 2, 3, 4]
    assert list(roles.optional) == [2]
    assert list(roles.condition) == []


def test_each_trip_takes_one_element_of_a_stack():
    roles = roles_of(loop_op(carried=1, captured=1, inputs=3, outputs=1))

    assert roles is not None
    assert roles.param_types([X, StackType(X), StackType(X)]) == [X, StackType(X), X]


def test_no_side_of_a_branch_takes_the_condition():
    op = Op("if_else", ("go", "a", "b"), ("y", "z"))
    roles = roles_of(op)

    assert roles is not None
    assert [op.inputs[i] for i in roles.condition] == ["go"]
    assert [op.inputs[i] for i in roles.passed] == ["a", "b"]
    assert [roles.param(i) for i in roles.passed] == [0, 1]
    assert roles.param_types([TensorType((), "bool"), X, StackType(X)]) == [X, StackType(X)]
    assert list(roles.optional) == [0, 1]


def test_only_a_loop_repeats():
    block = Block((), (), (), {})
    assert is_loop(loop_op(carried=1, captured=0, inputs=1, outputs=1))
    assert not is_loop(Op("if_else", ("go",), (), {"true_block": block, "false_block": block}))
    assert not is_loop(Op("relu", ("x",), ("y",)))
    assert roles_of(Op("call", ("x",), ("y",), {"block": block})) is None
