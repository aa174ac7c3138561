"""Results of arithmetic that stay in float32 between the 16-bit arrays that a pass reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.precision import HALVES
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.elementary import ELEMENTARY
from core.plan.instructions import Rows
from core.plan.unrounded import ARITHMETIC
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run
from tests.laws.test_precision import every_value

SIZE = 1003


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 2, shape).astype(as_dtype(dtype))


def vectors(b: BlockBuilder, dtype: str) -> tuple[list[Value], list[np.ndarray]]:
    """Three parameters, and numbers for them."""
    return [b.param(TensorType((SIZE,), dtype)) for _ in range(3)], [numbers(dtype, SIZE, seed=i) for i in range(3)]


def native(block: Block, *args: Any) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(native_interpreter(optimize(block), CPU)(Run(), *args))


def bits(value: np.ndarray) -> np.ndarray:
    return value.view("u2")


@pytest.mark.parametrize("dtype", HALVES)
def test_a_chain_of_arithmetic_is_rounded_once(dtype):
    b = BlockBuilder()
    (one, two, three), (x, y, z) = vectors(b, dtype)
    product = b.emit("mul", one, two)
    found = native(b.build([b.emit("div", b.emit("sub", b.emit("add", product, three), two), one)]), x, y, z)

    p, q, r = (each.astype("f4") for each in (x, y, z))
    np.testing.assert_array_equal(bits(found[0]), bits((((p * q + r) - q) / p).astype(as_dtype(dtype))))


@pytest.mark.parametrize("dtype", HALVES)
def test_all_readers_of_a_stored_result_read_it_rounded(dtype):
    b = BlockBuilder()
    (one, two, three), (x, y, z) = vectors(b, dtype)
    product = b.emit("mul", one, two)
    found = native(b.build([product, b.emit("sub", product, three)]), x, y, z)

    rounded = (x.astype("f4") * y.astype("f4")).astype(as_dtype(dtype))
    wanted = (rounded.astype("f4") - z.astype("f4")).astype(as_dtype(dtype))
    np.testing.assert_array_equal(bits(found[0]), bits(rounded))
    np.testing.assert_array_equal(bits(found[1]), bits(wanted))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_conversion_of_a_float32_operand_rounds(dtype):
    x = np.random.default_rng(0).uniform(0.1, 2, SIZE).astype("f4")
    b = BlockBuilder()
    narrow = b.emit("cast", b.param(TensorType((SIZE,), "float32")), dtype=dtype)
    difference = b.emit("sub", b.emit("cast", narrow, dtype="float32"), b.value(b.params[0]))
    total = b.emit("reduce_sum", b.emit("mul", narrow, narrow), axes=(0,))
    found = native(b.build([difference, b.emit("cast", total, dtype="float32")]), x)

    rounded = x.astype(as_dtype(dtype)).astype("f4")
    np.testing.assert_array_equal(found[0], rounded - x)
    np.testing.assert_allclose(found[1], (rounded.astype("f8") ** 2).sum(), rtol=2 * float(as_dtype(dtype).type(0.004)))


@pytest.mark.sampled(1, each="op")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", sorted(ARITHMETIC))
def test_an_op_on_an_unrounded_result_equals_the_float32_op(op, dtype):
    """Its own result is rounded where it is stored: no kernel ends in a function that leaves rounding to others."""
    attrs = {"scale": {"scale": 0.3, "bias": 0.1}}.get(op, {})
    two = op in ("add", "atan2", "div", "hypot", "mul", "sub", "sum")
    x, y, z = (numbers(dtype, SIZE, seed=i) for i in range(3))

    def block(wide: bool) -> Block:
        b = BlockBuilder()
        given = [b.param(TensorType((SIZE,), dtype)) for _ in range(3)]
        one, other, third = (b.emit("cast", v, dtype="float32") if wide else v for v in given)
        product = b.emit("mul", one, other)
        out = b.emit(op, product, *([third] if two else []), **attrs)
        return b.build([b.emit("cast", out, dtype=dtype) if wide else out])

    (found,), (wanted,) = (native(block(wide), x, y, z) for wide in (False, True))

    np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", sorted(ELEMENTARY))
def test_an_elementary_function_is_that_of_float32_rounded(op, dtype):
    x = every_value(dtype)
    results = []
    for wide in (False, True):
        b = BlockBuilder()
        given = b.param(TensorType(x.shape, dtype))
        value = b.emit(op, b.emit("cast", given, dtype="float32") if wide else given)
        results.append(native(b.build([b.emit("cast", value, dtype=dtype) if wide else value]), x)[0])

    found, wanted = (each.astype("f4") for each in results)
    np.testing.assert_array_equal(found, wanted)


CHOOSING: dict[str, Callable[[BlockBuilder, Any, Any], Any]] = {
    "the maximum of a row": lambda b, u, v: b.emit("reduce_max", u, axes=(1,)),
    "the minimum of a row": lambda b, u, v: b.emit("reduce_min", u, axes=(1,)),
    "the maximum of a column": lambda b, u, v: b.emit("reduce_max", u, axes=(0,)),
    "the maximum of all": lambda b, u, v: b.emit("reduce_max", u, axes=(0, 1)),
    "the larger of two": lambda b, u, v: b.emit("maximum", u, v),
    "the largest numbers": lambda b, u, v: b.emit("topk", u, k=3)[0],
    "the absolute value": lambda b, u, v: b.emit("abs", v),
    "a relu": lambda b, u, v: b.emit("relu", v),
    "a clipped number": lambda b, u, v: b.emit("clip", u, min=0.5, max=1.5),
}
"""Functions of two matrices that move cotangents without changing them."""

EXTREMES = [name for name in CHOOSING if name.startswith(("the maximum", "the minimum", "a clipped"))]
"""Their adjoints ask whether two numbers are equal: every op of their programs rounds its result."""


@pytest.mark.sampled(2, each="name")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [5, 700])
@pytest.mark.parametrize("name", CHOOSING)
def test_the_gradient_of_a_choice_goes_to_the_chosen_number(name, rows, dtype):
    """The reference executor computes it from numbers that are rounded where a pass must round them."""
    shape = (rows, 37)
    given = [numbers(dtype, *shape, seed=i) for i in range(4)]

    def pulled(wide: bool) -> Block:
        b = BlockBuilder()
        params = [b.param(TensorType(shape, dtype)) for _ in range(4)]
        x, y, z, w = (b.emit("cast", p, dtype="float32") if wide else p for p in params)
        u = b.emit("add", b.emit("mul", x, y), z)
        v = b.emit("sub", b.emit("mul", w, w), z)
        u, v = (b.emit("cast", each, dtype=dtype) if each.type.dtype == "float32" else each for each in (u, v))
        block = b.build([CHOOSING[name](b, u, v)])
        return optimize(vjp(block, [block.params[2]]))

    block, exact = pulled(wide=False), pulled(wide=name not in EXTREMES)
    ct = np.ones(block.types[block.params[-1]].shape, as_dtype(dtype))

    found, wanted = native(block, *given, ct), execute(exact, [*given, ct])

    assert found[-1].astype("f4").any()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.astype("f4"), other.astype("f4"))


@pytest.mark.sampled(2, each="chain")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [3, 64, 3000])
@pytest.mark.parametrize("chain", [("mul",), ("mul", "tanh"), ("tanh", "mul", "square"), ("mul", "add", "exp")])
def test_all_passes_compute_the_same_value(chain, rows, dtype):
    """The mean, the maximum and the comparison take three passes, each of which can compute the values again."""
    x, y = (numbers(dtype, rows, 40, seed=i) for i in range(2))
    b = BlockBuilder()
    value, other = (b.param(TensorType(x.shape, dtype)) for _ in range(2))
    for op in chain:
        value = b.emit(op, value, other) if op in ("mul", "add") else b.emit(op, value)
    value = b.emit("sub", value, b.emit("reduce_mean", value, axes=(0, 1)))
    largest = b.emit("reduce_max", value, axes=(0,))
    hits = b.emit("reduce_sum", b.emit("cast", b.emit("greater_equal", value, largest), dtype="int64"), axes=(0,))

    (found,) = native(b.build([hits]), x, y)

    assert np.all(found >= 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [3, 64, 3000])
def test_all_passes_round_a_value_if_one_must(rows, dtype):
    """The first pass needs only arithmetic on the squares; the second one computes them again, and compares them."""
    x = numbers(dtype, rows, 40)
    b = BlockBuilder()
    value = b.param(TensorType(x.shape, dtype))
    square = b.emit("mul", value, value)
    more = b.emit("add", square, value)
    hits = b.emit("greater_equal", more, b.emit("reduce_max", more, axes=(0,)))
    kept = b.emit("where", hits, b.emit("relu", square), b.emit("neg", square))

    (found,) = native(b.build([kept]), x)

    assert np.all(np.any(found.astype("f4") > 0, axis=0))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [7, 500, 5000])
def test_a_later_sweep_of_a_row_reads_unrounded_results(size, dtype):
    x, y = (numbers(dtype, 5, size, seed=i) for i in range(2))

    def block(wide: bool) -> Block:
        b = BlockBuilder()
        params = [b.param(TensorType(x.shape, dtype)) for _ in range(2)]
        one, other = (b.emit("cast", p, dtype="float32") if wide else p for p in params)
        value = b.emit("tanh", b.emit("mul", one, other))
        mean = b.emit("reshape", b.emit("reduce_mean", value, axes=(1,)), shape=(5, 1))
        out = b.emit("sub", value, mean)
        return b.build([b.emit("cast", out, dtype=dtype) if wide else out])

    (found,), (wanted,) = (native(block(wide), x, y) for wide in (False, True))

    np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_function_and_its_adjoint_share_the_elementary_function(dtype):
    b = BlockBuilder()
    x = b.param(TensorType((SIZE,), dtype))
    pulled = optimize(vjp(b.build([b.emit("tanh", b.emit("mul", x, x))])))
    kernels = [each.kernel for each in plan_block(pulled, CPU_TARGET).body.instructions if isinstance(each, Rows)]

    assert sum(instr.op == "tanh" for kernel in kernels for instr in kernel.code) == 1


def test_no_op_with_a_bounded_domain_reads_unrounded_results():
    """acos(1 + 1e-7) is NaN, but 1 + 1e-7 rounds to 1."""
    assert not ARITHMETIC & {"acos", "acosh", "asin", "atanh", "erfinv", "pow"}
    assert all(lookup(op).elementwise for op in ARITHMETIC)
