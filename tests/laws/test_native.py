"""Machine code does what the reference executor does, on every op and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.autodiff import vjp
from core.compile import GradientQuery, compile_gradient, key_of, optimize
from core.errors import ExecutionError
from core.runtime.native import native_plan
from core.runtime.reference import Run, plan
from core.wire import read
from tests.laws.test_ops import CASES, OPS, arrays, block_for, examples_of, floats
from tests.laws.test_random_programs import ALL, EXAMPLES, leaves, second_order
from tests.strategies import programs


def same(found, wanted):
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            same(f, w)
        return
    if wanted is None:
        assert found is None
        return
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if wanted.dtype.kind == "f":
        tolerance = 1e-10 if wanted.dtype == np.float64 else 2e-5
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, wanted)


def both(block, args):
    wanted = refused = None
    with np.errstate(all="ignore"):
        try:
            wanted = plan(block)(Run(), *args)
        except ExecutionError as error:
            refused = error
        native = native_plan(block)
        if refused is not None:
            with pytest.raises(ExecutionError) as caught:
                native(Run(), *args)
            assert caught.value.code == refused.code
            return
        for f, w in zip(native(Run(), *args), wanted, strict=True):
            same(f, w)


@pytest.mark.parametrize(("name", "i"), CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_op_and_its_gradient_are_what_the_reference_executor_gives(name, i, dtype):
    example = examples_of(OPS[name])[i]
    values = [x.astype(dtype) if not isinstance(x, list) and x.dtype.kind == "f" else x for x in arrays(example)]
    if dtype == "float32" and (not floats(values) or any(isinstance(x, list) for x in values)):
        pytest.skip("no floating-point arrays")
    try:
        types = [None] * 0 or None
        from core.ir import TensorType

        if dtype == "float32":
            types = [TensorType(x.shape, str(x.dtype)) for x in values]
        block = block_for(OPS[name], example, types)
    except Exception as error:
        pytest.skip(str(error))
    wrt = [block.params[k] for k in floats(values)]
    if OPS[name].differentiable and wrt and any(block.types[r].is_float for r in block.results):
        pulled = vjp(block, wrt)
        rng = np.random.default_rng(0)
        extra = []
        for p in pulled.params[len(block.params) :]:
            t = pulled.types[p]
            if not hasattr(t, "shape") or not t.is_static:
                pytest.skip("cotangents of unknown size")
            extra.append(rng.uniform(0.5, 1.5, t.shape).astype(t.dtype))
        both(optimize(pulled), [*values, *extra])
    else:
        both(optimize(block), values)


@settings(max_examples=EXAMPLES // 10, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16))
def test_a_random_program_is_what_the_reference_executor_makes_of_it(document, seed):
    values = leaves(seed)
    program = read(document)
    for executable in (
        compile_gradient(program, GradientQuery(targets=("loss",), **ALL), fetch=["loss"]),
        second_order(program),
    ):
        args = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]
        both(executable.plan.block, args)
