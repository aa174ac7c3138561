"""A NaN input gives a NaN result or an error. A finite result would be wrong."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.registry import REGISTRY, as_tuple
from core.runtime.reference import execute
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of, floats

NOT_READ = {
    ("alpha_dropout", 1): "all is dropped",
    ("cosine_embedding_loss", 0): "a NaN is not a positive label",
    ("dropout", 1): "all is dropped",
    ("gap_quotient", 0): "the values only determine which gaps count as 0",
    ("gap_quotient", 1): "the values only determine which gaps count as 0",
    ("grid_sample", 3): "nearest: a NaN counts as a position outside",
    ("hinge_embedding_loss", 0): "a NaN is not a positive label",
    ("hinge_embedding_loss", 1): "a NaN is not a positive label",
    ("matrix_power", 2): "the power 0",
    ("norm", 5): "p = 0 counts nonzero elements",
    ("product_of_others", 5): "the product is empty",
    ("roi_align", 5): "the boxes have no extent",
    ("scatter_nd_update", 5): "all slices are replaced",
    ("select_input", 0): "the result contains one input only",
    ("select_input", 1): "the result contains one input only",
    ("shift", 2): "the shift removes all elements",
    ("spectral_norm", 0): "the op computes v from u",
    ("spectral_norm", 1): "the op computes v from u",
}


def inputs_read(name: str, i: int) -> list[int]:
    """The inputs of an example whose values the op reads, not only their shape."""
    spec, args = OPS[name], arrays(examples_of(OPS[name])[i])
    if not spec.differentiable or (name, i) in NOT_READ or any(slot.name == "like" for slot in spec.inputs):
        return []
    if any(isinstance(x, list) or not np.size(x) for x in args):
        return []
    return floats(args)


@pytest.mark.sampled(1, each="name")
@pytest.mark.parametrize(("name", "i"), [case for case in CASES if inputs_read(*case)])
def test_a_nan_input_gives_a_nan_result(name, i):
    spec, example = OPS[name], examples_of(OPS[name])[i]
    args = arrays(example)

    for k in inputs_read(name, i):
        spoiled = [np.full_like(x, np.nan) if j == k else x for j, x in enumerate(args)]
        try:
            results = execute(block_for(spec, example), spoiled)
        except ExecutionError:
            continue
        found = [np.asarray(x) for x in results if not isinstance(x, list)]
        found = [x for x in found if x.dtype.kind == "f" and x.size]
        assert not found or any(np.isnan(x).any() for x in found), f"input {k}"


OPTIMISERS = sorted(n for n, s in REGISTRY.items() if [i.name for i in s.inputs[:2]] == ["parameter", "gradient"])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_nan_gradient_gives_a_nan_parameter(name):
    b = BlockBuilder()
    args = [np.asarray(3) if slot.name == "step" else np.array([0.5, 0.25]) for slot in REGISTRY[name].inputs]
    values = [b.param(TensorType(x.shape, str(x.dtype))) for x in args]
    block = b.build(as_tuple(b.emit(name, *values)))
    args[1] = np.array([np.nan, 0.25])

    parameter = execute(block, args)[0]

    assert np.isnan(parameter[0])
    if name in ("lamb", "lars"):  # one norm over all elements
        assert np.isnan(parameter[1])
