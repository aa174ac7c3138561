"""A size that only a run tells: an op gives what its type rule says, or the run ends with an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import StackType, TensorType
from core.ir.builder import BlockBuilder, output_types
from core.ir.errors import CoreError, ExecutionError, ProgramError
from core.ir.registry import Example, as_tuple
from core.ops.common.types import matches
from core.runtime.reference import execute
from tests.laws.examples import OPS, arrays, block_for, examples_of, floats, type_of

REFUSALS = (CoreError, ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError, np.linalg.LinAlgError)
"""What becomes an error of the run where a kernel raises it."""


def other_sizes(values: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """`values` with one size of one of them changed, and their types, in which that size is unknown."""
    for i, x in enumerate(values):
        for axis in range(0 if isinstance(x, list) else x.ndim):
            size = x.shape[axis]
            for other in {1, size - 1, size + 1} - {size, -1} if size else ():
                types = [type_of(each) for each in values]
                types[i] = TensorType((*x.shape[:axis], -1, *x.shape[axis + 1 :]), types[i].dtype)
                changed = np.take(x, np.arange(other) % size, axis)
                yield [*values[:i], changed, *values[i + 1 :]], types


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(OPS))
def test_results_for_open_sizes_have_the_inferred_types(name):
    spec = OPS[name]
    for example in examples_of(spec):
        values = arrays(example)
        if any(isinstance(x, list) for x in values) or any(x is None for x in example.inputs):
            continue
        attrs = spec.complete(example.attrs)
        for given, types in other_sizes(values):
            try:
                inferred = output_types(spec, tuple(types), attrs)
            except CoreError:
                continue
            b = BlockBuilder()
            params = [b.param(t) for t in types]
            block = b.build(as_tuple(b.emit(name, *params, **example.attrs)))
            try:
                found = execute(block, given)
            except REFUSALS:
                continue
            for value, type in zip(found, inferred, strict=True):
                if not isinstance(type, StackType):
                    assert matches(type_of(value), type), [t.shape for t in types]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in sorted(OPS) if OPS[name].differentiable])
def test_gradients_of_no_rows_are_the_same_whether_their_number_is_open_or_known(name):
    """Of both orders, and with respect to the cotangents too: a program may compute these from its parameters."""
    spec = OPS[name]
    for example in examples_of(spec)[:2]:
        values = [x if isinstance(x, list) or x.ndim == 0 else x[:0] for x in arrays(example)]
        if any(isinstance(x, list) for x in values) or any(x is None for x in example.inputs):
            continue
        given = Example(tuple(values), (), example.attrs)
        types = [TensorType((-1, *x.shape[1:]), str(x.dtype)) if x.ndim else type_of(x) for x in values]
        try:
            blocks = [block_for(spec, given), block_for(spec, given, types)]
        except ProgramError:
            continue
        for _ in range(3):
            with np.errstate(all="ignore"):
                try:
                    known, found = (execute(optimize(block), values) for block in blocks)
                except REFUSALS:
                    break
            for one, other in zip(found, known, strict=True):
                np.testing.assert_array_equal(one, other)
            results = [k for k, name in enumerate(blocks[0].results) if blocks[0].types[name].is_float]
            wrt = floats(values)
            if not results or not wrt or any(isinstance(t, StackType) for t in blocks[0].result_types):
                break
            try:
                blocks = [vjp(block, [block.params[k] for k in wrt]) for block in blocks]
            except CoreError:  # a size that the rule must know
                break
            values += [np.full_like(known[k], 0.75) for k in results]


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("shape", [(-1,), (0,)])
def test_the_variance_of_no_elements_is_nan_also_if_only_the_run_tells_their_number(shape, ddof):
    b = BlockBuilder()
    block = b.build(
        [b.emit(name, x, ddof=ddof) for x in [b.param(TensorType(shape, "float64"))] for name in ("var", "std")]
    )

    with np.errstate(all="ignore"):
        assert np.isnan(execute(block, [np.zeros(0)])).all()


@pytest.mark.parametrize("name", ["sum_to", "split", "split_like"])
def test_an_open_size_that_does_not_fit_ends_the_run(name):
    b = BlockBuilder()
    x = b.param(TensorType((-1,), "float64"))
    if name == "sum_to":
        out = [b.emit("sum_to", x, shape=(2,))]
    elif name == "split":
        out = b.emit("split", x, num=2)
    else:
        out = b.emit("split_like", x, *(b.param(TensorType((1,), "float64")) for _ in range(2)))
    block = b.build(out)

    with pytest.raises(ExecutionError) as caught:
        execute(block, [np.arange(3.0), *(np.ones(1) for _ in block.params[1:])])

    assert caught.value.code == "shape_mismatch"


@pytest.mark.parametrize(("name", "gates"), [("rnn", 1), ("lstm", 4), ("gru", 3)])
@pytest.mark.parametrize("features", [0, 3])
def test_without_steps_a_recurrent_network_of_open_sizes_has_results_of_the_sizes_of_its_state(name, gates, features):
    states = [np.ones((2, 5))] * (2 if name == "lstm" else 1)
    values = [np.ones((0, 2, features)), *states, np.ones((5 * gates, features)), np.ones((5 * gates, 5))]
    b = BlockBuilder()
    params = [b.param(TensorType((-1,) * x.ndim, "float64")) for x in values]

    every, *last = execute(b.build(b.emit(name, *params)), values)

    assert [x.shape for x in (every, *last)] == [(0, 2, 5), *(x.shape for x in states)]


# --- an op that takes sizes known before the run takes them open, or has a reason -------------------------------

FILTER = "the sizes of a filter determine the products and the paddings"
IMAGE = "positions and weights inside an image are computed from its sizes before the run"
FACTORS = "which factors exist, and their rule, depends on which of the two sizes is smaller"
CLASSES = "the classes drawn are numbered before the run"
COORDINATES = "the number of coordinates decides the rank of the result"
SPECTRUM = "the number of frequencies and frames is computed from the sizes before the run"
COUNT = "the size is the number of outputs"

REASONS: dict[str, tuple[str, dict[str, set[int]]]] = {
    "adaptive_avg_pool1d": (IMAGE, {"x": {2}}),
    "adaptive_avg_pool2d": (IMAGE, {"x": {2, 3}}),
    "adaptive_avg_pool3d": (IMAGE, {"x": {2, 3, 4}}),
    "adaptive_max_pool1d": (IMAGE, {"x": {2}}),
    "adaptive_max_pool2d": (IMAGE, {"x": {2, 3}}),
    "adaptive_max_pool3d": (IMAGE, {"x": {2, 3, 4}}),
    "bpr_loss": ("the mask of the other classes has a column for each class", {"x": {1}}),
    "conv1d": (FILTER, {"filter": {0, 1, 2}}),
    "conv1d_transpose": (FILTER, {"filter": {0, 1, 2}, "x": {2}}),
    "conv2d": (FILTER, {"filter": {0, 1, 2, 3}, "x": {2, 3}}),
    "conv2d_transpose": (FILTER, {"filter": {0, 1, 2, 3}, "x": {1, 2, 3}}),
    "conv3d": (FILTER, {"filter": {0, 1, 2, 3, 4}}),
    "conv3d_transpose": (FILTER, {"filter": {0, 1, 2, 3, 4}, "x": {2, 3, 4}}),
    "correlate": (FILTER, {"filter": {0, 1, 2, 3}}),
    "correlate_filter_adjoint": (FILTER, {"like": {0, 1, 2, 3}}),
    "correlate_input_adjoint": (FILTER, {"filter": {0, 1, 2, 3}}),
    "deformable_conv2d": (FILTER, {"filter": {0, 1, 2, 3}, "x": {1, 2, 3}}),
    "depthwise_conv2d": (FILTER, {"filter": {0, 1, 2, 3}, "x": {1, 2, 3}}),
    "diag": ("the size of the vector and `offset` give the size of the matrix", {"x": {0}}),
    "fft": (SPECTRUM, {"x": {0, 1}}),
    "fold": (IMAGE, {"x": {1, 2}}),
    "gather_nd": (COORDINATES, {"index": {0, 1, 2}}),
    "grid_sample": (IMAGE, {"grid": {2, 3, 4}, "x": {2, 3, 4}}),
    "interpolate": (IMAGE, {"x": {2, 3, 4}}),
    "layer_norm": (
        "a vector is a scale of the last axis or of all normalised elements, which only sizes decide",
        {"scale": {0}, "x": {1, 2}},
    ),
    "median": ("an even number of elements has two middle ones", {"x": {0, 1}}),
    "nce": (CLASSES, {"samples": {0}, "weight": {0}}),
    "positions_nd": (COORDINATES, {"index": {1}}),
    "qr": (FACTORS, {"x": {0, 1, 2}}),
    "qr_factor": (FACTORS, {"x": {0, 1, 2}}),
    "irfft": (SPECTRUM, {"x": {0, 1}}),
    "istft": (SPECTRUM, {"x": {0, 1, 2, 3}}),
    "matrix_exp": ("the gradient is a corner of a matrix of twice the size", {"x": {1, 2}}),
    "resize": (IMAGE, {"x": {0, 1, 2, 3}}),
    "real_dft": (SPECTRUM, {"x": {0, 1}}),
    "rfft": (SPECTRUM, {"x": {0, 1}}),
    "roi_align": (IMAGE, {"boxes": {1}, "x": {2, 3}}),
    "roi_pool": (IMAGE, {"boxes": {1}, "x": {2, 3}}),
    "roi_positions": (IMAGE, {"boxes": {1}, "x": {2, 3}}),
    "rotary_embedding": ("each pair of features has a frequency that depends on their number", {"x": {2}}),
    "row_conv": (FILTER, {"filter": {0}}),
    "scatter_nd": (COORDINATES, {"index": {1}}),
    "scatter_nd_update": (COORDINATES, {"index": {0, 1, 2}}),
    "scatter_nd_add": (COORDINATES, {"index": {1}}),
    "spectral_norm": ("the estimates u and v have the sizes of the weight", {"weight": {0, 1, 2}}),
    "squeeze": ("without `axes`, the sizes decide which axes stay", {"x": {0, 1, 2, 3}}),
    "svd": (FACTORS, {"x": {0, 1, 2}}),
    "stft": (SPECTRUM, {"x": {0, 1}}),
    "temporal_shift": ("the number of shifted channels is a share of all channels", {"x": {1}}),
    "unfold": (IMAGE, {"x": {2, 3, 4}}),
    "unstack": (COUNT, {"x": {0, 1}}),
}
"""Op that refuses an open size of one of its inputs -> why, and the axes of each such input over all its examples."""


def refused(name: str, examples: int, differentiated: bool) -> dict[str, set[int]]:
    """The inputs and axes whose size may not be open although the example is accepted with known sizes."""
    spec = OPS[name]
    found: dict[str, set[int]] = {}
    for example in examples_of(spec)[:examples]:
        values = arrays(example)
        if any(isinstance(x, list) for x in values) or any(x is None for x in example.inputs):
            continue
        for i, x in enumerate(values):
            for axis in range(x.ndim):
                types = [type_of(each) for each in values]
                types[i] = TensorType((*x.shape[:axis], -1, *x.shape[axis + 1 :]), types[i].dtype)
                try:
                    block = block_for(spec, example, types)
                    wrt = [block.params[k] for k in floats(values)]
                    if differentiated and spec.differentiable and wrt and any(t.is_float for t in block.result_types):
                        vjp(block, wrt)
                except CoreError:
                    found.setdefault(spec.inputs[min(i, len(spec.inputs) - 1)].name, set()).add(axis)
    return found


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_size_may_be_open_or_has_a_reason(name):
    _, allowed = REASONS.get(name, ("", {}))
    for slot, axes in refused(name, 1, False).items():
        assert axes <= allowed.get(slot, set()), (slot, axes)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPS))
def test_every_size_of_every_example_may_be_open_also_in_the_gradient_or_has_a_reason(name):
    assert refused(name, 100, True) == REASONS.get(name, ("", {}))[1]
