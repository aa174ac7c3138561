"""Nested loops that change the sizes of carried values: each level is read again with open sizes."""

from __future__ import annotations

import numpy as np

from core.compiler.compile import bind_shapes, compile_forward
from core.ir import Block, TensorType, inner_blocks
from core.wire import read
from tests.programs import Sketch

TOO_DEEP_TO_DOUBLE = 24
"""Levels of loops: two readings of each level for each reading of the level outside would be 2**24 of the last one."""


def widening(depth: int) -> Sketch:
    """`depth` nested loops of two trips. Each sets the value of the next one, and appends its result to its own."""
    s = Sketch()
    s.feed("x", [1.0, 2.0])
    s.blocks[0]["vars"][-1]["shape"] = [-1]
    for level in range(1, depth + 1):
        s.op("assign", "x", out=f"h{level}")

    def loop(level: int) -> None:
        with s.repeat(2):
            if level > 1:
                s.op("assign", "x", out=f"h{level - 1}")
                loop(level - 1)
            s.op("concat", [f"h{level}", f"h{level - 1}" if level > 1 else "x"], axis=0, out=f"h{level}")

    loop(depth)
    return s


def length(depth: int, size: int) -> int:
    """The length of the outermost value after its loop."""
    return size if depth == 0 else size + 2 * length(depth - 1, size)


def sizes_inside(block: Block) -> list[TensorType]:
    """The types of the innermost values."""
    inner = [each for op in block.ops for _, each in inner_blocks(op)]
    return sizes_inside(inner[0]) if inner else [t for n, t in block.types.items() if n.startswith("h")]


def test_a_deep_nest_of_loops_that_widen_their_values_is_read():
    program = read(widening(TOO_DEEP_TO_DOUBLE).document)

    assert all(type.shape == (-1,) for type in sizes_inside(program.block))


def test_the_sizes_of_a_deep_nest_of_loops_that_widen_their_values_are_bound():
    program = bind_shapes(read(widening(TOO_DEEP_TO_DOUBLE).document), {"x": (2,)})

    assert program.block.types["x"] == TensorType((2,), "float64")
    assert all(type.shape == (-1,) for type in sizes_inside(program.block))


def test_loops_that_widen_their_values_give_all_elements():
    sketch = widening(3)

    out = compile_forward(read(sketch.document), ["h3"], {"x": (2,)}).step(sketch.values)

    assert out.fetched["h3"].shape == (length(3, 2),)
    np.testing.assert_array_equal(out.fetched["h3"], np.tile([1.0, 2.0], length(3, 2) // 2))
