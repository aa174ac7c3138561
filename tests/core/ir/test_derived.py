"""Cached derivations and exact keys distinguish sign, type and bits of attributes; earlier calls have no influence."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest

from core.compiler.compile import compile_forward
from core.cost.nests import Nest, nests_of
from core.cost.variants import constant
from core.ir import Block, Op, TensorType
from core.ir.builder import BlockBuilder
from core.ir.derived import REMEMBERED
from core.ir.exact import exact, exact_attrs
from core.passes.cse import share_common
from core.wire import read, write
from tests.programs import Sketch, grads


@pytest.fixture(autouse=True)
def _nothing_remembered():
    REMEMBERED.clear()
    yield
    REMEMBERED.clear()


def reciprocal_of_leaky_relu(alpha: float) -> np.ndarray:
    s = Sketch()
    s.param("w", [-1.0, 2.0])
    s.op("reciprocal", s.op("leaky_relu", "w", alpha=alpha), out="y")
    return compile_forward(read(s.document), ["y"]).step(s.values).fetched["y"]


@pytest.mark.parametrize("signs", list(itertools.permutations((0.0, -0.0))))
def test_the_sign_of_a_zero_attribute_counts_after_any_earlier_compilation(signs):
    found = {math.copysign(1.0, alpha): reciprocal_of_leaky_relu(alpha) for alpha in signs}

    assert found[1.0].tolist() == [-np.inf, 0.5]  # 1 / (-1 * 0.0)
    assert found[-1.0].tolist() == [np.inf, 0.5]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("signs", list(itertools.permutations((0.0, -0.0))))
def test_the_sign_of_a_zero_attribute_counts_in_gradients(signs, dtype):
    def gradient(factor: float) -> float:
        s = Sketch()
        s.param("w", [-1.0], dtype)
        s.total(s.op("scale", "w", scale=factor))
        return float(grads(s)["w"][0])

    for factor in signs:
        assert math.copysign(1.0, gradient(factor)) == math.copysign(1.0, factor)  # 1.0 * factor


SAME_TO_PYTHON = [
    (0.0, -0.0),
    (1, 1.0),
    (1, True),
    (1.0, True),
    (0, False),
    ((0.0,), (-0.0,)),
    ((1, (2.0,)), (1, (2,))),
    ({"a": 0.0}, {"a": -0.0}),
    (TensorType((1, 2)), TensorType((True, 2))),
    (Op("scale", ("x",), ("y",), {"bias": 0.0}), Op("scale", ("x",), ("y",), {"bias": -0.0})),
]


@pytest.mark.parametrize(("one", "other"), SAME_TO_PYTHON)
def test_an_exact_key_distinguishes_values_that_python_compares_as_equal(one, other):
    assert one == other
    assert exact(one) != exact(other)


def test_blocks_that_differ_in_the_sign_of_a_zero_have_different_keys():
    def block(bias: float) -> Block:
        b = BlockBuilder()
        return b.build([b.emit("scale", b.param(TensorType((2,))), scale=1.0, bias=bias)])

    assert block(0.0) == block(-0.0)
    assert exact(block(0.0)) != exact(block(-0.0))
    assert exact(block(-0.0)) == exact(block(-0.0))


def test_an_exact_key_finds_a_nan_again_and_only_the_same_one():
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]

    assert exact(math.nan) == exact(float("nan"))
    assert exact(math.nan) != exact(other)
    assert exact((math.nan,)) == exact((float("nan"),))


@pytest.mark.parametrize(("one", "other"), [("1", 1), ("", None), ("1", ("1",)), ((1,), [1]), ((), None)])
def test_exact_keys_of_different_types_differ(one, other):
    assert exact(one) != exact(other)


@pytest.mark.parametrize("value", [np.float64(0.0), np.zeros(1), object(), b"bytes", {1, 2}])
def test_a_value_without_an_exact_key_is_refused(value):
    with pytest.raises(TypeError, match="has no exact key"):
        exact(value)


def test_exact_keys_of_attributes_contain_their_names():
    assert exact_attrs({}) == ()
    assert exact_attrs({"a": 1, "b": 2}) != exact_attrs({"b": 1, "a": 2})


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_a_written_program_keeps_the_sign_of_a_zero(value):
    s = Sketch()
    s.param("w", [1.0])
    s.total(s.op("div", "w", s.const(value, (1,))))  # 0.0 is the default of `value`

    again = write(read(s.document))

    assert compile_forward(read(again), ["loss"]).step(s.values).fetched["loss"] == math.copysign(np.inf, value)


def test_equal_ops_are_shared_although_others_differ_in_the_sign_of_a_zero():
    b = BlockBuilder()
    zeros = [b.constant(value, "float64", (1,)) for value in (0.0, -0.0, 0.0, -0.0)]

    shared = share_common(b.build(zeros))

    first, second, *others = shared.results
    assert first != second
    assert others == [first, second]
    assert [str(op.attrs["value"]) for op in shared.ops] == ["0.0", "-0.0"]


def test_constants_and_nests_that_differ_in_the_sign_of_a_zero_are_counted_apart():
    def nest(bias: float) -> Nest:
        s = Sketch()
        s.param("w", [1.0])
        s.op("assign", "w", out="h")
        with s.repeat(2):
            s.op("scale", "h", scale=2.0, bias=bias, out="h")
        s.total("h")
        block = read(s.document).block
        (found,) = nests_of(block, {}, block) or ()
        return found

    b = BlockBuilder()
    for value in (0.0, -0.0):
        b.constant(value, "float64")

    assert len({constant(op) for op in b.ops}) == 2
    assert nest(0.0).structure == nest(0.0).structure
    assert nest(0.0).structure != nest(-0.0).structure
