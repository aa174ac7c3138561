"""Tensor arrays and plain tensors: an op refuses the one in a slot of the other, and elements of another type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from core.ir.errors import ProgramError
from core.ir.registry import Example
from tests.laws.examples import CASES, OPS, block_for, examples_of, leaves, type_of

OF_BOTH = {"assign", "barrier", "sum"}
"""Ops whose operands are either arrays or tensors."""

OF_TENSOR_ARRAYS = [
    (name, i)
    for name, i in CASES
    if name not in OF_BOTH and any(isinstance(x, list) and x for x in examples_of(OPS[name])[i].inputs)
]
"""(op, number of its example) with a tensor array among its inputs."""


def with_one_changed(example: Example, change: Callable[[list[Any]], Any]) -> Iterator[tuple[int, list[Any]]]:
    """The number of an input that is a tensor array, and the types of all inputs with that one changed by `change`."""
    for k, given in enumerate(example.inputs):
        if isinstance(given, list) and given:
            yield k, [type_of(change(x) if at == k else x) for at, x in enumerate(example.inputs)]


def of_float32(x: Any) -> Any:
    return [of_float32(each) for each in x] if isinstance(x, list) else np.asarray(x, "float32")


@pytest.mark.parametrize(("name", "i"), OF_TENSOR_ARRAYS)
def test_a_plain_tensor_in_the_slot_of_a_tensor_array_is_refused(name, i):
    spec, example = OPS[name], examples_of(OPS[name])[i]

    for plain in (lambda x: leaves(x)[0], lambda x: np.stack([leaves(x)[0]] * 2), lambda x: np.zeros(())):
        for k, types in with_one_changed(example, plain):
            with pytest.raises(ProgramError) as raised:
                block_for(spec, example, types)
            assert raised.value.code in ("type_mismatch", "shape_mismatch"), f"input {k} of {name}"


@pytest.mark.parametrize("name", ["array_fill", "array_split_as", "array_paste", "array_take", "array_write"])
def test_a_tensor_array_whose_elements_have_another_dtype_is_refused(name):
    spec, example = OPS[name], examples_of(OPS[name])[0]

    for k, types in with_one_changed(example, of_float32):
        with pytest.raises(ProgramError) as raised:
            block_for(spec, example, types)
        assert raised.value.code == "type_mismatch", f"input {k} of {name}"


def test_an_array_is_filled_only_like_an_array_with_elements_of_that_shape():
    rows, pairs = [np.zeros(2)] * 2, [np.zeros((1, 2))] * 2

    with pytest.raises(ProgramError, match="array_fill") as raised:
        block_for(OPS["array_fill"], Example((rows, pairs)))

    assert raised.value.code == "type_mismatch"
