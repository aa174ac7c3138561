"""Numbers, lists and Python values as operands of ops in a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from backpass_client.arguments import POSITIONS
from core.ir.registry import REGISTRY
from tests.backpass_client.builder.running import run

X = np.array([1.0, 2.0, 3.0])
TYPES = {"float64": bp.f64, "int64": bp.i64, "uint8": bp.u8, "bool": bp.bool_}


def computed(f: Callable[..., Any], x: Any = X, like: bp.Type | None = None) -> np.ndarray:
    """``f(x)`` as a program. like: the type of the feed x, by default that of the array `x`."""
    given = np.asarray(x)

    def traced(x=like or TYPES[given.dtype.name][given.shape]):
        return {"out": f(x)}

    return run(bp.program(traced), x=given)["out"]


def refused(f: Callable[..., Any], error: type[Exception], match: str, x: Any = X) -> None:
    with pytest.raises(error, match=match) as caught:
        computed(f, x)
    assert any(entry.path.name == "test_operands.py" and entry.name == "<lambda>" for entry in caught.traceback)


# --- numbers -----------------------------------------------------------------------------------------------------


def test_a_number_in_an_elementwise_op_takes_the_shape_of_the_operand():
    np.testing.assert_array_equal(computed(lambda x: bp.maximum(x, 2)), np.maximum(X, 2))
    np.testing.assert_array_equal(computed(lambda x: bp.where(x > 1, x, 0.5)), [0.5, 2, 3])


def test_a_number_has_no_axes_in_an_op_that_is_not_elementwise():
    refused(lambda x: x @ 2, bp.InvalidOp, r"matmul\(x=float64\[3\], y=float64\[\]\): cannot multiply a scalar")
    refused(lambda x: bp.matmul(3, x), bp.InvalidOp, r"matmul\(x=float64\[\], y=float64\[3\]\)")
    refused(lambda x: bp.concat([x, 2.0]), bp.InvalidOp, "arrays of different rank cannot be concatenated")
    np.testing.assert_allclose(computed(lambda x: bp.mse_loss(x, 1)), ((X - 1) ** 2).mean())
    np.testing.assert_allclose(computed(lambda x: bp.lerp(x, x * 3, 0.5)), 2 * X)
    np.testing.assert_array_equal(computed(lambda x: bp.masked_fill(x, x > 1, 0)), [1, 0, 0])


def test_a_number_is_an_integer_where_positions_belong():
    assert computed(lambda x: bp.gather(x, 2)) == 3.0
    assert computed(lambda x: bp.embedding(bp.stack([x, x + 1]), 1)).tolist() == [2, 3, 4]
    assert computed(lambda x: bp.array_read(bp.array_unstack(bp.stack([x, -x])), 1)).tolist() == [-1, -2, -3]
    refused(lambda x: bp.gather(x, 2.5), TypeError, "the input 'index' of gather takes integers, not 2.5")


def test_the_slots_of_positions_are_integers_in_every_example_of_the_core():
    """Names that stand for integers in all ops, except keys and operands whose dtype is free."""
    kinds: dict[str, set[str]] = {}
    for spec in REGISTRY.values():
        for example in spec.example_rule() if spec.example_rule else ():
            for i, given in enumerate(example.inputs):
                slot = spec.inputs[min(i, len(spec.inputs) - 1)].name
                kinds.setdefault(slot, set()).update(array.dtype.kind for array in arrays(given))
    integers = {slot for slot, found in kinds.items() if found and found <= set("iu")}

    assert integers - POSITIONS == set()
    assert {slot for slot in POSITIONS & kinds.keys() if "f" in kinds[slot]} == set()


def arrays(given: Any) -> Iterator[np.ndarray]:
    if isinstance(given, list):
        for each in given:
            yield from arrays(each)
    elif isinstance(given, np.ndarray):
        yield given


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_numbers_are_subtracted_from_integers_and_integers_from_numbers(dtype):
    x = np.array([5, 6, 200], dtype)

    np.testing.assert_array_equal(computed(lambda x: x - 2, x), x - 2)
    np.testing.assert_array_equal(computed(lambda x: 250 - x, x), 250 - x)
    refused(lambda x: x - 0.5, bp.InvalidOp, "0.5", x)


@pytest.mark.parametrize(
    ("f", "value"),
    [
        (lambda x: x < 0.5, "0.5"),
        (lambda x: bp.where(x > 0, x, 0.5), "0.5"),
        (lambda x: x + 1e300, r"1e\+300"),
        (lambda x: x + 2**63, "9223372036854775808"),
        (lambda x: bp.maximum(x, float("inf")), "inf"),
        (lambda x: bp.full_like(x, value=0.5), "0.5"),
        (lambda x: bp.fill_constant(value=-1, dtype="uint8") + x, "-1"),
        (lambda x: x * [1, 2.5], "2.5"),
    ],
)
def test_a_number_that_the_dtype_does_not_have_is_refused_at_its_line(f, value):
    refused(f, bp.InvalidOp, f"{value}.* is not a value of dtype (int64|uint8)", np.array([1, 2]))


def test_a_number_beside_an_operand_of_unknown_dtype_needs_a_declaration():
    refused(
        lambda x: bp.mse_loss(bp.array_stack(bp.array_unstack(x)), 0.5),
        bp.InvalidOp,
        r"the dtype of array_stack is not known; declare it with bp\.typed",
        np.ones((2, 3)),
    )


# --- lists -------------------------------------------------------------------------------------------------------


def test_a_list_of_numbers_is_a_constant_of_the_dtype_of_the_operand():
    np.testing.assert_array_equal(computed(lambda x: x * [1, 2, 3]), X * [1, 2, 3])
    np.testing.assert_array_equal(computed(lambda x: [1, 2, 3] - x), [0, 0, 0])
    np.testing.assert_array_equal(computed(lambda x: x @ [[1], [2], [3.5]]), X @ [[1], [2], [3.5]])
    np.testing.assert_array_equal(computed(lambda x: bp.concat([x, [4, 5]])), [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(computed(lambda x: bp.gather(x, [0, 2])), X[[0, 2]])
    np.testing.assert_array_equal(computed(lambda x: bp.where([True, False, True], x, 0)), [1, 0, 3])
    assert computed(lambda x: bp.gather(x, [])).shape == (0,)
    assert computed(lambda x: bp.tanh([0.0, 0.5]) + bp.cast(x[0], dtype="float32")).dtype == np.float32


def test_other_lists_are_refused():
    refused(lambda x: bp.mul(x, [x, x]), TypeError, "the input 'y' of mul is one array, not a list of them; take one")
    image = np.ones((1, 1, 2, 2))
    refused(
        lambda x: bp.relu(bp.max_pool2d(x, kernel_size=[2, 2])),
        TypeError,
        r"not a tuple of them: max_pool2d returns 2 results; out, index = bp.max_pool2d\(...\)",
        image,
    )
    refused(lambda x: x == 0, TypeError, r"`==` compares identities: write bp.equal\(x, 0\), which compares values")
    refused(lambda x: (x != 1.5).sum(), TypeError, r"write bp.equal\(x, 1.5\)")
    refused(lambda x: x * [[1], [1, 2]], TypeError, "the input 'y' of mul cannot be .*: it is no array of numbers")
    refused(lambda x: x * ["a"], TypeError, "it is no array of numbers")
    refused(lambda x: bp.gather(x, [0.5]), TypeError, "takes integers")


def test_an_attribute_of_several_results_names_the_op_and_its_results():
    image = np.ones((1, 1, 4, 4))
    pooled = lambda x: bp.max_pool2d(x, kernel_size=[2, 2])
    text = r"a tuple has no attribute '{}': max_pool2d returns 2 results; out, index = bp.max_pool2d\(...\)$"

    refused(lambda x: pooled(x).sum(), AttributeError, text.format("sum"), image)
    refused(lambda x: bp.nn.Linear(2)(pooled(x)), AttributeError, text.format("ndim"), image)
    refused(lambda x: bp.split(x, num=3).shape, AttributeError, "'shape': split returns 3 results; take one of them$")
    assert computed(lambda x: pooled(x)[0].sum(), image) == 4


# --- sizes -------------------------------------------------------------------------------------------------------


def test_the_name_of_an_open_size_is_an_operand_of_any_dtype():
    many = np.arange(6.0).reshape(3, 2)
    rows = bp.f64["n", 2]

    assert computed(lambda x: x.sum() / x.shape[0], many, rows) == 5.0
    assert computed(lambda x: x.shape[0] * x[0, 1], many, rows) == 3.0
    np.testing.assert_array_equal(computed(lambda x: x - x.shape[0], many, rows), many - 3)
    np.testing.assert_array_equal(computed(lambda x: bp.dynamic_range(0, x.shape[0], 1), many, rows), [0, 1, 2])
    np.testing.assert_array_equal(computed(lambda x: bp.cast(x, dtype="int64") % x.shape[0], many, rows), many % 3)

    def in_a_loop(x):
        return bp.while_loop(lambda h, i: i < x.shape[0], lambda h, i: (h + x.shape[0], i + 1), (x[0, 0], 0))[0]

    assert computed(in_a_loop, many, rows) == 9.0


def test_the_name_of_an_open_size_has_no_arithmetic_of_python():
    match = r"'n' is the name of an open size, which Python cannot compute with: bp.shape\(x\)\[axis\]"
    many = np.zeros((3, 2))

    def wrong(f: Callable[[Any], Any]) -> None:
        with pytest.raises(bp.InvalidOp, match=match):
            computed(f, many, bp.f64["n", 2])

    for f in (lambda n: n + 1, lambda n: 1 + n, lambda n: n - 1, lambda n: n * 2, lambda n: n // 2, lambda n: 1 / n):
        wrong(lambda x, f=f: f(x.shape[0]))
    with pytest.raises(bp.InvalidOp, match="no feed has a size 'm'; a text among operands is the name of one"):
        computed(lambda x: x * "m", many, bp.f64["n", 2])
    assert bp.program(lambda x=bp.f32["n"]: {"a" + x.shape[0] + "b": x}).outputs.keys() == {"anb"}


# --- arrays and functions of numpy -------------------------------------------------------------------------------


OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda a, x: a + x,
    lambda a, x: a - x,
    lambda a, x: a * x,
    lambda a, x: a / x,
    lambda a, x: a // x,
    lambda a, x: a % x,
    lambda a, x: abs(a) ** x,
    lambda a, x: a < x,
    lambda a, x: a <= x,
    lambda a, x: a > x,
    lambda a, x: a >= x,
]


@pytest.mark.parametrize(
    "left", [np.array([4, 2.5, -5]), np.float64(2.5), 7.5], ids=["array", "numpy number", "Python number"]
)
@pytest.mark.parametrize("operator", range(len(OPERATORS)))
def test_an_operator_with_a_symbol_on_its_right_equals_numpy(operator: int, left: Any):
    f = OPERATORS[operator]

    np.testing.assert_allclose(computed(lambda x: f(left, x)), f(left, X))


def test_products_and_logical_operators_with_a_symbol_on_their_right_equal_numpy():
    matrix, mask = np.arange(6.0).reshape(2, 3), np.array([True, True, False])

    np.testing.assert_array_equal(computed(lambda x: matrix @ x), matrix @ X)
    for f in (lambda a, x: a & (x > 1), lambda a, x: a | (x > 1), lambda a, x: a ^ (x > 1)):
        np.testing.assert_array_equal(computed(lambda x, f=f: f(mask, x)), f(mask, X))
        np.testing.assert_array_equal(computed(lambda x, f=f: f(np.bool_(True), x)), f(np.bool_(True), X))


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda x: np.exp(x), r"np.exp computes with arrays and records no op; write bp.exp$"),
        (lambda x: np.multiply(x, 2), "np.multiply .*; did you mean mul"),
        (lambda x: np.add.reduce(x), "np.add .*; write bp.add$"),
        (lambda x: x == X, "np.equal .*; write bp.equal$"),
        (lambda x: np.sum(x), r"np.sum .*; write x.sum\(...\)$"),
        (lambda x: np.mean(x, axis=0), r"np.mean .*; write x.mean\(...\)$"),
        (lambda x: np.where(x > 0, x, 0), "np.where .*; write bp.where$"),
        (lambda x: np.concatenate([x, x]), "np.concatenate .*; did you mean concat"),
        (lambda x: np.linalg.norm(x), "np.linalg.norm .*; write bp.norm$"),
        (lambda x: np.fft.fft(x), "np.fft.fft .*; write bp.fft$"),
        (lambda x: np.array([x, x]), "is a symbol of a program and has no value yet"),
    ],
)
def test_a_function_of_numpy_on_a_symbol_is_an_error_that_names_the_op(f: Callable[[Any], Any], text: str):
    refused(f, TypeError, text)


def test_the_shape_and_the_rank_of_a_symbol_are_known_to_numpy():
    def f(x=bp.f64["n", 3]):
        assert (np.shape(x), np.ndim(x)) == (("n", 3), 2)
        return x

    bp.program(f)


# --- other Python values -----------------------------------------------------------------------------------------


def test_an_argument_that_an_op_does_not_have_is_refused_with_those_that_it_has():
    refused(lambda x: bp.softmax(x, dim=0), TypeError, "softmax has no input and no attribute 'dim'; it has x, axis$")
    refused(lambda x: bp.mean(x, axis=0), TypeError, "it has x; reduce_mean has axes$")


def test_the_error_of_an_attribute_given_by_position_lists_the_attributes():
    by_name = "; its attributes are given by name: "
    refused(lambda x: bp.softmax(x, 0), TypeError, f"^softmax takes 1 input, not 2{by_name}axis$")
    refused(
        lambda x: bp.range(3),
        TypeError,
        f"^range takes no inputs, not 1{by_name}.*; dynamic_range takes them as arrays$",
    )
    refused(
        lambda x: bp.dropout(x, 0.1),
        TypeError,
        f"^the input 'key' of dropout is an array, not 0.1{by_name}p, .*; key=0.1",
    )
    refused(lambda x: bp.layer_norm(x, x.shape[1:]), TypeError, r"the input 'scale' of layer_norm is an array, not \(")
    refused(lambda x: bp.cross_entropy(x, [0, 1], "mean"), TypeError, "is an array, not 'mean'; .* reduction$")
    refused(
        lambda x: bp.concat([x, x], 1), TypeError, f"concat takes arrays one by one, or one list of them{by_name}axis$"
    )
    np.testing.assert_array_equal(computed(lambda x: bp.concat([0], x)), [0, *X])
    refused(lambda x: bp.einsum("ij,jk->ik", x, x), TypeError, "einsum takes arrays one by one, .*: equation$")


def test_a_sum_of_one_array_names_the_sum_of_its_elements():
    refused(
        lambda x: bp.sum(x), TypeError, "^sum adds several arrays; reduce_sum, or the method `sum`, adds the elements"
    )
    np.testing.assert_array_equal(computed(lambda x: bp.sum([x]) + bp.sum(x, x)), 3 * X)


def test_scalars_of_numpy_count_as_numbers_and_arrays_keep_their_dtype():
    np.testing.assert_array_equal(computed(lambda x: np.float32(0.5) * x + np.int8(2)), X / 2 + 2)
    refused(lambda x: x * np.array(2.0, "float32"), bp.InvalidOp, "dtypes differ: float32 and float64")
    refused(lambda x: x * True, bp.InvalidOp, "dtypes differ: bool and float64")
    refused(lambda x: x * 1j, bp.InvalidOp, "cannot use a complex as an array: its elements are complex128")
    refused(lambda x: x * "a", bp.InvalidOp, "no feed has a size 'a'")


def test_a_plain_bool_is_refused_as_a_condition():
    """`x == x` is one: it compares identities."""
    match = "is the Python value (True|False): `==` and `!=` compare identities, bp.equal"
    refused(lambda x: bp.where(x == bp.abs(x), x, -x), TypeError, match)
    refused(lambda x: bp.masked_fill(x, x != bp.abs(x), 0.0), TypeError, match)
    refused(lambda x: bp.cond(x == bp.abs(x), lambda: x, lambda: -x), bp.InvalidOp, match)
    refused(lambda x: bp.safe_where(x == bp.abs(x), lambda: x, lambda: -x), bp.InvalidOp, match)
    refused(lambda x: bp.while_loop(lambda i: i != bp.abs(i), lambda i: i + 1, 0), bp.InvalidOp, match)
    np.testing.assert_array_equal(computed(lambda x: bp.where(bp.equal(x, 2), x, -x)), [-1, 2, -3])


def test_bools_fill_constants_of_dtype_bool():
    assert computed(lambda x: bp.fill_constant(shape=[2], value=True, dtype="bool")).tolist() == [True, True]
    assert computed(lambda x: bp.full_like(x > 2, value=np.True_)).tolist() == [True] * 3
    found = computed(lambda x: bp.assign_value(values=[True, False], shape=[2], dtype="bool"))
    assert found.tolist() == [True, False]
    refused(lambda x: bp.fill_constant(value=True), bp.InvalidOp, "attribute 'value' of fill_constant must be a number")


# --- indices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        lambda x, i, rows: x[1, :, rows],
        lambda x, i, rows: x[:, rows, ..., 1],
        lambda x, i, rows: x[rows, :, None, 0],
        lambda x, i, rows: x[0, :, i],
        lambda x, i, rows: x[:, [0, 2], None, 1],
        lambda x, i, rows: x[..., []],
    ],
)
def test_positions_apart_from_an_integer_come_first_as_in_numpy(part):
    x, i, rows = np.arange(24.0).reshape(2, 3, 4), 1, np.array([1, 0, 1])

    built = bp.program(lambda x=bp.f64[2, 3, 4], i=bp.i64, rows=bp.i64[3]: part(x, i, rows))

    found = run(built, x=x, i=i, rows=rows)["out"]
    np.testing.assert_array_equal(found, part(x, i, rows))
    assert built.outputs["out"].shape == found.shape


def test_wrong_indices_are_refused_at_their_line():
    refused(lambda x: x[x > 0], TypeError, r"cannot index with the mask greater_than=bool\[3\]; use masked_select or")
    refused(lambda x: x[[-4, 0]], IndexError, "position -4 is out of range for axis 0 of size 3")
    refused(lambda x: x[[0, 3]], IndexError, "position 3 is out of range for axis 0 of size 3")
    refused(lambda x: x[:, :], IndexError, "too many indices: 2 for an array of rank 1")
    refused(lambda x: x[1:2:0], ValueError, "the step of a slice must not be 0")
    refused(lambda x: x[[0, 1], bp.constant([0])], TypeError, "two arrays at once", np.ones((2, 2)))
    refused(lambda x: x[True], TypeError, "cannot index with True")


def test_a_negative_position_of_an_open_axis_counts_from_its_end():
    assert computed(lambda x: x[[-1, 0]], X, bp.f64["n"]).tolist() == [3, 1]
    assert computed(lambda x: x[-1], X, bp.f64["n"]) == 3
