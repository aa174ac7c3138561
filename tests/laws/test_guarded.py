"""Machine code accesses only its arrays. Before each array lies a margin that must not change and whose NaN must not
reach a result; after it lies a protected page.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.machine import lanes
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.errors import ExecutionError
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from tests.core.codegen.test_rows import SIZES, chain, values
from tests.laws.agreement import cotangent, has_lists, same
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of, floats
from tests.laws.guards import Guarded, guards

__all__ = ["guards"]

FIRST = [(name, i) for name, i in CASES if i == 0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "i"), FIRST)
def test_an_op_and_its_gradient_access_only_their_arrays(name, i, guards):
    example = examples_of(OPS[name])[i]
    values = arrays(example)
    if has_lists(name, i):
        pytest.skip("lists of arrays")
    types = [TensorType(x.shape, str(x.dtype)) for x in values]
    block = block_for(OPS[name], example, types)
    wrt = [block.params[k] for k in floats(values)]
    if OPS[name].differentiable and wrt:
        rng = np.random.default_rng(0)
        results = zip(execute(block, values), block.results, strict=True)
        values += [cotangent(rng, value) for value, name in results if block.types[name].is_float]
        block = vjp(block, wrt)
    block = optimize(block)
    given = []
    for value in values:
        guarded = Guarded(value.shape, value.dtype)
        guarded.array[...] = value
        guards.append(guarded)
        given.append(guarded.array)

    with np.errstate(all="ignore"):
        try:
            wanted = interpreter_of(block)(Run(), *values)
        except ExecutionError:
            with pytest.raises(ExecutionError):
                native_interpreter(block, CPU)(Run(), *given)
            wanted = ()
        else:
            for found, want in zip(native_interpreter(block, CPU)(Run(), *given), wanted, strict=True):
                same(found, want)

    assert all(each.intact for each in guards)
    for guarded, value in zip((g for g in guards if any(g.array is x for x in given)), values, strict=True):
        same(guarded.array, value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("vectors", "rest"), SIZES)
def test_a_kernel_of_a_long_row_accesses_only_its_arrays(vectors, rest, guards):
    block = chain(vectors * lanes("float32") + rest, "float32")
    given = []
    for value in values(block):
        guards.append(Guarded(value.shape, value.dtype))
        guards[-1].array[...] = value
        given.append(guards[-1].array)

    native_interpreter(block, CPU)(Run(), *given)

    assert all(each.intact for each in guards)
