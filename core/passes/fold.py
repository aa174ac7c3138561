"""Constant folding: compute constants at compile time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.ir import HOLE, Block, Op, TensorType, with_inner
from core.ir.errors import ExecutionError
from core.ir.registry import lookup

__all__ = ["fold_constants"]

_TO_STATIC = {
    "sum_to_like": "sum_to",
    "expand_as": "expand",
    "reshape_as": "reshape",
}


def fold_constants(block: Block) -> Block:
    """Replace ops with a constant result by `fill_constant`, and operands that only give a shape by static shapes.

    Only uniform arrays are folded: in the program they are one number, whatever their size.
    """
    values: dict[str, float] = {}
    ops = []
    for op in block.ops:
        op = _folded(_static(op, block), block, values)
        if op.type == "fill_constant":
            values[op.outputs[0]] = op.attrs["value"]
        ops.append(op)
    return replace(block, ops=tuple(ops))


def _static(op: Op, block: Block) -> Op:
    """The form of `op` that takes a static shape as an attribute instead of an array of that shape.

    A check of a shape that is static becomes an `assign`.
    """
    if op.type == "check_shape" and all(n == HOLE or block.types[n].is_static for n in op.inputs):
        assert block.types[op.inputs[0]] == block.types[op.outputs[0]]
        return replace(op, type="assign", inputs=op.inputs[:1], attrs={})
    if op.type in _TO_STATIC:
        like = block.types[op.inputs[1]]
        if isinstance(like, TensorType) and like.is_static:
            spec = lookup(_TO_STATIC[op.type])
            return replace(op, type=spec.name, inputs=op.inputs[:1], attrs=spec.complete({"shape": like.shape}))
    if op.type in ("fill_zeros_like", "full_like"):
        like = block.types[op.inputs[0]]
        if isinstance(like, TensorType) and like.is_static:
            attrs = {"shape": like.shape, "value": op.attrs.get("value", 0.0), "dtype": like.dtype}
            return replace(op, type="fill_constant", inputs=(), attrs=lookup("fill_constant").complete(attrs))
    return op


def _folded(op: Op, block: Block, values: dict[str, float]) -> Op:
    op = with_inner(op, fold_constants)
    if not all(n in values for n in op.inputs):
        return op
    spec = lookup(op.type)
    shape_only = op.type in ("expand", "reshape")
    if not op.inputs or not (spec.elementwise or shape_only):
        return op
    out = block.types[op.outputs[0]]
    if not isinstance(out, TensorType) or not out.is_static or out.dtype == "bfloat16":
        return op
    if shape_only:
        value = values[op.inputs[0]]
    else:
        dtypes = [t.dtype for n in op.inputs if isinstance(t := block.types[n], TensorType)]
        arrays = [np.full((1,), values[n], dtype=d) for n, d in zip(op.inputs, dtypes, strict=True)]
        try:
            with np.errstate(all="ignore"):
                value = float(spec.body(np, *arrays, **op.attrs)[0])
        except ExecutionError:  # an error of the run, such as a division by zero, if this op runs at all
            return op
    if not np.isfinite(value) or abs(value) > 2**53 or (np.signbit(value) and value == 0):
        return op
    constant = {"shape": out.shape, "value": value, "dtype": out.dtype}
    return replace(op, type="fill_constant", inputs=(), attrs=lookup("fill_constant").complete(constant))
