"""Huge, tiny and empty arguments, for which the plain formulas overflow, underflow or cancel; and learning rates of
0.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import finfo

from core.autodiff.adjoint import vjp
from core.backward.append_backward import gradients
from core.codegen.backend import CPU
from core.compiler.compile import GradientQuery, Optimizer, compile_gradient, compile_training, optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.core.ops.test_kinks_elementwise import run, slope
from tests.programs import Sketch

HUGE, TINY = 3e200, 3e-200


@pytest.mark.parametrize(
    ("type", "inputs", "wanted"),
    [
        ("atan2", (HUGE, HUGE), (0.5 / HUGE, -0.5 / HUGE)),
        ("atan2", (TINY, TINY), (0.5 / TINY, -0.5 / TINY)),
        ("atan2", (TINY, 1.0), (1.0, -TINY)),
        ("hypot", (HUGE, HUGE), (0.5**0.5, 0.5**0.5)),
        ("hypot", (TINY, TINY), (0.5**0.5, 0.5**0.5)),
        ("hypot", (0.0, 0.0), (0.0, 0.0)),
        ("asinh", (HUGE,), (1 / HUGE,)),
        ("asinh", (TINY,), (1.0,)),
        ("acosh", (HUGE,), (1 / HUGE,)),
        ("log1p", (TINY,), (1.0,)),
        ("log", (TINY,), (1 / TINY,)),
        ("rsqrt", (1e-100,), (-0.5e150,)),
        ("sqrt", (1e-300,), (0.5e150,)),
        ("div", (HUGE, HUGE), (1 / HUGE, -1 / HUGE)),
        ("atan", (HUGE,), (0.0,)),
        ("atanh", (HUGE,), (0.0,)),  # outside the domain, but a `where` may leave it out
        ("softsign", (1e100,), (1e-200,)),
        ("softsign", (-1e8,), (1 / 100000001.0**2,)),
        ("tanh", (HUGE,), (0.0,)),
        ("sigmoid", (-700.0,), (np.exp(-700.0),)),
        ("logsigmoid", (700.0,), (np.exp(-700.0),)),
        ("softplus", (-700.0,), (np.exp(-700.0),)),
    ],
)
def test_gradients_of_huge_and_tiny_arguments_are_precise(type, inputs, wanted):
    for found, expected in zip(slope(type, *inputs), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("type", "inputs", "wanted"),
    [
        ("atan2", (HUGE, -HUGE), 0.75 * np.pi),
        ("hypot", (HUGE, -HUGE), HUGE * 2**0.5),
        ("asinh", (HUGE,), np.log(2) + np.log(HUGE)),
        ("asinh", (-TINY,), -TINY),
        ("acosh", (HUGE,), np.log(2) + np.log(HUGE)),
        ("atanh", (TINY,), TINY),
        ("expm1", (-TINY,), -TINY),
        ("log1p", (TINY,), TINY),
        ("sigmoid", (-708.0,), np.exp(-708.0)),
        ("logsigmoid", (-HUGE,), -HUGE),
        ("softplus", (HUGE,), HUGE),
    ],
)
def test_values_of_huge_and_tiny_arguments_are_precise(type, inputs, wanted):
    np.testing.assert_allclose(run(type, *inputs), wanted, rtol=1e-14)


def _power(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return y * x ** (y - 1), x**y * np.log(x)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("type", "x", "y", "formula"),  # T stands for a denormal number
    [
        ("div", "0 0 T", "T -T T", lambda x, y: (1 / y, -x / y / y)),
        ("atan2", "0 -T 0", "T 0 -T", lambda x, y: (y / (x * x + y * y), -x / (x * x + y * y))),
        ("pow", "T T T T T T", "0 0.01 0.001 -0.001 0.12 0.9", _power),
    ],
)
def test_gradients_at_denormal_numbers_are_those_of_the_formula(type, x, y, formula, dtype, compiled):
    kind = as_dtype(dtype)
    denormal = float(finfo(kind).smallest_normal) / 128
    numbers = {"0": 0.0, "T": denormal, "-T": -denormal}
    args = [np.array([numbers[n] if n in numbers else float(n) for n in each.split()]).astype(kind) for each in (x, y)]
    b = BlockBuilder()
    first = vjp(b.build([b.emit(type, *(b.param(TensorType(each.shape, dtype)) for each in args))]))
    block = optimize(replace(first, results=first.results[1:]))

    call = native_interpreter(block, CPU) if compiled else interpreter_of(block)
    with np.errstate(over="ignore"):
        found = [np.asarray(each, "float64") for each in call(Run(), *args, np.ones_like(args[0]))]
        wanted = [
            np.float64(np.asarray(each).astype(kind)) for each in formula(*(a.astype(np.longdouble) for a in args))
        ]

    # the exponent y - 1 is rounded, and the logarithm of a denormal number multiplies this error by up to 740
    np.testing.assert_allclose(found, wanted, rtol=740 * float(finfo(kind).eps) if type == "pow" else 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_logarithm_of_the_gamma_function_is_right_at_infinities_and_denormal_numbers(dtype, compiled):
    b = BlockBuilder()
    x = b.param(TensorType((8,), dtype))
    block = b.build([b.emit("lgamma", x)])
    denormal = float(finfo(as_dtype(dtype)).smallest_normal) / 128
    at = np.array([-np.inf, np.inf, 0.0, -3.0, np.nan, -0.5, denormal, -denormal]).astype(as_dtype(dtype))

    call = native_interpreter(block, CPU) if compiled else interpreter_of(block)

    logarithm = -math.log(denormal)
    wanted = np.array([np.inf, np.inf, np.inf, np.inf, np.nan, math.lgamma(-0.5), logarithm, logarithm])
    (found,) = call(Run(), at)
    np.testing.assert_allclose(np.asarray(found, "float64"), wanted, rtol=4 * float(finfo(as_dtype(dtype)).eps))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cross_entropy_of_large_logits_keeps_the_precision_of_a_small_loss(dtype):
    logits, label = np.array([30.0, -30.0, 80.0, 0.0], dtype), np.array([1.0, 0.0, 1.0, 0.25], dtype)
    small = np.exp([-30.0, -30.0, -80.0])

    found = run("sigmoid_cross_entropy_with_logits", logits, label)
    np.testing.assert_allclose(found, [*np.log1p(small), np.log(2)], rtol=3e-6 if dtype == "float32" else 1e-13)
    dx, _ = slope("sigmoid_cross_entropy_with_logits", logits, label, dtype=dtype)
    wanted = [-small[0], small[1], -small[2], 0.25]
    np.testing.assert_allclose(dx, wanted, rtol=3e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("known", [True, False])
def test_an_empty_batch_leaves_the_running_statistics_unchanged(known):
    b = BlockBuilder()
    x = b.param(TensorType((0 if known else -1, 2), "float64"))
    rest = [b.param(TensorType((2,), "float64")) for _ in range(4)]
    block = b.build(b.emit("batch_norm", x, *rest, momentum=0.9))
    one, mean, variance = np.ones(2), np.array([3.0, -1.0]), np.array([2.0, 5.0])

    out, mean_out, variance_out = execute(block, [np.zeros((0, 2)), one, one, mean, variance])

    assert out.shape == (0, 2)
    assert mean_out.tolist() == mean.tolist() and variance_out.tolist() == variance.tolist()
    if not known:
        moved = execute(block, [np.array([[1.0, 1.0], [3.0, 5.0]]), one, one, mean, variance])[1:]
        np.testing.assert_allclose(moved, [[2.9, -0.6], [1.9, 4.9]])


def trained(optimizer: Optimizer, gradient: float, steps: int, dtype: str = "float64") -> list[np.ndarray]:
    """The parameter after each of `steps` updates with the same gradient."""
    s = Sketch()
    s.param("w", [1.0, -2.0], dtype)
    s.op("scale", "w", out="loss_each", scale=gradient)
    s.op("reduce_sum", "loss_each", out="loss")
    executable = compile_training(read(s.document), GradientQuery(loss="loss"), optimizer)
    values = s.values | executable.initial_state()
    history = []
    for _ in range(steps):
        out = executable.step(values)
        values |= out.parameters | out.optimizer_state
        history.append(values["w"])
    return history


def test_ftrl_changes_nothing_while_its_schedule_gives_rate_0():
    rate = {"schedule": "piecewise_decay", "boundaries": [3], "values": [0.0, 0.1]}
    late = trained(Optimizer("ftrl", {"learning_rate": rate}), 1.0, 8)
    now = trained(Optimizer("ftrl", {"learning_rate": 0.1}), 1.0, 5)

    assert [w.tolist() for w in late[:3]] == [[1.0, -2.0]] * 3
    np.testing.assert_allclose(late[3:], now, rtol=1e-12)


def test_ftrl_refuses_a_constant_rate_of_0():
    with pytest.raises(CoreError) as error:
        trained(Optimizer("ftrl", {"learning_rate": 0.0}), 1.0, 1)
    assert error.value.code == "bad_attr"


def test_centred_rmsprop_stays_finite_for_constant_gradients():
    optimizer = Optimizer("rmsprop", {"centered": True, "epsilon": 1e-6, "learning_rate": 1e-9})

    assert np.isfinite(trained(optimizer, 3333.3, 300, "float32")).all()


@pytest.mark.parametrize("sizes", [[10**9], [10**9] * 2, [2**62] * 2, [10**9] * 3])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_too_many_windows_are_refused(kind, sizes):
    s = Sketch()
    s.param("x", np.ones((1, 1, *[4] * len(sizes))))
    s.op(f"adaptive_{kind}_pool{len(sizes)}d", "x", out=["y", "at"] if kind == "max" else "y", output_size=sizes)
    s.total("y")

    with pytest.raises(CoreError) as error:
        compile_gradient(read(s.document), GradientQuery(loss="loss"))
    assert any(word in str(error.value) for word in ("bytes", "windows", "at most 2147483647", "larger than any array"))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "slope", "curvature"),
    [
        ("asin", lambda x: (1 - x * x) ** -0.5, lambda x: x * (1 - x * x) ** -1.5),
        ("acos", lambda x: -((1 - x * x) ** -0.5), lambda x: -x * (1 - x * x) ** -1.5),
        ("atanh", lambda x: 1 / (1 - x * x), lambda x: 2 * x / (1 - x * x) ** 2),
    ],
)
def test_derivatives_of_inverse_functions_are_exact_near_0_and_near_1(name, slope, curvature, dtype, compiled):
    b = BlockBuilder()
    x = b.param(TensorType((12,), dtype))
    forward = b.build([b.emit(name, x)])
    first = vjp(forward)
    first = replace(first, results=first.results[1:])
    second = vjp(first, first.params[:1])
    second = replace(second, results=second.results[1:])
    eps = np.finfo(dtype).eps
    at = np.array([1e-12, -3e-8, 1e-4, 0.03, -0.2, 0.4, 0.5, -0.7, 0.9, 0.999, 1 - 2 * eps, eps / 2 - 1], dtype)
    one = np.ones_like(at)
    exact = at.astype(np.longdouble)

    for block, args, wanted in ((first, [at, one], slope), (second, [at, one, one], curvature)):
        call = native_interpreter(optimize(block), CPU) if compiled else interpreter_of(optimize(block))
        found = call(Run(), *args)[0]
        np.testing.assert_allclose(found, wanted(exact).astype(dtype), rtol=8 * eps)


def second_derivatives(type: str, x: np.ndarray, y: np.ndarray, compiled: bool) -> list[np.ndarray]:
    """d2/dx2, d2/dxdy, d2/dydx and d2/dy2 of an op of two arrays."""
    s = Sketch()
    s.param("x", x, x.dtype.name)
    s.param("y", y, y.dtype.name)
    s.total(s.op(type, "x", "y"))
    first = gradients(read(s.document), ["loss"], ["x", "y"])
    found = []
    for name in ("x", "y"):
        query = GradientQuery(targets=(first.gradients[name],), inputs=("x", "y"), unconnected="zeros")
        step = compile_gradient(first.program, query)
        out = (step.compiled() if compiled else step).step(s.values).gradients
        found += [out["x"], out["y"]]
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("type", ["div", "atan2"])
def test_second_derivatives_of_quotients_and_angles_are_exact_until_the_mixed_one_overflows(type, dtype, compiled):
    limits = np.finfo(dtype)
    least, largest = float(limits.max) ** -0.5 * 2, float(limits.max) ** 0.25
    sizes = np.geomspace(least, largest, 9)
    divisors, dividends = np.concatenate([sizes, -sizes]), np.concatenate([[0.0, float(limits.tiny)], sizes])
    x, y = (each.ravel().astype(dtype) for each in np.meshgrid(dividends, divisors))

    found = second_derivatives(type, x, y, compiled)

    a, b = (each.astype(np.longdouble) for each in (x, y))
    if type == "div":
        wanted, scale = [0 * a, -1 / b**2, -1 / b**2, 2 * a / b**3], np.abs(1 / b**2) + np.abs(a / b**3)
    else:
        square = a * a + b * b
        bent, mixed, scale = 2 * a * b / square**2, (a * a - b * b) / square**2, 1 / square
        wanted = [-bent, mixed, mixed, bent]
    for one, other in zip(found, wanted, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            close = np.abs(one - other) <= 16 * limits.eps * scale + limits.tiny
            assert np.all(close | (one == other.astype(dtype)))
