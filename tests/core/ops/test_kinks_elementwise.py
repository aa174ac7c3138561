"""Edge cases of elementwise ops: large arguments, kinks, 16-bit dtypes, Fluid's axis, masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError, ExecutionError, InvalidProgram
from core.ir.registry import REGISTRY, Example, OpSpec
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from tests.laws.examples import OPS, arrays, block_for, examples_of, gradient
from tests.programs import Sketch, check, close, grads


def run(type: str, *inputs: Any, **attrs: Any) -> np.ndarray:
    b = BlockBuilder()
    values = [b.param(TensorType(x.shape, str(x.dtype))) for x in map(np.asarray, inputs)]
    return execute(b.build([b.emit(type, *values, **attrs)]), [np.asarray(x) for x in inputs])[0]


def slope(type: str, *inputs: Any, dtype: str = "float64", **attrs: Any) -> list[np.ndarray]:
    """The gradients of the sum of the result with respect to each input."""
    args = [np.asarray(x, dtype=dtype) for x in inputs]
    b = BlockBuilder()
    values = [b.param(TensorType(x.shape, dtype)) for x in args]
    out = b.emit("cast", b.emit(type, *values, **attrs), dtype="float64")
    block = gradient(b.build([b.emit("reduce_sum", out)]), [v.name for v in values])
    return list(execute(optimize(block), args))


# --- dtypes ----------------------------------------------------------------------------------------------------


def by_element(spec: OpSpec) -> bool:
    modules = ("activations", "functions", "special", "trigonometry", "rounding", "aligned")
    return spec.name != "cast" and (spec.elementwise or spec.body.__module__.rpartition(".")[2] in modules)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(n for n, spec in REGISTRY.items() if by_element(spec)))
def test_16_bit_dtypes_are_kept_and_values_are_close_to_float64(name, dtype):
    spec, kind = REGISTRY[name], as_dtype(dtype)
    for example in examples_of(spec):
        long = arrays(example)
        short = [x.astype(kind) if x.dtype == np.float64 else x for x in long]
        floats = [i for i, x in enumerate(short) if x.dtype == kind]
        block = block_for(spec, type(example)(tuple(short), (), example.attrs))
        (value,), (wanted,) = execute(block, short), execute(block_for(spec, example), long)

        assert str(np.asarray(value).dtype) == block.result_types[0].dtype
        if block.result_types[0].is_float:
            close(np.asarray(value, "float64"), wanted, 0.004 if dtype == "float16" else 0.04)
        if floats and spec.differentiable and block.result_types[0].is_float:
            b = BlockBuilder.like(block)
            total = b.emit("reduce_sum", b.emit("cast", b.value(block.results[0]), dtype="float64"))
            for found, i in zip(
                execute(gradient(b.build([total]), [block.params[i] for i in floats]), short), floats, strict=True
            ):
                assert found.dtype == kind and found.shape == short[i].shape


# --- large arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "left", "right"),  # gradients at -1000 and 1000
    [
        ("sigmoid", 0, 0),
        ("logsigmoid", 1, 0),
        ("softplus", 0, 1),
        ("mish", 0, 1),
        ("silu", 0, 1),
        ("swish", 0, 1),
        ("gelu", 0, 1),
        ("elu", 0, 1),
        ("selu", 0, 1.0507009873554804934193349852946),
        ("celu", 0, 1),
        ("tanh_shrink", 1, 1),
        ("softsign", 1 / 1001**2, 1 / 1001**2),
        ("erfc", 0, 0),
        ("atan", 1 / 1000001, 1 / 1000001),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_at_large_arguments_equal_their_limits(type, left, right, dtype):
    close(slope(type, [-1000.0, 1000.0], dtype=dtype)[0], [left, right], 1e-6)


def test_large_negative_arguments_keep_their_precision():
    x = np.float32([-15.0, -30.0, -80.0])
    e = np.exp(x.astype("float64"))

    np.testing.assert_allclose(run("sigmoid", x), e / (1 + e), rtol=3e-7)
    np.testing.assert_allclose(run("silu", x), x * e / (1 + e), rtol=3e-7)
    np.testing.assert_allclose(run("softplus", x), np.log1p(e), rtol=3e-6)
    np.testing.assert_allclose(run("mish", x), x * np.tanh(np.log1p(e)), rtol=3e-6)
    np.testing.assert_allclose(slope("logsigmoid", -x, dtype="float32")[0], e / (1 + e), rtol=3e-7)
    np.testing.assert_allclose(
        run("gelu", np.float32([-6.0])), [-6 * 9.865876450e-10], rtol=2e-6
    )  # P(N <= -6) from a table


@pytest.mark.parametrize(("type", "sign"), [("asin", 1), ("acos", -1)])
def test_the_gradient_near_the_end_of_the_domain_keeps_its_precision(type, sign):
    x = np.float32(1) - np.float32(2.0**-20)

    (found,) = slope(type, x, dtype="float32")

    np.testing.assert_allclose(found, sign / np.sqrt(2.0**-19 - 2.0**-40), rtol=3e-7)


def test_logarithms_of_powers_of_the_base_are_whole_numbers():
    assert run("log2", 2.0 ** np.arange(-40, 40)).tolist() == list(range(-40, 40))
    assert run("log10", 10.0 ** np.arange(0, 16)).tolist() == list(range(16))


# --- kinks and jumps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "x", "attrs", "wanted"),
    [
        ("relu6", [0.0, 6.0], {}, [0, 0]),
        ("hard_sigmoid", [-3.0, 0.0, 3.0], {}, [0, 1 / 6, 0]),
        ("hard_swish", [-3.0, 3.0], {}, [0, 1]),
        ("hard_tanh", [-1.0, 1.0], {}, [0, 0]),
        ("thresholded_relu", [1.0, 1.5], {}, [0, 1]),
        ("elu", [0.0, 1.0], {"alpha": 0.5}, [0.5, 1]),
        ("selu", [0.0], {}, [1.0507009873554804934193349852946 * 1.6732632423543772848170429916717]),
        ("celu", [0.0, -1.0], {"alpha": -2.0}, [1, np.exp(0.5)]),
        ("leaky_relu", [0.0], {"alpha": 0.1}, [0.1]),
        ("softplus", [2.0, 0.0], {"beta": 2.0, "threshold": 3.0}, [1, 0.5]),
        ("floor", [0.5, 1.0], {}, [0, 0]),
        ("floor", [0.5, 1.0], {"straight_through": True}, [1, 1]),
        ("sign", [0.0, -2.0], {"straight_through": True}, [1, 1]),
        ("sqrt", [0.0], {}, [np.inf]),
        ("rsqrt", [0.0], {}, [-np.inf]),
        ("log2", [0.0], {}, [np.inf]),
        ("reciprocal", [0.0], {}, [-np.inf]),
        ("asin", [-1.0, 1.0], {}, [np.inf, np.inf]),
        ("acos", [-1.0, 1.0], {}, [-np.inf, -np.inf]),
        ("acosh", [1.0], {}, [np.inf]),
        ("erfinv", [-1.0, 1.0], {}, [np.inf, np.inf]),
    ],
)
def test_the_gradient_at_a_kink_or_pole_is_the_defined_one(type, x, attrs, wanted):
    np.testing.assert_allclose(slope(type, x, **attrs)[0], wanted, rtol=1e-12)


def test_the_gradient_of_the_divisor_is_minus_the_quotient_used_for_the_remainder():
    x, y = np.array([1.0, -1.0, 7.5]), np.array([0.1, 0.1, -2.0])  # 1 / 0.1 rounds up to 10, but floor(1 / 0.1) is 9
    for type in ("mod", "fmod"):
        dx, dy = slope(type, x, y)
        quotient = np.rint((x - run(type, x, y)) / y)
        assert dx.tolist() == [1, 1, 1] and dy.tolist() == (-quotient).tolist()
    assert slope("mod", x, y)[1].tolist() == [-9, 10, 4]
    assert slope("fmod", x, y)[1].tolist() == [-9, 9, 3]


def test_bits_beyond_the_width_are_lost_and_a_negative_shift_is_refused():
    x = np.array([1, -1, 64], dtype="int8")
    assert run("bitwise_left_shift", x, np.int8([7, 7, 2])).tolist() == [-128, -128, 0]
    assert run("bitwise_right_shift", x, np.int8([1, 100, 6])).tolist() == [0, -1, 1]
    assert run("bitwise_right_shift", np.uint8([200, 200]), np.uint8([7, 8])).tolist() == [1, 0]
    with pytest.raises(ExecutionError) as error:
        run("bitwise_left_shift", x, np.int8([0, -1, 0]))
    assert error.value.code == "index_out_of_range"


# --- y at an axis of x -----------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("axis", "shape"), [(0, (2, 3)), (1, (3, 4)), (1, (3,)), (2, (4,)), (-1, (4,)), (None, (3, 1))]
)
@pytest.mark.parametrize("type", ["add", "mul", "maximum", "elementwise_div"])
def test_axis_aligns_y_with_the_axes_of_x(type, axis, shape):
    r = np.random.default_rng(3)
    s = Sketch()
    s.param("w", r.uniform(0.5, 2, (2, 3, 4)))
    s.param("v", r.uniform(0.5, 2, shape))
    s.raw({"type": type, "inputs": {"x": "w", "y": "v"}, "outputs": {"out": "z"}, "attrs": {"axis": axis}})
    s.total(s.op("mul", "z", "z"))

    found = check(s)

    w, v = s.values["w"], s.values["v"]
    at = 3 - v.ndim if axis in (-1, None) else axis
    v = v.reshape((1,) * at + shape + (1,) * (3 - at - v.ndim))
    by_w = {"add": 2 * (w + v), "mul": 2 * w * v * v, "maximum": 2 * w * (w > v), "elementwise_div": 2 * w / v / v}
    close(found["w"], by_w[type])
    assert found["v"].shape == shape


@pytest.mark.parametrize("axis", [2, -2, 3, 1.5, "1"])
def test_an_axis_at_which_y_does_not_fit_is_refused(axis):
    s = Sketch()
    s.param("w", np.ones((2, 3, 4)))
    s.param("v", np.ones((3, 4)))
    s.raw({"type": "add", "inputs": {"x": "w", "y": "v"}, "outputs": {"out": "z"}, "attrs": {"axis": axis}})
    s.total("z")

    with pytest.raises(InvalidProgram) as error:
        grads(s)
    assert [p.code for p in error.value.problems] == ["bad_attr"]


# --- selection where the other side has no gradient ------------------------------------------------------------


def test_where_passes_a_nan_of_the_unselected_side_and_mask_gradient_does_not():
    s = Sketch()
    s.param("w", [-1.0, 0.0, 4.0])
    zero = s.const(0.0, [3])
    positive = s.op("greater_than", "w", zero)
    plain = s.op("where", positive, s.op("sqrt", "w"), zero)
    masked = s.op("where", positive, s.op("sqrt", s.op("mask_gradient", positive, "w")), zero)

    s.total(plain)
    assert np.isnan(grads(s)["w"][:2]).all()
    s.total(masked)
    close(grads(s)["w"], [0, 0, 0.25])


def choice(w: Any, condition_of: str = "w", **more: Any) -> Sketch:
    """``w log(w)`` where w is positive, else ``w * w``."""
    s = Sketch()
    s.param("w", w)
    s.op("greater_than", condition_of, s.const(0.0), out="positive")
    with s.block() as yes:
        s.op("mul", s.op("log", "w"), "w", out="y")
    with s.block() as no:
        s.op("mul", "w", "w", out="y")
    s.construct("safe_where", {"condition": "positive"}, {"out": "y"}, true_block=yes, false_block=no, **more)
    s.total("y")
    return s


def test_safe_where_has_the_gradient_of_the_selected_side_at_any_order():
    w = np.array([-2.0, 0.5, 3.0, -0.25])

    first = check(choice(w))["w"]  # compares the second order too

    close(first, np.where(w > 0, np.log(np.abs(w)) + 1, 2 * w))
    close(grads(choice([0.0, 1.0]))["w"], [0, 1])


def test_safe_where_sums_the_gradients_of_a_variable_that_both_blocks_read():
    s = choice([-2.0, 0.5])
    with s.block() as yes:
        s.op("div", "v", "w", out="z")
    with s.block() as no:
        s.op("silu", s.op("mul", "v", "w"), out="z")
    s.param("v", 3.0)
    s.construct("safe_where", {"condition": "positive"}, {"out": "z"}, true_block=yes, false_block=no)
    s.total(s.op("add", "y", "z"))

    x = -6.0
    sigmoid = 1 / (1 + np.exp(-x))
    close(check(s)["v"], -2 * (sigmoid + x * sigmoid * (1 - sigmoid)) + 1 / 0.5)


def reduced(s: Sketch) -> str:
    return s.op("reduce_sum", "w", keepdims=True, out="y")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (reduced, "bad_block"),
        (lambda s: s.op("softmax", "w", out="y"), "bad_block"),
        (lambda s: s.op("dropout", "w", out="y"), "bad_block"),
        (lambda s: s.op("neg", "w", out="other"), "branch_mismatch"),
        (lambda s: [s.op("neg", "w", out="y"), s.op("neg", "w", out="w")], "bad_slot"),
        (lambda s: s.op("neg", "nothing", out="y"), "unknown_variable"),
    ],
)
def test_safe_where_refuses_invalid_blocks(body, code):
    s = Sketch()
    s.param("w", [1.0, 2.0])
    s.op("greater_than", "w", s.const(1.5), out="c")
    with s.block() as yes:
        s.op("log", "w", out="y")
    with s.block() as no:
        body(s)
    s.construct("safe_where", {"condition": "c"}, {"out": "y"}, true_block=yes, false_block=no)
    s.total("y")

    with pytest.raises(CoreError) as error:
        grads(s)
    assert code in {p.code for p in error.value.problems}


FAR = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 127.5, 128.0, -128.5, -129.0, 255.9, 256.0,
       2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 2.0**64, -1e30, 1e30, 65504.0]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_cast_rounds_towards_zero_and_saturates(source, dtype):
    """The expected values are computed with Python integers, which do not overflow."""
    with np.errstate(over="ignore"):
        x = np.array(FAR).astype(as_dtype(source))
    block = block_for(OPS["cast"], Example((x,), (), {"dtype": dtype}))
    limits = np.iinfo(dtype)

    def nearest(value: float) -> int:
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return limits.max if value > 0 else limits.min
        return max(limits.min, min(limits.max, math.trunc(value)))

    wanted = [nearest(float(value)) for value in x]
    for run in (interpreter_of(block), native_interpreter(block, CPU)):
        (found,) = run(Run(), x)
        assert found.dtype == dtype
        assert found.tolist() == wanted


def test_the_negation_of_unsigned_integers_is_refused_by_name():
    with pytest.raises(CoreError) as error:
        run("neg", np.array([1, 2], "uint8"))

    assert error.value.code == "dtype_mismatch"
    assert "neg needs a signed dtype, not uint8[2]: cast it" in str(error.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_mixed_second_derivative_of_a_power_exists_at_an_exponent_of_zero(dtype):
    """The derivative of ``y x^(y-1)`` by y is ``x^(y-1) (1 + y log x)``: 1 / x at y = 0, where the factor y is 0."""
    x, y = np.array([0.5, 2.0, 8.0, 2.0]), np.array([0.0, 0.0, 0.0, 1.0])
    b = BlockBuilder()
    values = [b.param(TensorType(x.shape, dtype)) for _ in "xy"]
    block = b.build([b.emit("reduce_sum", b.emit("cast", b.emit("pow", *values), dtype="float64"))])
    b = BlockBuilder.like(first := gradient(block, block.params[:1]))
    total = b.emit("reduce_sum", b.emit("cast", b.value(first.results[0]), dtype="float64"))
    second = gradient(b.build([total]), block.params)
    args = [each.astype(as_dtype(dtype)) for each in (x, y)]

    slopes, mixed = execute(optimize(second), args)

    close(mixed.astype("float64"), [2.0, 0.5, 0.125, 1 + np.log(2)], 1e-2 if "16" in dtype else 1e-6)
    close(slopes.astype("float64"), np.zeros(4), 1e-12)
