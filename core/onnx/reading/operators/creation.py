"""Operators that make tensors: constants, ranges, identity matrices and random numbers."""

from __future__ import annotations

import math

import numpy as np

from core.onnx.reading.arrays import dtype_name, name_of_array
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor
from core.ops.common.types import as_dtype

LARGEST = 2**26
"""Most elements of a constant that a model makes."""


@converter("Constant")
def constant(node: Node) -> Tensor:
    forms = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, dtype in forms.items():
        if node.has(name):
            return node.const(node.attr(name), dtype)
    if node.has("value"):
        return node.draft.constant(node.attr("value"))
    raise node.refuse("only constants of numbers are supported, neither strings nor sparse tensors")


@converter("ConstantOfShape")
def constant_of_shape(node: Node) -> Tensor:
    value = node.attr("value") if node.has("value") else np.zeros(1, "float32")
    sizes = node.sizes(0)
    number = value.reshape(-1)[0]
    if None in sizes:
        shape = [-1 if n is None else n for n in sizes]
        vector, dtype = node.cast(node[0], "int64"), name_of_array(value)
        if float(number) == number.item():
            found: Tensor = node.emit("dynamic_fill", vector, shape=shape, value=float(number), dtype=dtype)
        else:  # NaN, or an integer that no attribute holds
            found = node.emit("dynamic_expand", node.draft.constant(value.reshape(())), vector, shape=shape)
        return found
    shape = [n for n in sizes if n is not None]
    if any(n < 0 for n in shape) or math.prod(shape) > LARGEST:
        raise node.refuse(f"the shape {shape} is negative or has more than {LARGEST} elements")
    return node.draft.constant(np.full(shape, number, value.dtype))


@converter("Range")
def range_(node: Node) -> Tensor:
    start, limit, delta = (node.reshape(node[i], []) for i in range(3))
    if start.value is not None and limit.value is not None and delta.value is not None:
        if delta.value == 0:
            raise node.refuse("the step is 0")
        count = _count(start.value.item(), limit.value.item(), delta.value.item())
        if not count <= LARGEST:
            raise node.refuse(f"the range has {count} elements, more than {LARGEST}")
        numbers = start.value + np.arange(max(int(count), 0)).astype(start.value.dtype) * delta.value
        return node.const(numbers, start.dtype)
    result: Tensor = node.emit("dynamic_range", start, limit, delta)
    if not result.is_float:
        return result
    # Written out for its gradient: the number of elements does not change with the ends, but the elements do.
    counted = node.cast(node.counted(result, 0), start.dtype)
    written: Tensor = node.emit("add", start, node.emit("mul", counted, delta))
    return written


def _count(start: float, limit: float, delta: float) -> float:
    """The number of elements of a range. Integers are counted exactly."""
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        return -((start - limit) // delta)
    return float(np.ceil((limit - start) / delta))


@converter("EyeLike")
def eye_like(node: Node) -> Tensor:
    x, offset = node[0], int(node.attr("k", 0))
    dtype = node.dtype("dtype", x.dtype)
    if x.rank != 2:
        raise node.refuse(f"it needs a matrix, not {x.type}")
    if x.type.is_static:
        return node.draft.constant(np.eye(x.shape[0], x.shape[1], k=offset, dtype=as_dtype(dtype)))
    row, column = (node.counted(x, axis) for axis in (0, 1))
    on_diagonal = node.emit("equal", node.emit("add", row, node.const(offset, "int64")), column)
    return node.cast(on_diagonal, dtype)


@converter("RandomNormal", "RandomUniform")
def random(node: Node) -> Tensor:
    shape, dtype = [int(n) for n in node.attr("shape")], node.dtype("dtype", "float32")
    return _drawn(node, dtype, shape=shape)


@converter("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node) -> Tensor:
    x = node[0]
    dtype = node.dtype("dtype", x.dtype)
    if x.type.is_static:
        return _drawn(node, dtype, shape=list(x.shape))
    like = node.cast(x, dtype)
    op, how = _distribution(node)
    result: Tensor = node.emit(f"{op}_like", like, **how)
    return result


def _drawn(node: Node, dtype: str, shape: list[int]) -> Tensor:
    op, how = _distribution(node)
    result: Tensor = node.emit(op, shape=shape, dtype=dtype, **how)
    return result


def _distribution(node: Node) -> tuple[str, dict[str, float]]:
    seed = _seed(node)
    if "Normal" in node.op:
        return "gaussian_random", {"mean": node.attr("mean", 0.0), "std": node.attr("scale", 1.0), **seed}
    return "uniform_random", {"min": node.attr("low", 0.0), "max": node.attr("high", 1.0), **seed}


def _seed(node: Node) -> dict[str, int]:
    """The seed as an integer attribute: a float seed is taken by its bits."""
    if not node.has("seed"):
        return {}
    return {"seed": int(np.float32(node.attr("seed")).view("uint32"))}


@converter("Bernoulli")
def bernoulli(node: Node) -> Tensor:
    x = node[0]
    return node.cast(node.emit("bernoulli", x, **_seed(node)), node.dtype("dtype", x.dtype))


@converter("Multinomial")
def multinomial(node: Node) -> Tensor:
    x = node[0]
    drawn = node.emit(
        "multinomial",
        node.emit("softmax", x, axis=-1),
        num_samples=int(node.attr("sample_size", 1)),
        replacement=True,
        **_seed(node),
    )
    return node.cast(drawn, dtype_name(node.attr("dtype", 6)))
