"""Give the parameters of a block the types they have in this run, and infer all others again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.build import BlockBuilder
from core.errors import ProgramError
from core.ir import Block, Op, StackType, TensorType, Type
from core.ops.types import joined_type

__all__ = ["bind"]


def bind(block: Block, sizes: Mapping[str, Sequence[int]]) -> Block:
    """`block` with the shapes of the parameters in `sizes` in place of their unknown sizes.

    Raises ProgramError (feed_shape) where a shape contradicts the declaration, or wherever the types inside no longer
    fit, with the place.
    """
    types = []
    for name, type in zip(block.params, block.param_types, strict=True):
        if name in sizes:
            given = tuple(sizes[name])
            assert isinstance(type, TensorType)
            if len(given) != type.rank or any(m not in (-1, n) for m, n in zip(type.shape, given, strict=True)):
                raise ProgramError(f"{name!r} is declared as {type}, but has the shape {list(given)}", "feed_shape")
            type = TensorType(given, type.dtype)
        types.append(type)
    if tuple(types) == block.param_types:
        return block
    return _retyped(block, types)


def _retyped(block: Block, params: Sequence[Type]) -> Block:
    b = BlockBuilder()
    for name, type in zip(block.params, params, strict=True):
        b.param(type, name)
    b.stopped.update(block.stopped)
    for op in block.ops:
        b.append(_inside(op, [b.types.get(n) for n in op.inputs]))
    return replace(b.build(block.results), index=block.index)


def _inside(op: Op, types: list[Any]) -> Op:
    """`op` with its inner blocks retyped for operands of `types`."""
    if op.type == "if_else":
        blocks = {k: _retyped(op.attrs[k], types[1:]) for k in ("true_block", "false_block")}
        return replace(op, attrs={**op.attrs, **blocks})
    if op.type == "call":
        block, gradient = _retyped(op.attrs["block"], types), op.attrs["gradient"]
        if gradient is not None:
            gradient = _retyped(gradient, [*types, *block.result_types, *block.result_types])
        return replace(op, attrs={**op.attrs, "block": block, "gradient": gradient})
    if op.type != "loop":
        return op
    n, m = op.attrs["carried"], op.attrs["captured"]
    params = [t.element if isinstance(t, StackType) and i >= n + m else t for i, t in enumerate(types)]
    while True:  # a carried size that changes from trip to trip stays unknown
        body = _retyped(op.attrs["sub_block"], params)
        joined = [
            joined_type(t, r, "carry_type_changed", f"{name!r} changes its type in the loop")
            for name, t, r in zip(body.params, params, body.result_types[:n], strict=False)
        ]
        if joined == params[:n]:
            return replace(op, attrs={**op.attrs, "sub_block": body})
        params[:n] = joined
