"""Accuracy of every op in float16 and bfloat16, compared with float64 on the same rounded inputs.

The criterion is mixed stability: a result must equal, to a few units in the last place of its dtype, the float64 result
for inputs perturbed by at most that much. The test measures the effect by perturbing the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, StackType
from core.ir.errors import CoreError, ProgramError
from core.ir.precision import EXACT, HALVES
from core.ir.registry import Example, OpSpec
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run
from tests.bound import bound
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of

UNITS = 2.0
"""Allowed error in units in the last place: one for the rounding of the result, one for intermediate results."""

DRAWS = 2


def cast(x: Any, dtype: str) -> Any:
    """`x` with its floating-point arrays converted, including those in lists."""
    if isinstance(x, list):
        return [cast(each, dtype) for each in x]
    return x.astype(as_dtype(dtype)) if is_float(x) else x


def is_float(x: Any) -> bool:
    return np.asarray(x).dtype.kind in "fV"


def flat(values: Any) -> list[np.ndarray]:
    """All arrays in a result, including the elements of stacks."""
    if isinstance(values, list | tuple):
        return [array for each in values for array in flat(each)]
    return [np.asarray(values)]


def element_dtype(type: Any) -> str:
    while isinstance(type, StackType):
        type = type.element
    return type.dtype


def in_dtype(example: Example, dtype: str) -> Example:
    """The example with its inputs, and its dtype attributes, in `dtype`."""
    attrs = {k: dtype if v == "float64" else v for k, v in example.attrs.items()}
    with np.errstate(over="ignore"):
        return Example(tuple(cast(x, dtype) for x in arrays(example)), (), attrs, example.smooth)


def perturbation(call: Callable[..., Any], args: list[Any], wanted: list[np.ndarray], unit: float) -> list[np.ndarray]:
    """The change of each result of `call` when every input is perturbed by up to one unit in its last place."""
    r = np.random.default_rng(0)
    furthest = [np.zeros(w.shape) for w in wanted]

    def shaken(x: Any) -> Any:
        if isinstance(x, list):
            return [shaken(each) for each in x]
        return x * (1 + unit * r.uniform(-1, 1, x.shape)) if is_float(x) else x

    for _ in range(DRAWS):
        try:
            found = flat(call(*map(shaken, args)))
        except CoreError:  # outside the domain
            continue
        for i, (value, base) in enumerate(zip(found, wanted, strict=True)):
            if is_float(base) and value.shape == base.shape:
                furthest[i] = np.fmax(furthest[i], np.abs(value - base))
    return furthest


Execution = Callable[[Block, list[Any]], list[Any]]
"""Results of a block on values."""


def interpreted(block: Block, args: list[Any]) -> list[Any]:
    return execute(optimize(block), args)


def compiled(block: Block, args: list[Any]) -> list[Any]:
    return list(native_interpreter(optimize(block), CPU)(Run(), *args))


def assert_close(run: Execution, block: Block, args: list[Any], wide: Block, wide_args: list[Any], dtype: str) -> None:
    """Assert that the results of `block` have the inferred dtypes, are finite where possible, and are close to
    `wide`.
    """
    limits = ml_dtypes.finfo(as_dtype(dtype))
    unit, largest, smallest = float(limits.eps), float(limits.max), float(limits.smallest_subnormal)
    with np.errstate(all="ignore"):
        results = run(block, args)
        call = bound(wide)
        wanted = flat(call(*wide_args))
        reach = perturbation(call, wide_args, wanted, unit)
        dtypes = [element_dtype(t) for v, t in zip(results, block.result_types, strict=True) for _ in flat(v)]
        for value, dtype, true, far in zip(flat(results), dtypes, wanted, reach, strict=True):
            assert str(value.dtype) == dtype
            assert value.shape == true.shape
            if true.dtype.kind != "f":
                continue
            fits = np.isfinite(true) & (np.abs(true) < largest)
            value = value.astype("float64")
            assert np.isfinite(value[fits]).all(), f"{value} where {true} fits"
            if fits.any():
                allowed = UNITS * (unit * np.abs(true[fits]).max() + far[fits].max() + smallest)
                assert np.abs(value - true)[fits].max() <= allowed, f"{value} is not {true}"


def check(run: Execution, spec: OpSpec, example: Example, dtype: str) -> None:
    """Compare the forward pass, and the backward pass if the op is smooth here, in `dtype` and in float64."""
    short = in_dtype(example, dtype)
    args = list(short.inputs)
    wide_args = [cast(x, "float64") for x in args]
    block, wide = block_for(spec, short), block_for(spec, replace(example, inputs=tuple(wide_args)))
    assert_close(run, block, args, wide, wide_args, dtype)
    wrt = [i for i, x in enumerate(args) if not isinstance(x, list) and is_float(x)]
    if not (spec.differentiable and example.smooth and wrt):
        return
    pulled, pulled_wide = (vjp(b, [b.params[i] for i in wrt]) for b in (block, wide))
    seeds = [pulled.types[p] for p in pulled.params[len(args) :]]
    if any(isinstance(t, StackType) for t in seeds):
        return  # the ops that read it cover the results read from it
    r = np.random.default_rng(5)
    shapes = [v.shape for v, t in zip(execute(block, args), block.result_types, strict=True) if t.is_float]
    cts = [r.uniform(0.5, 1.5, s).astype(as_dtype(t.dtype)) for s, t in zip(shapes, seeds, strict=False)]
    wide_cts = [c.astype("float64") for c in cts]
    assert_close(run, pulled, [*args, *cts], pulled_wide, [*wide_args, *wide_cts], dtype)


HALF_CASES = [
    (name, i)
    for name, i in CASES
    if any(is_float(x) for x in flat(list(examples_of(OPS[name])[i].inputs)))
    or "float64" in examples_of(OPS[name])[i].attrs.values()
]


def stable_or_refused(run: Execution, name: str, i: int, dtype: str) -> None:
    spec, example = OPS[name], examples_of(OPS[name])[i]
    try:
        block_for(spec, in_dtype(example, dtype))
    except ProgramError as error:
        assert error.code == "dtype_mismatch"
        assert f"takes float32 or float64, not {dtype}[" in error.message
        assert error.message.endswith(": cast it")
        return

    check(run, spec, example, dtype)


@pytest.mark.sampled(4, each="name")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "i"), HALF_CASES)
def test_16_bit_results_are_stable_or_refused(name, i, dtype):
    stable_or_refused(interpreted, name, i, dtype)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "i"), HALF_CASES)
def test_16_bit_results_of_machine_code_are_stable_or_refused(name, i, dtype):
    stable_or_refused(compiled, name, i, dtype)


def spread(shape: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(low, high, shape)


LONG = np.ones(70_000)
ROWS = spread((8, 4096))
LABELS = np.arange(8) * 500
FAR = np.array([[1.0], [0.9], [-1.0], [0.001]]) * np.where(np.arange(128) % 3, 26.0, -32.0)
LARGE: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("more ones than float16 can count", "reduce_mean", (LONG,), {}),
    ("a sum beyond where bfloat16 adds ones", "reduce_sum", (LONG[:4096],), {}),
    ("a sum of rows", "reduce_sum", (ROWS,), {"axes": (1,)}),
    ("a running sum", "cumsum", (np.abs(ROWS[:2]),), {"axis": 1}),
    ("squares beyond 65504", "norm", (spread((50,), 200, 900),), {}),
    ("squares that vanish", "norm", (spread((50,), 1e-5, 2e-5),), {}),
    ("squares in a variance", "var", (spread((60,), -600, 600),), {}),
    ("a deviation with a large mean", "std", (1000 + 8 * np.arange(60.0),), {}),
    ("many exponentials", "softmax", (ROWS,), {}),
    ("many exponentials, their logarithm", "log_softmax", (ROWS,), {}),
    ("one sum of exponentials", "logsumexp", (ROWS + 900,), {"axes": (1,)}),
    ("a loss over many classes", "softmax_with_cross_entropy", (ROWS, LABELS[:, None]), {}),
    ("a loss with squares beyond 65504", "mse_loss", (spread((64,), 300, 400), np.zeros(64)), {}),
    ("a loss with many elements", "mse_loss", (ROWS, ROWS[::-1].copy()), {}),
    ("a loss with many small elements", "l1_loss", (ROWS, ROWS + 1.0), {}),
    ("a norm of rows", "layer_norm", (300 * ROWS,), {}),
    ("a norm of a batch", "batch_norm", (300 * ROWS.T[:512], *(np.ones(8),) * 4), {}),
    ("a norm by roots", "rms_norm", (300 * ROWS,), {}),
    ("a unit vector", "l2_normalize", (300 * ROWS,), {}),
    ("long products", "matmul", (ROWS, ROWS.T.copy()), {}),
    ("many channels", "conv2d", (spread((1, 64, 6, 6)), spread((2, 64, 5, 5))), {}),
    ("a large window", "avg_pool2d", (spread((1, 1, 64, 64), 1, 2),), {"kernel_size": (64, 64)}),
    ("long segments", "segment_sum", (LONG[:4096], np.zeros(4096, int)), {"num_segments": 1}),
    ("rows that meet", "gather", (np.ones((2, 1)), np.zeros(4096, int)), {}),
    ("a bias under many rows", "add", (ROWS.T.copy(), np.ones(8)), {}),
    ("a weight under many rows", "matmul", (ROWS.T.copy(), spread((8, 3))), {}),
    ("a filter over many places", "conv2d", (spread((4, 1, 32, 32)), spread((2, 1, 3, 3))), {}),
    ("a filter of a line", "conv1d", (spread((1, 2, 4000)), spread((2, 2, 3))), {}),
    ("a norm of groups", "group_norm", (300 * spread((2, 4, 20, 20)), np.ones(4), np.ones(4)), {"groups": 2}),
    ("a norm of each image", "instance_norm", (300 * spread((2, 2, 40, 40)), np.ones(2), np.ones(2)), {}),
    ("means of segments", "segment_mean", (LONG[:4096], np.zeros(4096, int)), {"num_segments": 1}),
    ("attention to many", "scaled_dot_product_attention", (ROWS[:, :8], ROWS.T[:2000, :8], ROWS.T[2000:4000]), {}),
    ("products beyond 65504 before their scale", "scaled_dot_product_attention", (FAR, FAR[:3], ROWS[:3, :4]), {}),
    ("such products with a mask", "scaled_dot_product_attention", (FAR, FAR, ROWS[:4, :4]), {"causal": True}),
    ("such products with a scale", "scaled_dot_product_attention", (FAR, FAR, ROWS[:4, :4]), {"scale": -0.002}),
    ("a contraction", "einsum", (ROWS, ROWS), {"equation": "ij,kj->ik"}),
    ("a loss of probabilities", "bce_loss", (np.abs(ROWS) / 2.01, np.abs(ROWS[::-1]) / 2.01), {}),
    ("a distance of far points", "cdist", (300 * spread((3, 40)), 300 * spread((4, 40))), {}),
    ("a root of powers", "lp_pool", (300 * spread((1, 1, 8, 8)),), {"kernel_size": (8, 8), "p": 2.0}),
    ("a matrix of norm 1", "spectral_norm", (30 * spread((12, 60)), np.ones(12), np.ones(60)), {}),
    ("a cosine of long vectors", "cos_sim", (100 * ROWS, 100 * ROWS[::-1].copy()), {}),
    ("parameters that hardly move", "adam", (*(np.full(4, 1e-3),) * 2, *(np.full(4, 1e-3),) * 2, np.array(9)), {}),
    (
        "a mean that hardly moves",
        "adam",
        (np.ones(4), np.full(4, 8.0), *(np.zeros(4),) * 2, np.array(0)),
        {"beta2": 0.999995, "learning_rate": 0.5},
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "inputs", "attrs"), [case[1:] for case in LARGE], ids=[case[0] for case in LARGE])
@pytest.mark.parametrize("run", [interpreted, compiled])
def test_long_sums_and_large_intermediates_keep_their_precision(name, inputs, attrs, dtype, run):
    check(run, OPS[name], Example(inputs, (), OPS[name].complete(attrs)), dtype)


ELEMENTWISE = [
    name
    for name, spec in sorted(OPS.items())
    if (spec.elementwise or spec.kind == "composite")
    and all(not isinstance(x, list) and is_float(x) for e in examples_of(spec) for x in e.inputs)
    and len({len(e.inputs) for e in examples_of(spec)}) == 1
    and 1 <= len(examples_of(spec)[0].inputs) <= (2 if spec.elementwise else 1)
    and all(np.shape(e.outputs[0]) == np.broadcast_shapes(*map(np.shape, e.inputs)) for e in examples_of(spec))
    and spec.body.__module__.rpartition(".")[2]
    in ("arithmetic", "functions", "trigonometry", "activations", "special", "rounding")
]


def every_value(dtype: str) -> np.ndarray:
    """All finite numbers of a 16-bit dtype."""
    with np.errstate(all="ignore"):
        values = np.arange(2**16, dtype="uint16").view(as_dtype(dtype))
        return values[np.isfinite(values.astype("float64"))]


def some_values(dtype: str) -> np.ndarray:
    """Some numbers of every magnitude and sign, including the largest and the smallest."""
    every = np.sort(every_value(dtype).astype("float64"))
    middle = np.searchsorted(every, 0.0)
    near = np.concatenate(
        [every[:3], every[middle - 3 : middle + 4], every[-3:], [-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0]]
    )
    return np.unique(np.concatenate([every[::701], near])).astype(as_dtype(dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_16_bit_number_gives_the_float32_result_rounded(name, dtype):
    spec = OPS[name]
    for example in {str(e.attrs): e for e in examples_of(spec)}.values():
        if len(example.inputs) == 1:
            args = [every_value(dtype)]
        else:
            args = [a.ravel() for a in np.meshgrid(some_values(dtype), some_values(dtype))]
        if name == "pow":
            args[0] = np.abs(args[0])  # a power of a negative number exists only for exactly integer y
        args32 = [a.astype("float32") for a in args]
        block = block_for(spec, Example(tuple(args), (), in_dtype(example, dtype).attrs))
        wide = block_for(spec, Example(tuple(args32), (), in_dtype(example, "float32").attrs))
        assert_rounded(block, args, wide, args32, dtype)
        if spec.differentiable:
            ct = np.ones(args[0].shape, as_dtype(dtype))
            assert_rounded(vjp(block), [*args, ct], vjp(wide), [*args32, ct.astype("float32")], dtype)


def assert_rounded(block: Block, args: list[Any], wide: Block, wide_args: list[Any], dtype: str) -> None:
    limits = ml_dtypes.finfo(as_dtype(dtype))
    unit, largest, smallest = float(limits.eps), float(limits.max), float(limits.smallest_subnormal)
    for value, wanted in zip(execute(block, args), execute(wide, wide_args), strict=True):
        if not is_float(wanted):
            np.testing.assert_array_equal(value, wanted)
            continue
        with np.errstate(all="ignore"):
            value, wanted = np.asarray(value).astype("float64"), np.asarray(wanted).astype("float64")
            fits = np.isfinite(wanted) & (np.abs(wanted) <= largest)
            off = np.where(fits, np.abs(value - wanted) - UNITS * (unit * np.abs(wanted) + smallest), 0.0)
        off[np.isnan(off)] = np.inf
        worst = int(off.argmax())
        assert off.max() <= 0, f"{[float(a[worst]) for a in wide_args]} gives {value[worst]}, not {wanted[worst]}"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", sorted(EXACT & OPS.keys()))
def test_results_declared_exact_are_exact(name, dtype):
    for example in examples_of(OPS[name]):
        short = in_dtype(example, dtype)
        if "dtype" in short.attrs or not any(is_float(x) for x in flat(list(short.inputs))):
            continue
        wide = [cast(x, "float64") for x in short.inputs]

        found = flat(execute(block_for(OPS[name], short), list(short.inputs)))
        wanted = flat(execute(block_for(OPS[name], replace(example, inputs=tuple(wide))), wide))

        for value, true in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(value).astype("float64"), np.asarray(true).astype("float64"))
