"""Binding open sizes, on printed blocks before and after."""

from __future__ import annotations

import numpy as np
import pytest

import backpass_client as bp
from core.analysis import analyse
from core.compiler.compile import GradientQuery, bind_shapes, compile_gradient
from core.passes.bind import bind
from core.wire import read
from tests.core.blocks import Writer, printed


def test_open_sizes_become_those_of_the_run_in_every_type():
    w = Writer(x=(-1, 2))
    w.op("y", "tanh", "x")
    w.op("z", "reduce_sum", "y", axes=(1,))
    block = w.block("y z")

    assert str(block) == printed("""
        (x: float64[?, 2]) {
          y = tanh(x)
          z = reduce_sum(y) {'axes': (1,), 'keepdims': False}
          -> y, z
        }
    """)
    assert str(bind(block, {"x": (3, 2)})) == printed("""
        (x: float64[3, 2]) {
          y = tanh(x)
          z = reduce_sum(y) {'axes': (1,), 'keepdims': False}
          -> y, z
        }
    """)


def stacked(time, reverse, nested, rows=2):
    """A scan whose outputs, stacked, are read by a matmul; nested: each of its steps scans a captured array."""
    with bp.Builder("stacked") as b:
        x, w = bp.feed("x", bp.f64[time, rows, 3]), bp.parameter("w", bp.f64[3, 3])

        def step(h, each):
            if nested:
                _, seen = bp.scan(lambda s, e: (s + e, s * e), each, x)
                each = each + seen.mean(0)
            h = bp.tanh(h @ w + each)
            return h, h

        _, out = bp.scan(step, bp.full_like(x.mean(0), value=0.1), x, reverse=reverse)
        scores = bp.matmul(bp.transpose(out, axes=[1, 0, 2]), w)
        return read(bp.built(b, {"loss": bp.square(scores).mean()}).document())


SCANS = [(reverse, nested) for reverse in (False, True) for nested in (False, True)]


OPEN = [("time", 2), (5, "rows"), ("time", "rows")]


@pytest.mark.parametrize("sizes", OPEN)
@pytest.mark.parametrize(("reverse", "nested"), SCANS)
def test_a_scan_over_a_bound_array_is_that_over_a_declared_one(reverse, nested, sizes):
    time, rows = sizes
    bound = bind_shapes(stacked(time, reverse, nested, rows), {"x": (5, 2, 3)}).block

    assert str(bound) == str(stacked(5, reverse, nested).block)
    assert bound.types == stacked(5, reverse, nested).block.types


@pytest.mark.parametrize("sizes", OPEN)
def test_a_scan_over_a_bound_array_has_machine_code_for_all_its_ops(sizes):
    time, rows = sizes
    program = bind_shapes(stacked(time, reverse=False, nested=False, rows=rows), {"x": (5, 2, 3)})

    assert analyse(program, GradientQuery(loss="loss"))["machine_code"]["ops"]["interpreted"] == 0


@pytest.mark.sampled(2, each="length")
@pytest.mark.parametrize("rows", [2, "rows"])
@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize(("reverse", "nested"), SCANS)
def test_binding_the_length_of_a_scan_changes_no_gradient(length, reverse, nested, rows):
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((length, 2, 3)), "w": rng.standard_normal((3, 3))}
    program, query = stacked("time", reverse, nested, rows), GradientQuery(loss="loss")

    unbound = compile_gradient(program, query).step(values)
    bound = compile_gradient(program, query, shapes={"x": (length, 2, 3)})

    for step in (bound.step, bound.compiled().step):
        found = step(values)
        assert np.allclose(found.loss, unbound.loss, rtol=1e-12, equal_nan=True)
        assert np.allclose(found.gradients["w"], unbound.gradients["w"], rtol=1e-11, equal_nan=True)
