"""Expansion of composites, on printed blocks before and after."""

from __future__ import annotations

import pytest

from core.ir import HOLE, TensorType
from core.ir.builder import BlockBuilder, output_types
from core.ir.registry import lookup
from core.passes import expand_composites
from tests.core.blocks import Writer, printed
from tests.laws.examples import OPS, block_for, examples_of


def test_a_composite_is_replaced_by_its_expansion():
    w = Writer(x=(2,))
    w.op("y", "silu", "x")
    block = w.block("y")

    assert str(block) == printed("""
        (x: float64[2]) {
          y = silu(x)
          -> y
        }
    """)
    assert str(expand_composites(block)) == printed("""
        (x: float64[2]) {
          sigmoid@1 = sigmoid(x)
          mul@2 = mul(x, sigmoid@1)
          -> mul@2
        }
    """)


@pytest.mark.parametrize("name", sorted(name for name, spec in OPS.items() if spec.kind == "composite"))
def test_expanded_ops_have_the_types_that_inference_gives_them(name):
    for example in examples_of(OPS[name]):
        block = expand_composites(block_for(OPS[name], example))

        for op in block.ops:
            inputs = tuple(None if n == HOLE else block.types[n] for n in op.inputs)
            assert tuple(block.types[n] for n in op.outputs) == output_types(lookup(op.type), inputs, op.attrs)


def test_a_block_of_other_types_gets_its_types_anew():
    inner = BlockBuilder()
    x = inner.param(TensorType((-1, 3), "float32"))
    twice = inner.build([inner.emit("add", x, x)])
    b = BlockBuilder()

    (known,) = b.inline(twice, [b.param(TensorType((5, 3), "float32"))])
    (opened,) = b.inline(twice, [b.param(TensorType((-1, 3), "float32"))])

    assert known.type == TensorType((5, 3), "float32")
    assert opened.type == TensorType((-1, 3), "float32")
