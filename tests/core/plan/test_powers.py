"""Powers with small constant exponents are products and square roots, and masks with a known bool disappear."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.instructions import Rows
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.laws.test_native import both

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.5, 1.0]
EXPONENTS = [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]


def power(dtype: str, size: int, exponent: float) -> Block:
    b = BlockBuilder()
    x = b.param(TensorType((size,), dtype))
    return b.build([b.emit("pow", x, b.emit("full_like", x, value=exponent))])


def ops_of(block: Block) -> set[str]:
    body = plan_block(optimize(block), CPU_TARGET).body.instructions
    return {i.op for each in body if isinstance(each, Rows) for i in each.kernel.code if i.kind == "apply"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_power_is_exact_to_five_units_over_the_whole_range_of_its_type(exponent, dtype):
    info = np.finfo(dtype)
    least, most = np.log(float(info.smallest_subnormal)), np.log(float(info.max))
    x = np.exp(np.random.default_rng(3).uniform(least + 0.1, most - 0.1, 4000))
    x = np.concatenate([x, -x[:50], SPECIAL]).astype(dtype)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), np.longdouble(exponent))
        wanted = exact.astype(dtype)

        (found,) = native_interpreter(optimize(power(dtype, x.size, exponent)), CPU)(Run(), x)

    finite = np.isfinite(wanted)
    units = np.abs(np.asarray(found)[finite] - exact[finite]) / np.spacing(np.abs(wanted[finite]))
    assert units.max() < 5
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    assert (np.signbit(found) == np.signbit(wanted))[~np.isnan(wanted)].all()
    assert "pow" not in ops_of(power(dtype, x.size, exponent))


@pytest.mark.parametrize(
    ("exponent", "dtype"), [(0.3, "float32"), (4.5, "float32"), (-4.5, "float64"), (3.0, "float16")]
)
def test_other_powers_need_a_logarithm(exponent, dtype):
    assert "pow" in ops_of(power(dtype, 9, exponent))


@pytest.mark.parametrize("exponent", [each for each in EXPONENTS if each])
def test_the_gradient_of_a_power_needs_neither_a_power_nor_a_mask(exponent):
    block = power("float64", 7, exponent)
    block = optimize(vjp(block, block.params))

    both(block, [np.linspace(0.3, 5, 7), np.linspace(-2, 2, 7)])

    assert ops_of(block).isdisjoint(["logical_and", "logical_not", "isfinite"])
    assert "pow" not in ops_of(block) or exponent < -3


@pytest.mark.parametrize(
    ("op", "known", "first"), list(product(["logical_and", "logical_or"], [False, True], [False, True]))
)
def test_a_known_bool_decides_or_leaves_the_other_operand(op, known, first):
    b = BlockBuilder()
    x, y = (b.param(TensorType((5,), "float32")) for _ in range(2))
    less = b.emit("less_than", x, y)
    same = b.emit("full_like", less, value=float(known))
    masked = b.emit(op, *((same, less) if first else (less, same)))
    block = optimize(b.build([b.emit("where", masked, x, y), b.emit("where", same, x, y)]))

    both(block, [np.arange(5, dtype="float32"), np.array([3, 2, 2, 4, 1], "float32")])

    assert op not in ops_of(block)
