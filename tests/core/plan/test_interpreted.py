"""Loops and branches with ops that have no machine code: the rest of the loop or branch is machine code."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, StackType, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, Location
from core.ir.registry import lookup
from core.plan import plan_block
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.run import Run, RunLimits
from tests.laws.agreement import both
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of


def in_a_loop(block: Block, trips: int = 3) -> Block:
    """`block` run `trips` times on the same values, with its results carried, and then once in a branch."""
    b = BlockBuilder()
    params = [b.param(block.types[p], p) for p in block.params]
    body = BlockBuilder()
    number = TensorType((), "float64")
    _ = body.param(number)
    carried = [body.param(block.types[r]) for r in block.results]
    given = [body.param(v.type) for v in params]
    element = body.param(number)
    inner = body.inline(block, given)
    inside = body.build([element, *inner])
    first = b.inline(block, params)
    start = b.constant(0.0, "float64")
    stack = b.emit("array_unstack", b.constant(1.0, "float64", (trips,)))
    outs = b.emit("loop", start, *first, *params, stack, sub_block=inside, carried=1 + len(carried),
                  captured=len(params), condition=False)  # fmt: skip
    return b.build(outs[1:])


def takes(block: Block) -> bool:
    """Whether machine code may call the ops of `block`: all arrays have known sizes and at least one element."""
    types = list(block.types.values())
    if any(isinstance(t, StackType) or not t.is_static or 0 in t.shape for t in types):
        return False
    return all(t.dtype in CPU_TARGET.dtypes for t in types)


CALLED = [
    name
    for name, i in CASES
    if i == 0
    and not any(isinstance(x, list) for x in arrays(examples_of(OPS[name])[0]))
    and takes(block := optimize(block_for(OPS[name], examples_of(OPS[name])[0])))
    and plan_block(block, CPU_TARGET).interpreted
]


@pytest.mark.parametrize("name", CALLED)
def test_an_op_without_machine_code_is_called_back_inside_loops_and_branches(name):
    example = examples_of(OPS[name])[0]
    looped = optimize(in_a_loop(optimize(block_for(OPS[name], example))))

    assert not plan_parts(looped, CPU_TARGET).refused
    both(looped, arrays(example))


def roots(trips: int, shape: tuple[int, ...] = (2, 2)) -> Block:
    """``x = cholesky(x - c)`` in each of `trips` trips, c = 0, 1, 2, ...: after some trips x - c is not definite."""
    b, body = BlockBuilder(), BlockBuilder()
    c = body.param(TensorType((), "float64"))
    x = body.param(TensorType(shape, "float64"))
    _ = body.param(TensorType((), "float64"))
    with body.at(Location(1, 7, "cholesky")):
        root = body.emit("cholesky", body.emit("sub", x, body.emit("mul", body.emit("add", x, x), c)))
    inner = body.build([body.emit("add", c, body.constant(1.0, "float64")), root])
    given = b.param(TensorType(shape, "float64"))
    stack = b.emit("array_unstack", b.constant(1.0, "float64", (trips,)))
    outs = b.emit("loop", b.constant(0.0, "float64"), given, stack, sub_block=inner, carried=2, captured=0,
                  condition=False)  # fmt: skip
    return optimize(b.build([outs[1]]))


def test_an_error_of_a_called_op_ends_the_step_with_its_place_and_the_next_step_runs():
    native = native_interpreter(roots(5), CPU)
    fine = native_interpreter(roots(1), CPU)
    x = np.array([[4.0, 0.0], [0.0, 9.0]])

    for _ in range(2):
        with pytest.raises(ExecutionError) as caught:
            native(Run(), x)
        assert caught.value.location == Location(1, 7, "cholesky")
    np.testing.assert_array_equal(fine(Run(), x)[0], np.sqrt(x))


def test_a_deadline_ends_a_loop_that_calls_ops_back():
    with pytest.raises(ExecutionError) as caught:
        native_interpreter(roots(1), CPU)(Run(limits=RunLimits(deadline=0.0)), np.eye(2))
    assert caught.value.code == "deadline_exceeded"


@pytest.mark.parametrize("equation", ["nk,np,kpq->nq", "np,p,pq->q"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_loop_adds_up_products_without_machine_code(equation, dtype):
    b = BlockBuilder()
    sizes = {"n": 2, "k": 3, "p": 4, "q": 5}
    terms, _, result = equation.replace("->", ",->").partition(",->")
    shapes = [tuple(sizes[c] for c in term) for term in terms.split(",")]
    total = b.param(TensorType(tuple(sizes[c] for c in result), dtype))
    count, *operands = b.constant(0, "int64"), *(b.param(TensorType(shape, dtype)) for shape in shapes)
    body = BlockBuilder()
    _, at, state = (body.param(t) for t in (TensorType((), "bool"), count.type, total.type))
    given = [body.param(v.type) for v in operands]
    following = at + 1
    more = lookup("less_than")(following, body.constant(4, "int64"))
    added = lookup("add")(state, lookup("einsum")(*given, equation=equation))
    outs = b.emit(
        "loop",
        b.constant(True, "bool"), count, total, *operands,
        sub_block=body.build([more, following, added]), carried=3, captured=len(operands),
    )  # fmt: skip
    rng = np.random.default_rng(0)

    both(b.build([outs[2]]), [rng.standard_normal(v.shape).astype(dtype) for v in (total, *operands)])
