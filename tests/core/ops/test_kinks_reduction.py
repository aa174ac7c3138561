"""Edge cases of reductions, cumulative and ordered ops, and sequences."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.runtime.reference import execute
from core.runtime.run import RunLimits
from tests.programs import Sketch, close, gradient_of_op, grads

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("type", "value", "attrs", "wanted"),
    [
        ("reduce_max", [2.0, 1.0, 2.0], {}, [0.5, 0, 0.5]),
        ("reduce_max", [2.0, 1.0, 2.0], {"tie": "first"}, [1, 0, 0]),
        ("reduce_max", [2.0, 1.0, 2.0], {"tie": "all"}, [1, 0, 1]),
        ("reduce_min", [[2.0, 1.0], [1.0, 1.0]], {"tie": "first"}, [[0, 1], [0, 0]]),
        ("reduce_min", [[2.0, 1.0], [1.0, 1.0]], {"tie": "first", "axes": [0]}, [[0, 1], [1, 0]]),
        ("reduce_min", [[2.0, 1.0], [1.0, 1.0]], {"axes": [0]}, [[0, 0.5], [1, 0.5]]),
        ("reduce_prod", [[0.0, 2.0], [3.0, 4.0]], {}, [[24, 0], [0, 0]]),
        ("reduce_prod", [[0.0, 2.0], [0.0, 4.0]], {}, [[0, 0], [0, 0]]),
        ("cumprod", [2.0, 0.0, 3.0], {"reverse": True}, [0, 3 + 6, 1 + 0 + 0]),
        ("cumprod", [0.0, 0.0, 3.0], {"exclusive": True}, [1 + 0, 0, 0]),
        ("logsumexp", [-INF, 0.0, -INF], {}, [0, 1, 0]),
        ("logsumexp", [INF, 1.0, 2.0], {}, [NAN, 0, 0]),
        ("logsumexp", [1.0, NAN, 2.0], {}, [NAN, NAN, NAN]),
        ("logcumsumexp", [-INF, 0.0, -INF], {}, [0, 2, 0]),
        ("logcumsumexp", [-INF, -INF], {}, [0, 0]),
        ("logcumsumexp", [900.0, -900.0], {}, [2, 0]),
        ("logcumsumexp", [1.0, INF], {}, [1, NAN]),
        ("logcumsumexp", [INF, 1.0, 2.0], {}, [NAN, 0, 0]),
        ("logcumsumexp", [1.0, NAN, 2.0], {}, [NAN, NAN, NAN]),
        ("cummax", [1.0, 1.0, 0.0, 2.0], {}, [3, 0, 0, 1]),
        ("cummin", [1.0, 1.0, 0.0, 0.0], {}, [2, 0, 2, 0]),
        ("norm", [0.0, 0.0], {"p": 1.0}, [0, 0]),
        ("norm", [0.0, 0.0], {"p": 3.0}, [0, 0]),
        ("norm", [0.0, 2.0], {"p": 1.5}, [0, 1]),
        ("norm", [0.0, 2.0], {"p": -1.0}, [0, 0]),
        ("norm", [2.0, -2.0], {"p": -INF}, [0.5, -0.5]),
        ("std", [[3.0, 3.0], [1.0, 3.0]], {"axes": [1], "ddof": 0}, [[0, 0], [-0.5, 0.5]]),
        ("sort", [1.0, 1.0], {}, [1, 1]),
        ("topk", [1.0, 2.0, 2.0], {"k": 1}, [0, 1, 0]),
        ("topk", [1.0, 1.0, 2.0], {"k": 1, "largest": False}, [1, 0, 0]),
        ("kthvalue", [1.0, 1.0, 1.0], {"k": 2}, [0, 1, 0]),
        ("median", [1.0, 1.0, 1.0], {}, [0, 1, 0]),
        ("mode", [3.0, 2.0, 3.0, 2.0], {}, [0, 1, 0, 0]),
        ("unique", [3.0, 2.0, 3.0], {}, [1, 1, 0]),
    ],
)
def test_the_gradient_at_ties_kinks_and_zeros_is_the_defined_one(type, value, attrs, wanted):
    close(gradient_of_op(type, value, **attrs), wanted, 1e-12)


ROWS = [1.0, 4.0, 4.0, 9.0]


@pytest.mark.parametrize(
    ("type", "lengths", "attrs", "wanted"),
    [
        ("sequence_pool", [3, 0, 1], {"pool_type": "sum", "pad_value": 5.0}, [1, 1, 1, 1]),
        ("sequence_pool", [3, 0, 1], {"pool_type": "mean"}, [1 / 3, 1 / 3, 1 / 3, 1]),
        ("sequence_pool", [3, 0, 1], {"pool_type": "sqrt"}, [3**-0.5, 3**-0.5, 3**-0.5, 1]),
        ("sequence_pool", [3, 0, 1], {"pool_type": "max"}, [0, 0.5, 0.5, 1]),
        ("sequence_pool", [3, 0, 1], {"pool_type": "first"}, [1, 0, 0, 1]),
        ("sequence_pool", [0, 3, 1, 0], {"pool_type": "last", "pad_value": 5.0}, [0, 0, 1, 1]),
        ("sequence_expand", [2, 0, 1, 3], {}, [2, 0, 1, 3]),
        ("sequence_pad", [0, 3, 1], {"pad_value": 5.0}, [1, 1, 1, 1]),
        ("sequence_softmax", [3, 0, 1], {}, [0, 0, 0, 0]),
        ("segment_max", [1, 1, 0, 1], {"num_segments": 3}, [0, 0, 1, 1]),
        ("segment_max", [2, 0, 0, 2], {"num_segments": 3}, [0, 0.5, 0.5, 1]),
        ("segment_mean", [2, 0, 0, 0], {"num_segments": 4}, [1, 1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_gradients_of_sequences_come_from_their_rows_and_empty_sequences_add_nothing(type, lengths, attrs, wanted):
    s = Sketch()
    s.param("w", ROWS)
    s.feed("n", lengths, "int64")
    s.total(s.op(type, "w", "n", **attrs))

    close(grads(s)["w"], wanted, 1e-12)


def derivative(block: Block, wrt: str) -> Block:
    """The block that returns the gradient of the sum of the results of `block` with respect to `wrt`."""
    b = BlockBuilder.like(block)
    total = b.build([b.emit("reduce_sum", b.value(block.results[0]))])
    b = BlockBuilder()
    params = [b.param(total.types[p], p) for p in total.params]
    return b.build(b.inline(vjp(total, [wrt]), [*params, b.constant(1.0, "float64")])[1:])


@pytest.mark.parametrize("shape", [(3,), (-1,)])
def test_all_gradients_of_a_product_are_exact_at_zeros(shape):
    b = BlockBuilder()
    x = b.param(TensorType(shape, "float64"), "x")
    product = b.build([b.emit("reduce_prod", x)])

    first = derivative(product, "x")
    second = derivative(first, "x")
    third = derivative(second, "x")

    at = [np.array([0.0, 2.0, 3.0])]
    close(execute(first, at)[0], [6, 0, 0])
    close(execute(second, at)[0], [2 + 3, 3 + 0, 2 + 0])
    close(execute(third, at)[0], [2, 2, 2])


def test_the_second_gradient_of_a_long_product_needs_no_square_matrix():
    b = BlockBuilder()
    x = b.param(TensorType((100_000,), "float64"), "x")
    second = derivative(derivative(b.build([b.emit("reduce_prod", x)]), "x"), "x")
    at = np.ones(100_000)
    at[7] = 0

    found = execute(second, [at], limits=RunLimits(max_bytes=2**24))[0]

    assert found[7] == 99_999
    assert set(np.delete(found, 7)) == {1.0}


def test_sums_in_16_bits_do_not_stop_at_2048():
    b = BlockBuilder()
    x = b.param(TensorType((4096,), "float16"), "x")
    block = b.build([b.emit("reduce_sum", x), b.emit("reduce_mean", x), b.emit("cumsum", x)])

    total, mean, running = execute(block, [np.ones(4096, "float16")])

    assert (total, mean, running[-1]) == (4096, 1, 4096)


@pytest.mark.parametrize(
    ("type", "attrs", "wanted"),
    [
        ("cummax", {}, [1, NAN, NAN]),
        ("cummin", {}, [1, NAN, NAN]),
        ("median", {}, NAN),
        ("reduce_max", {}, NAN),
        ("sort", {}, [1, 2, NAN]),
        ("logsumexp", {}, NAN),
        ("logcumsumexp", {}, [1, NAN, NAN]),
        ("std", {}, NAN),
        ("norm", {}, NAN),
        *(("norm", {"p": p}, NAN) for p in (1.0, 3.0, -1.0, INF, -INF)),
    ],
)
def test_nan_is_propagated(type, attrs, wanted):
    b = BlockBuilder()
    out = b.emit(type, b.param(TensorType((3,), "float64"), "x"), **attrs)
    block = b.build([out[0] if isinstance(out, tuple) else out])

    close(execute(block, [np.array([1.0, NAN, 2.0])])[0], wanted)


@pytest.mark.parametrize(
    ("type", "lengths", "code"),
    [
        ("sequence_pool", [2, 1], "shape_mismatch"),
        ("sequence_pool", [5, -1], "shape_mismatch"),
        ("sequence_pool", [2**62, 2**62, 2**62, 2**62, 4], "shape_mismatch"),
        ("sequence_reset_lengths", [1, 2], "shape_mismatch"),
        ("sequence_expand", [1, 1, 1, 2**62], "too_large"),
        ("sequence_expand", [1, 1, 1, -1], "index_out_of_range"),
        ("sequence_unpad", [1, 1, 1, 2], "shape_mismatch"),
    ],
)
def test_wrong_lengths_are_an_error_of_the_run_with_a_location(type, lengths, code):
    s = Sketch()
    s.param("w", np.array(ROWS)[:, None] if type == "sequence_unpad" else ROWS)
    s.feed("n", lengths, "int64")
    s.total(s.op(type, "w", "n"))

    with pytest.raises(ExecutionError) as error:
        grads(s)
    assert error.value.code == code
    assert error.value.location is not None


def test_a_slice_of_a_sequence_stays_inside_it():
    s = Sketch()
    s.param("w", ROWS)
    s.feed("n", [3, 1], "int64")
    s.feed("offsets", [2**62, 0], "int64")
    s.feed("counts", [2**62, 1], "int64")
    s.total(s.op("sequence_slice", "w", "n", "offsets", "counts"))

    with pytest.raises(ExecutionError) as error:
        grads(s)
    assert error.value.code == "index_out_of_range"


def test_the_padding_value_gets_the_gradient_of_all_padding():
    s = Sketch()
    s.param("w", ROWS)
    s.param("fill", [0.5])
    s.feed("n", [3, 0, 1], "int64")
    s.total(s.op("sequence_pad", "w", "n", "fill"))
    found = grads(s)

    close(found["w"], [1, 1, 1, 1])
    close(found["fill"], [5])


def test_the_standard_deviation_of_one_element_is_nan():
    b = BlockBuilder()
    block = b.build([b.emit("std", b.param(TensorType((1,), "float64"), "x"))])

    assert np.isnan(execute(block, [np.array([3.0])])[0])


def test_the_order_of_a_norm_must_be_a_number():
    b = BlockBuilder()
    with pytest.raises(ProgramError) as error:
        b.emit("norm", b.param(TensorType((3,), "float64"), "x"), p=NAN)
    assert error.value.code == "bad_attr"


@pytest.mark.parametrize("op", ["reduce_max", "reduce_min"])
def test_the_extreme_of_nothing_has_second_gradient_0(op):
    b = BlockBuilder()
    x = b.param(TensorType((0, 2), "float64"))
    first = vjp(b.build([b.emit(op, x, axes=(0,), empty="identity")]), [x.name])
    second = vjp(first, [first.params[1]])

    values = [np.ones(second.types[name].shape) for name in second.params]
    np.testing.assert_array_equal(execute(second, values)[-1], [0, 0])
