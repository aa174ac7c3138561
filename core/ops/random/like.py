"""Random arrays with the shape of another array, which may have open sizes: noise for a batch of any length."""

from __future__ import annotations

import inspect
import typing
from inspect import Parameter
from typing import Any

import numpy as np

from core.ir import FLOATS, TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Dtype, Example, OpSpec, composite, op
from core.ops.common.ranges import Probability
from core.ops.elementwise.arithmetic import cast
from core.ops.random.counter import (
    RANDOM,
    bernoulli,
    check_key,
    exponential,
    gaussian_random,
    randint,
    truncated_gaussian,
    uniform_random,
)
from core.ops.shape.creation import full_like

__all__: list[str] = []


def like(spec: OpSpec, **defaults: Any) -> OpSpec:
    """Declare the op `<name>_like` of a random op: it takes the shape, and by default the dtype, from an array x.

    defaults: of attributes, where they differ from those of `spec`.
    With the same key, seed and stream the two ops draw the same numbers.
    """
    dtypes = typing.get_args(next(attr.type for attr in spec.attrs if attr.name == "dtype"))

    def kernel(xp, x, key=None, *, dtype, **attrs):
        return spec.body(xp, key, shape=x.shape, dtype=dtype or str(x.dtype), **attrs)

    def infer(x, key, *, dtype, **attrs):
        found = dtype or x.dtype
        if found not in dtypes:
            raise ProgramError(
                f"{spec.name}_like gives {' or '.join(dtypes)}, not {found}: give dtype", "dtype_mismatch"
            )
        assert spec.infer_rule is not None
        spec.infer_rule(key, shape=(), dtype=found, **attrs)
        return TensorType(x.shape, found)

    kernel.__name__ = f"{spec.name}_like"
    kernel.__doc__ = f"{_first_sentence(spec)} The shape is that of x, and so is the dtype unless `dtype` is given."
    parameters = [p for name, p in inspect.signature(kernel).parameters.items() if name in ("xp", "x", "key")]
    annotations = {attr.name: attr.type for attr in spec.attrs if attr.name != "shape"}
    annotations["dtype"] = annotations["dtype"] | None
    for attr in spec.attrs:
        if attr.name != "shape":
            default = None if attr.name == "dtype" else defaults.get(attr.name, attr.default)
            parameters.append(Parameter(attr.name, Parameter.KEYWORD_ONLY, default=default))
    kernel.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    kernel.__annotations__ = annotations
    declared: OpSpec = op(kernel, no_gradient=RANDOM)
    declared.infer(infer)
    declared.example(lambda: [_shaped(each) for each in spec.example_rule()] if spec.example_rule else [])
    return declared


def _first_sentence(spec: OpSpec) -> str:
    return " ".join(spec.doc.split("\n\n")[0].split())


def _shaped(example: Example) -> Example:
    """An example of a random op as one of its `_like` op."""
    attrs = {name: value for name, value in example.attrs.items() if name not in ("shape", "dtype")}
    dtype = example.attrs.get("dtype", "int64" if "high" in attrs else "float32")
    return Example((np.zeros(example.attrs["shape"], dtype), *example.inputs), example.outputs, attrs)


uniform_random_like = like(uniform_random, min=0.0)
gaussian_random_like = like(gaussian_random)
truncated_gaussian_like = like(truncated_gaussian)
exponential_like = like(exponential)
randint_like = like(randint)


@composite(no_gradient=RANDOM)
def bernoulli_like(x, key=None, *, p: Probability = 0.5, dtype: Dtype | None = None, seed: int = 0, stream: int = 0):
    """1 with probability `p`, else 0. The shape is that of x, and so is the dtype unless `dtype` is given."""
    if key is not None:
        check_key(key.type)
    given = x if dtype in (None, x.dtype) else cast(x, dtype=dtype)
    if given.dtype not in FLOATS:
        raise ProgramError(f"bernoulli_like gives floats, not {given.dtype}: give dtype", "dtype_mismatch")
    return bernoulli(full_like(given, value=p), key, seed=seed, stream=stream)


bernoulli_like.example(
    lambda: [
        Example((np.zeros((2, 3)), np.array(7)), ()),
        Example((np.zeros(3, "int64"), np.array(7)), (np.ones(3, "float32"),), {"p": 1.0, "dtype": "float32"}),
        Example((np.zeros((0, 2)), np.array(7)), (np.zeros((0, 2)),), {"p": 0.0}),
    ]
)
