"""Many loops and branches after each other have functions of their own: LLVM's time grows faster than a function."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen import step as writer
from core.codegen.backend import write_plan
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.plan import plan_block
from core.wire import read
from tests.programs import Sketch


def loops(count: int) -> Sketch:
    """So many loops after each other, each with a branch inside."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.feed("positive", True, "bool")
    s.op("assign", "w", out="h")
    for _ in range(count):
        with s.repeat(3):
            with s.block() as yes:
                s.op("tanh", s.op("mul", "h", "w"), out="h")
            with s.block() as no:
                s.op("sin", "h", out="h")
            s.branch("positive", yes, no)
    s.total("h")
    return s


def longest_function(sketch: Sketch) -> int:
    block = compile_gradient(read(sketch.document), GradientQuery(loss="loss")).interpreter.block
    module, _ = write_plan(plan_block(block, CPU_TARGET))
    return max(len(f.text()) for f in module.functions)


def test_the_longest_function_is_far_from_all_loops(monkeypatch: pytest.MonkeyPatch):
    together = longest_function(loops(15))
    monkeypatch.setattr(writer, "CROWDED", 10)

    apart = longest_function(loops(15))

    assert apart < together / 4


@pytest.mark.parametrize("positive", [True, False])
def test_loops_in_functions_of_their_own_give_the_same_bits(positive: bool, monkeypatch: pytest.MonkeyPatch):
    sketch = loops(4)
    values = sketch.values | {"positive": np.asarray(positive)}
    executable = compile_gradient(read(sketch.document), GradientQuery(loss="loss"))
    together = executable.compiled().step(values)
    monkeypatch.setattr(writer, "CROWDED", 0)

    apart = executable.compiled().step(values)

    np.testing.assert_array_equal(apart.gradients["w"], together.gradients["w"])
    np.testing.assert_allclose(apart.gradients["w"], executable.step(values).gradients["w"], rtol=1e-12)
