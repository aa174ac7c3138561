"""Sizes and numbers that do not fit an op: inference and both executors refuse the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, InternalError, ProgramError
from core.ir.registry import as_tuple
from core.ops.common.types import as_dtype
from core.plan.memory import Root, View
from core.plan.movement import _placed
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run


def block_of(op: str, *shapes: tuple[tuple[int, ...], str], **attrs: Any) -> Block:
    """A block of one op on parameters of these shapes and dtypes."""
    b = BlockBuilder()
    params = [b.param(TensorType(shape, dtype)) for shape, dtype in shapes]
    return b.build(as_tuple(b.emit(op, *params, **attrs)))


def for_arrays(op: str, *arrays: np.ndarray, **attrs: Any) -> Block:
    return block_of(op, *((x.shape, str(x.dtype)) for x in arrays), **attrs)


def both(block: Block, *arrays: np.ndarray) -> list[Any]:
    """The results of the reference executor, or the code of its error; then those of machine code."""
    found: list[Any] = []
    block = optimize(block)
    native = native_interpreter(block, CPU)
    for run in (lambda: execute(block, list(arrays)), lambda: native(Run(), *arrays)):
        with np.errstate(all="ignore"):
            try:
                found.append([np.asarray(x).tolist() for x in run()])
            except ExecutionError as error:
                found.append(error.code)
    return found


def refusal_of(op: str, *shapes: tuple[tuple[int, ...], str], **attrs: Any) -> str:
    with pytest.raises(ProgramError) as caught:
        block_of(op, *shapes, **attrs)
    return caught.value.code


# --- operands that share a size ---------------------------------------------------------------------------------


F, N = "float64", "int64"
SHARED = {
    "one label for two rows": ("bpr_loss", ((2, 3), F), ((1,), N)),
    "one index for three rows": ("index_sample", ((3, 4), F), ((1, 2), N)),
    "one feature against three": ("cdist", ((2, 1), F), ((3, 3), F)),
    "vectors of 1 and of 3": ("cos_sim", ((2, 1), F), ((2, 3), F)),
    "pairs of vectors of 4 and of 1": ("cosine_embedding_loss", ((2, 4), F), ((2, 1), F), ((2,), F)),
    "two anchors for one positive": ("npair_loss", ((2, 3), F), ((1, 3), F), ((2,), N)),
    "one label for two pairs": ("npair_loss", ((2, 3), F), ((2, 3), F), ((1,), N)),
    "one key for four values": (
        "scaled_dot_product_attention", ((2, 3, 2), F), ((2, 1, 2), F), ((2, 4, 3), F), ((3, 4), F),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED.keys())
def test_an_op_repeats_no_row_to_fit_another_operand(case):
    """Where its definition has one size for both. The run refuses what inference cannot know."""
    name, *given = case
    assert refusal_of(name, *given) == "shape_mismatch"

    sizes = [
        (-1, *shape[1:]) if name == "bpr_loss" else (-1,) * len(shape) for shape, _ in given
    ]  # it needs its classes
    block = block_of(name, *((shape, dtype) for shape, (_, dtype) in zip(sizes, given, strict=True)))
    with pytest.raises(ExecutionError) as caught:
        execute(optimize(block), [np.zeros(shape, dtype) for shape, dtype in given])
    assert caught.value.code == "shape_mismatch"


# --- diagonals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "like", "letters"),
    [((4096,), (64, 4096), "ii"), ((3,), (64, 64), "ii"), ((1,), (3, 3), "ii"), ((2, 3), (2, 4, 2), "iji"),
     ((-1,), (3, 4), "ii"), ((4,), (-1, 3), "ii")],
)  # fmt: skip
def test_diagonals_into_takes_only_the_sizes_of_its_diagonals(x, like, letters):
    assert refusal_of("diagonals_into", (x, "float32"), (like, "float32"), letters=letters) == "shape_mismatch"


@pytest.mark.parametrize(("x", "like"), [(3, (4, 4)), (4, (4, 3)), (1, (4, 4))])
def test_diagonals_into_of_open_sizes_compares_them_in_the_run(x, like):
    block = block_of("diagonals_into", ((-1,), "float64"), ((-1, -1), "float64"), letters="ii")

    with pytest.raises(ExecutionError) as caught:
        execute(block, [np.ones(x), np.zeros(like)])

    assert caught.value.code == "shape_mismatch"


def test_a_plan_refuses_to_copy_between_views_of_different_shapes():
    class Copies:
        def copy(self, entry: object, target: object) -> None:
            pass

    root = Root(9 * 8)
    whole, x = View(root, "float64", (3, 3), (3, 1)), View(Root(4 * 8), "float64", (4,), (1,))

    for part, message in ((View(root, "float64", (3,), (4,)), "shape"), (View(root, "float64", (4,), (4,)), "leaves")):
        with pytest.raises(InternalError, match=message):
            _placed(Copies(), whole, [(x, part)])  # type: ignore[arg-type]


# --- sequences --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["interleaved_rows", "sequence_concat"])
@pytest.mark.parametrize(("n", "m"), [(4, 2), (2, 4), (1, 3), (0, 1)])
def test_two_batches_of_different_numbers_of_sequences_are_refused(op, n, m):
    x, y, lengths, more = ((4, 2), "float32"), ((5, 2), "float32"), ((n,), "int64"), ((m,), "int64")
    slots = (lengths, more, x, y) if op == "interleaved_rows" else (x, lengths, y, more)

    assert refusal_of(op, *slots) == "shape_mismatch"


def test_two_batches_of_open_numbers_of_sequences_are_compared_in_the_run():
    rows = ((4, 2), "float64")
    block = block_of("interleaved_rows", ((-1,), "int64"), ((-1,), "int64"), rows, rows)

    with pytest.raises(ExecutionError) as caught:
        execute(block, [np.array([4]), np.array([1, 3]), np.ones((4, 2)), np.ones((4, 2))])

    assert caught.value.code == "shape_mismatch"


def test_repeat_counts_and_sequences_must_be_equally_many():
    assert refusal_of("expanded_rows", ((3,), "int64"), ((2,), "int64"), ((4,), "float64")) == "shape_mismatch"


@pytest.mark.parametrize("op", ["crf_decoding", "viterbi_decode", "crf_partition"])
@pytest.mark.parametrize("labels", [3, -1])
@pytest.mark.parametrize("rows", [0, 1])
def test_transitions_of_fewer_than_two_rows_are_refused(op, labels, rows):
    emission, transition = ((2, 4, labels), "float32"), ((rows, labels), "float32")

    assert refusal_of(op, emission, transition) == "shape_mismatch"


@pytest.mark.parametrize("rows", [0, 1])
def test_the_loss_of_a_crf_refuses_transitions_of_fewer_than_two_rows(rows):
    shapes = ((2, 4, 3), "float32"), ((rows, 3), "float32"), ((2, 4), "int64")

    assert refusal_of("linear_chain_crf", *shapes) == "shape_mismatch"


@pytest.mark.parametrize("rows", [1, 3, 4, 6])
def test_transitions_of_open_sizes_are_compared_with_the_labels_in_the_run(rows):
    block = block_of("crf_decoding", ((1, 2, -1), "float64"), ((-1, -1), "float64"))

    with pytest.raises(ExecutionError) as caught:
        execute(block, [np.ones((1, 2, 3)), np.ones((rows, 3))])

    assert caught.value.code == "shape_mismatch"


# --- broadcasting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x", "shape"), [((1, 3), (2, 1)), ((2, 1, 2), (3, 1)), ((0, 1), (3,)), ((3,), (1, 3))])
def test_a_sum_to_a_shape_that_does_not_broadcast_is_refused(x, shape):
    assert refusal_of("sum_to", (x, "float32"), shape=shape) == "shape_mismatch"
    assert refusal_of("sum_to_like", (x, "float32"), (shape, "float32")) == "shape_mismatch"


@pytest.mark.parametrize(("x", "like"), [((1, 3), (4, 1)), ((1, 3), (0, 1)), ((2,), (1,))])
def test_expand_as_refuses_a_smaller_array(x, like):
    assert refusal_of("expand_as", (x, "float32"), (like, "float32")) == "shape_mismatch"


# --- labels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [2**32, 2**32 + 5, -(2**31) - 1, -(2**40)])
def test_all_labels_count_if_the_ignored_one_is_outside_of_their_dtype(ignored):
    label, x = np.array([0, 5, 2], "int32"), np.zeros((3, 7))

    reference, native = both(for_arrays("class_index", label, x, ignore_index=ignored), label, x)

    assert reference == native == [[[0], [5], [2]], [[True]] * 3]


def test_paths_of_more_classes_than_int32_has_take_int32_labels():
    label = np.array([1], "int32")

    reference, native = both(for_arrays("tree_path", label, num_classes=2**40), label)

    assert reference == native
    assert reference[0][0][:2] == [2**39 - 1, 2**38 - 1]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_cross_entropy_over_no_classes_ends_the_run(dtype):
    p, label = np.zeros((3, 0), dtype), np.zeros(3, "int64")

    assert both(for_arrays("cross_entropy", p, label), p, label) == ["index_out_of_range"] * 2


def test_labels_that_do_not_count_need_no_classes():
    label, x = np.array([-1, -1]), np.zeros((2, 0))

    reference, native = both(for_arrays("class_index", label, x, ignore_index=-1), label, x)

    assert reference == native == [[[0], [0]], [[False], [False]]]


# --- rows of a mask ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "true", "false", "row"),
    [
        ([False] * 3, (0, 5), (3, 2), 2),
        ([True] * 3, (3, 2), (0, 5), 2),
        ([False] * 3, (0, 5), (3, 0), 0),
        ([], (0, 2), (0, 4), 4),
    ],
)
def test_the_rows_of_a_side_without_rows_say_nothing(mask, true, false, row):
    flags, x, y = np.array(mask, bool), np.ones(true), np.ones(false)
    block = for_arrays("merge_by_mask", flags, x, y)
    pulled = vjp(block, block.params[1:])

    reference, native = both(block, flags, x, y)
    gradients = both(pulled, flags, x, y, np.ones((len(mask), row)))

    assert block.result_types == (TensorType((len(mask), row), "float64"),)
    assert reference == native == [np.ones((len(mask), row)).tolist()]
    assert gradients == [[*reference, x.tolist(), y.tolist()]] * 2


def test_rows_of_different_shapes_cannot_be_merged():
    shapes = ((3,), "bool"), ((2, 5), "float32"), ((1, 4), "float32")

    assert refusal_of("merge_by_mask", *shapes) == "shape_mismatch"


# --- recurrences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("factor", [np.inf, np.nan])
def test_a_linear_scan_multiplies_the_zero_that_it_starts_from(reverse, factor):
    a, b = np.array([factor, 0.5, 0.5]), np.ones(3)
    a = a[::-1].copy() if reverse else a

    reference, native = both(for_arrays("linear_scan", a, b, reverse=reverse), a, b)

    np.testing.assert_array_equal(reference, np.full((1, 3), np.nan))
    np.testing.assert_array_equal(native, reference)


@pytest.mark.parametrize("begins", [((2,), "bool"), ((3, 2), "bool"), ((), "bool"), ((3,), "int64")])
def test_a_linear_scan_begins_again_by_one_bool_for_each_position(begins):
    shape = ((3, 2), F)

    assert refusal_of("linear_scan", shape, shape, begins, axis=0) == "shape_mismatch"


def test_another_number_of_bools_for_a_linear_scan_ends_the_run():
    a = np.ones((3, 2))
    block = block_of("linear_scan", ((-1, 2), F), ((-1, 2), F), ((-1,), "bool"), axis=0)

    with pytest.raises(ExecutionError) as caught:
        execute(block, [a, a, np.ones(2, bool)])

    assert caught.value.code == "shape_mismatch"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_linear_scan_is_finite_where_each_of_its_steps_is(dtype, reverse):
    """The product of three factors overflows, but each of them multiplies zero, and the last one is zero."""
    huge = {"float64": 1e200, "float32": 1e30, "float16": 3e4, "bfloat16": 1e30}[dtype]
    a, b = np.array([huge] * 5 + [0.0, huge]), np.array([0.0, 0.0, 0.0, 0.0, 0.0, 2.0, -1.0])
    wanted = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2 * huge])
    a, b, wanted = (x[::-1].astype(as_dtype(dtype)) if reverse else x.astype(as_dtype(dtype)) for x in (a, b, wanted))

    reference, native = both(for_arrays("linear_scan", a, b, reverse=reverse), a, b)

    np.testing.assert_array_equal(reference, [wanted])
    np.testing.assert_array_equal(native, [wanted])
