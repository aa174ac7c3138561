"""Recomputation between cuts, on printed ops before and after."""

from __future__ import annotations

from core.autodiff.adjoint import Adjoint
from core.ir import Block, Op
from core.passes.recompute import Recomputed, recompute
from tests.core.blocks import Writer


def chain() -> tuple[Block, list[Op]]:
    """``c = tanh(tanh(tanh(x)))`` and its adjoint ops for a cotangent of c that is given as `ct`."""
    w = Writer(x=(2,))
    w.op("a", "tanh", "x")
    w.op("b", "tanh", "a")
    w.op("c", "tanh", "b")
    block = w.block("c")
    adjoint = Adjoint(block)
    adjoint.run([("c", adjoint.seed("c"))], ["x"])
    return block, adjoint.ops()


def reads(ops: tuple[Op, ...] | list[Op]) -> list[str]:
    """The forward variables that the ops read, in order."""
    return [name for op in ops for name in op.inputs if name.partition("@")[0] in "abcx" and "@GRAD" not in name]


def again(made: Recomputed) -> list[str]:
    return [f"{', '.join(op.outputs)} = {op.type}({', '.join(op.inputs)})" for op in made.ops if "AGAIN" in str(op)]


def test_without_a_cut_the_adjoint_reads_the_forward_values():
    block, ops = chain()

    made = recompute(block, ops, cuts=[])

    assert reads(made.ops) == reads(ops) == ["c", "b", "a"]
    assert (made.checkpoints, made.again) == ((), 0)


def test_the_adjoint_of_a_segment_reads_values_recomputed_from_its_checkpoints():
    block, ops = chain()

    made = recompute(block, ops, cuts=[1])  # x, a, b | c

    assert made.checkpoints == ("b",)
    assert made.again == 1
    assert again(made)[:2] == ["x@AGAIN0 = barrier(x)", "a@AGAIN = tanh(x@AGAIN0)"]
    assert reads(made.ops)[-1] == "a@AGAIN"
    assert [name for name in reads(made.ops) if name == "a"] == []


def test_a_variable_named_as_a_checkpoint_is_not_recomputed():
    block, ops = chain()

    made = recompute(block, ops, cuts=[1], checkpoints=["a"])

    assert made.checkpoints == ("a", "b")
    assert made.again == 0
