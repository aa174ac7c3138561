"""Bind the open sizes of a block's parameters to those of this run, and infer all other types again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import Block, Op, StackType, TensorType, Type, inner_blocks
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.ir.registry import roles_of
from core.ops.common.types import joined_type, widened_sizes

__all__ = ["bind"]


def bind(block: Block, sizes: Mapping[str, Sequence[int]]) -> Block:
    """`block` with the shapes in `sizes` for its parameters, and all other types inferred again.

    sizes: parameter -> shape.
    Raises ProgramError: feed_shape if a shape contradicts the declaration, or the type error of an inner op, with its
    place.
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
    return _retyped(block, types, {})


Loops = dict[int, tuple[Op, Sequence[Type], Sequence[Type]]]
"""The loops that have been retyped, by id: the loop, and the types of its parameters before the loop and in each trip.
"""


def _retyped(block: Block, params: Sequence[Type], loops: Loops) -> Block:
    b = BlockBuilder()
    for name, type in zip(block.params, params, strict=True):
        b.param(type, name)
    b.stopped.update(block.stopped)
    lengths: dict[str, int] = {}
    for op in block.ops:
        b.append(_counted(_inside(op, [b.types.get(n) for n in op.inputs], loops), b.types, lengths))
    return replace(b.build(block.results), index=block.index)


def _counted(op: Op, types: Mapping[str, Type], lengths: dict[str, int]) -> Op:
    """`op`; if it joins the elements of an array whose number or sizes are bound now, with these.

    types:   of the operands.
    lengths: stack -> its number of elements, where it is known; the results of `op` are added.
    """
    if op.type == "array_unstack":
        x = types[op.inputs[0]]
        if isinstance(x, TensorType) and x.shape[0] != -1:
            lengths[op.outputs[0]] = x.shape[0]
    elif op.type == "loop" and not op.attrs["condition"]:
        carried = op.attrs["carried"]
        read = [lengths[name] for name in op.inputs[carried + op.attrs["captured"] :] if name in lengths]
        if read:  # a trip for each element, and one result of each trip
            lengths.update(dict.fromkeys(op.outputs[carried:], read[0]))
    elif op.type == "array_join":
        array, shape, count = types[op.inputs[0]], op.attrs["shape"], op.attrs["count"]
        element = array.element if isinstance(array, StackType) else None
        if isinstance(element, TensorType) and element.rank == len(shape):
            shape = tuple(m if n == -1 else n for m, n in zip(element.shape, shape, strict=True))
        if count == -1:
            count = lengths.get(op.inputs[0], -1)
        return replace(op, attrs={**op.attrs, "shape": shape, "count": count})
    return op


def _inside(op: Op, types: list[Any], loops: Loops) -> Op:
    """`op` with its inner blocks retyped for operands of `types`.

    An outer loop retypes its body again with wider types. A loop inside then begins with the types that it ended with
    the last time, which are part of the answer: else each level would double the work for the levels inside.
    """
    if op.type == "call":
        block, gradient = _retyped(op.attrs["block"], types, loops), op.attrs["gradient"]
        if gradient is not None:
            gradient = _retyped(gradient, [*types, *block.result_types, *block.result_types], loops)
        return replace(op, attrs={**op.attrs, "block": block, "gradient": gradient})
    roles = roles_of(op)
    if roles is None:
        return op
    params = roles.param_types(types)
    n = len(roles.carried)
    given = list(params)
    if (last := loops.get(id(op))) is not None and widened_sizes(last[1], given):
        params[:n] = [joined_type(a, b, "", "") for a, b in zip(params[:n], last[2][:n], strict=True)]
    while True:  # until the types of the carried values are a fixed point: a size that changes in the loop stays open
        blocks = {name: _retyped(inner, params, loops) for name, inner in inner_blocks(op)}
        joined = [
            joined_type(t, r, "carry_type_changed", f"{name!r} changes its type in the loop")
            for body in blocks.values()
            for name, t, r in zip(body.params[:n], params, body.result_types[:n], strict=False)
        ]
        if joined == params[:n]:
            loops[id(op)] = op, given, params
            return replace(op, attrs={**op.attrs, **blocks})
        params[:n] = joined
