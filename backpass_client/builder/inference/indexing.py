"""Types of ops that look up, choose and write parts of arrays."""

from __future__ import annotations

from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import as_axis, changed, integers, without
from backpass_client.builder.types import InvalidOp, NotKnown, Size, Type

__all__: list[str] = []


@rule("slice")
def slice_(x: Type, axes: list[int], starts: list[int], ends: list[int], steps: list[int] | None, **attrs: Any) -> Type:
    return Type(x.kind, _sliced(x, axes, starts, ends, steps or [1] * len(axes)))


@rule("strided_slice")
def strided_slice(
    x: Type, axes: list[int], starts: list[int], ends: list[int], strides: list[int], **attrs: Any
) -> Type:
    return Type(x.kind, _sliced(x, axes, starts, ends, strides))


def _sliced(x: Type, axes: list[int], starts: list[int], ends: list[int], steps: list[int]) -> tuple[Size, ...]:
    if not len(axes) == len(starts) == len(ends) == len(steps):
        raise InvalidOp("axes, starts, ends and steps must have the same length")
    sizes = list(x.dims)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise InvalidOp("a step must not be 0")
        at = as_axis(axis, x.rank)
        n = sizes[at]
        if isinstance(n, int):
            sizes[at] = _length(n, start, end, step)
        elif (start, step) != (0, 1) or end < 2**31 - 1:
            sizes[at] = 1 if step == 1 and (start, end) == (-1, 2**31 - 1) else None
    return tuple(sizes)


def _length(n: int, start: int, end: int, step: int) -> int:
    stop = None if step < 0 and end < -n else end
    return len(range(n)[start:stop:step])


@rule("slice_into", "scatter_add_like")
def of_last(*types: Type, **attrs: Any) -> Type:
    return Type(types[0].kind, types[-1].dims)


@rule("gather", "index_select")
def gather(x: Type, index: Type, axis: int, **attrs: Any) -> Type:
    integers(index)
    at = as_axis(axis, x.rank)
    return Type(x.kind, (*x.dims[:at], *index.dims, *x.dims[at + 1 :]))


@rule("gather_nd")
def gather_nd(x: Type, index: Type, batch_dims: int, **attrs: Any) -> Type:
    integers(index)
    if not index.dims or not isinstance(index.dims[-1], int) or batch_dims + index.dims[-1] > x.rank:
        raise InvalidOp("the last axis of index holds one position for each axis of x")
    return Type(x.kind, (*index.dims[:-1], *x.dims[batch_dims + index.dims[-1] :]))


@rule("take_along_axis")
def take_along_axis(x: Type, index: Type, axis: int, **attrs: Any) -> Type:
    integers(index)
    if x.rank != index.rank:
        raise InvalidOp("x and index must have the same rank")
    at = as_axis(axis, x.rank)
    return Type(x.kind, tuple(index.dims[i] if i == at else n for i, n in enumerate(x.dims)))


@rule("index_sample")
def index_sample(x: Type, index: Type, **attrs: Any) -> Type:
    integers(index)
    return Type(x.kind, index.dims)


@rule("scatter", "scatter_nd_add", "put_along_axis", "index_add", "index_put", "masked_fill", "wrapped_index")
def written_over(x: Type, *others: Any, **attrs: Any) -> Type:
    return x


@rule("scatter_nd")
def scatter_nd(index: Type, updates: Type, shape: list[int], **attrs: Any) -> Type:
    integers(index)
    return Type(updates.kind, tuple(None if n == -1 else n for n in shape))


@rule("embedding")
def embedding(weight: Type, ids: Type, **attrs: Any) -> Type:
    integers(ids)
    if weight.rank < 1:
        raise InvalidOp("the table needs at least one axis")
    return Type(weight.kind, (*ids.dims, *weight.dims[1:]))


@rule("embedding_bag")
def embedding_bag(weight: Type, ids: Type, offsets: Type | None, sample_weight: Type | None, **attrs: Any) -> Type:
    integers(ids)
    if weight.rank != 2 or ids.rank not in (1, 2) or (ids.rank == 1) != (offsets is not None):
        raise InvalidOp("needs a table [rows, features], and ids [bags, n] or ids [n] and offsets")
    return Type(weight.kind, ((ids if offsets is None else offsets).dims[0], weight.dims[1]))


@rule("is_padding")
def is_padding(ids: Type, like: Type, **attrs: Any) -> Type:
    integers(ids)
    return Type("bool", ids.dims)


@rule("positions_along")
def positions_along(index: Type, x: Type, axis: int, **attrs: Any) -> Type:
    integers(index)
    if index.rank != x.rank:
        raise InvalidOp("x and index must have the same rank")
    as_axis(axis, x.rank)
    return Type("int64", index.dims)


@rule("lookup_table")
def lookup_table(w: Type, ids: Type, **attrs: Any) -> Type:
    integers(ids)
    if ids.rank > 1 and ids.dims[-1] is None:
        raise NotKnown
    rows = ids.dims[:-1] if ids.rank > 1 and ids.dims[-1] == 1 else ids.dims
    return Type(w.kind, (*rows, *w.dims[1:]))


@rule("one_hot")
def one_hot(x: Type, depth: int, dtype: str, **attrs: Any) -> Type:
    integers(x)
    return Type(dtype, (*x.dims, depth))


@rule("topk")
def topk(x: Type, k: int, axis: int, **attrs: Any) -> tuple[Type, Type]:
    at = as_axis(axis, x.rank)
    n = x.dims[at]
    if isinstance(n, int) and k > n:
        raise InvalidOp(f"cannot take {k} of {n} elements")
    sizes = tuple(k if i == at else n for i, n in enumerate(x.dims))
    return Type(x.kind, sizes), Type("int64", sizes)


@rule("kthvalue", "mode")
def chosen(x: Type, axis: int, keepdims: bool, **attrs: Any) -> tuple[Type, Type]:
    sizes = without(x.dims, (as_axis(axis, x.rank),), keepdims)
    return Type(x.kind, sizes), Type("int64", sizes)


@rule("median")
def median(x: Type, axis: int, keepdims: bool, **attrs: Any) -> Type:
    return Type(x.kind, without(x.dims, (as_axis(axis, x.rank),), keepdims))


@rule("masked_select")
def masked_select(x: Type, mask: Type, **attrs: Any) -> Type:
    return Type(x.kind, (None,))


@rule("nonzero")
def nonzero(x: Type, **attrs: Any) -> Type:
    return Type("int64", (None, x.rank))


@rule("unique")
def unique(x: Type, axis: int | None, **attrs: Any) -> tuple[Type, ...]:
    positions = Type("int64", (None,))
    if axis is None:
        return Type(x.kind, (None,)), Type("int64", x.dims), positions, positions
    at = as_axis(axis, x.rank)
    out = Type(x.kind, tuple(None if i == at else n for i, n in enumerate(x.dims)))
    return out, Type("int64", (x.dims[at],)), positions, positions


@rule("scatter_nd_update", "masked_scatter", "reverse_sequence")
def rearranged(x: Type, *others: Type, **attrs: Any) -> Type:
    return x


@rule("compress")
def compress(x: Type, condition: Type, axis: int | None, **attrs: Any) -> Type:
    if axis is None:
        return Type(x.kind, (None,))
    at = as_axis(axis, x.rank)
    return Type(x.kind, tuple(None if i == at else n for i, n in enumerate(x.dims)))


@rule("searchsorted")
def searchsorted(sorted_sequence: Type, values: Type, **attrs: Any) -> Type:
    return Type("int64", values.dims)


@rule("split_by_mask")
def split_by_mask(x: Type, mask: Type, **attrs: Any) -> tuple[Type, Type]:
    part = Type(x.kind, (None, *x.dims[1:]))
    return part, part


@rule("merge_by_mask")
def merge_by_mask(mask: Type, true: Type, false: Type, **attrs: Any) -> Type:
    return Type(true.kind, (*mask.dims[:1], *true.dims[1:]))


@rule("is_last")
def is_last(index: Type, **attrs: Any) -> Type:
    return Type("bool", index.dims)


@rule("space_to_depth", "pixel_unshuffle")
def space_to_depth(x: Type, block_size: int = 0, factor: int = 0, **attrs: Any) -> Type:
    k = block_size or factor
    n, c, h, w = x.dims
    return Type(
        x.kind,
        (n, changed(c, lambda s: s * k * k), changed(h, lambda s: s // k), changed(w, lambda s: s // k)),
    )


@rule("depth_to_space", "pixel_shuffle")
def depth_to_space(x: Type, block_size: int = 0, factor: int = 0, **attrs: Any) -> Type:
    k = block_size or factor
    n, c, h, w = x.dims
    return Type(
        x.kind,
        (n, changed(c, lambda s: s // (k * k)), changed(h, lambda s: s * k), changed(w, lambda s: s * k)),
    )
