"""Types of ops that make, join, cut and rearrange arrays."""

from __future__ import annotations

import math
from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import (
    as_axes,
    as_axis,
    broadcast_sizes,
    changed,
    product,
    same_dtype,
    same_size,
    total,
)
from backpass_client.builder.types import InvalidOp, NotKnown, Size, Type, check_fits

__all__: list[str] = []


@rule("fill_constant", "assign_value")
def filled(
    shape: list[int], dtype: str, values: list[Any] | None = None, value: float | str = 0.0, **attrs: Any
) -> Type:
    if values is not None and len(values) != math.prod(shape):
        raise InvalidOp(f"{len(values)} values do not fill the shape {shape}")
    check_fits(float(value) if values is None else values, dtype)
    return Type(dtype, tuple(shape))


@rule("full_like")
def full_like(x: Type, value: float | str, **attrs: Any) -> Type:
    if x.dtype is not None:
        check_fits(float(value), x.dtype)
    return x


@rule("zeros_like", "ones_like", "fill_zeros_like", "shard_index")
def like(x: Type, **attrs: Any) -> Type:
    return x


@rule("eye")
def eye(num_rows: int, num_columns: int | None, dtype: str, **attrs: Any) -> Type:
    return Type(dtype, (num_rows, num_rows if num_columns is None else num_columns))


@rule("eye_like")
def eye_like(x: Type, dtype: str | None, **attrs: Any) -> Type:
    return Type(dtype or x.kind, x.dims)


@rule("dynamic_fill")
def dynamic_fill(sizes: Type, shape: list[int], dtype: str, **attrs: Any) -> Type:
    return Type(dtype, tuple(None if n == -1 else n for n in shape))


@rule("dynamic_reshape", "dynamic_expand")
def dynamic_shape(x: Type, sizes: Type, shape: list[int], **attrs: Any) -> Type:
    return Type(x.kind, tuple(None if n == -1 else n for n in shape))


@rule("dynamic_slice")
def dynamic_slice(x: Type, *bounds: Type, shape: list[int], **attrs: Any) -> Type:
    return Type(x.kind, tuple(None if n == -1 else n for n in shape))


@rule("range")
def range_(start: float, end: float, step: float, dtype: str, **attrs: Any) -> Type:
    return Type(dtype, (max(0, math.ceil((end - start) / step)),))


@rule("linspace")
def linspace(num: int, dtype: str, **attrs: Any) -> Type:
    return Type(dtype, (num,))


@rule("shape")
def shape(x: Type, **attrs: Any) -> Type:
    return Type("int64", (x.rank,))


@rule("size", "numel", "rank")
def count(x: Type, **attrs: Any) -> Type:
    return Type("int64", ())


@rule("fill_constant_batch_size_like")
def batch_size_like(x: Type, shape: list[int], dtype: str, input_dim: int, output_dim: int, **attrs: Any) -> Type:
    sizes: list[Size] = list(shape)
    sizes[as_axis(output_dim, len(sizes))] = x.dims[as_axis(input_dim, x.rank)]
    return Type(dtype, tuple(sizes))


@rule("reshape")
def reshape(x: Type, shape: list[int], **attrs: Any) -> Type:
    return Type(x.kind, _reshaped(x.dims, shape))


@rule("unflatten")
def unflatten(x: Type, axis: int, sizes: list[int], **attrs: Any) -> Type:
    at = as_axis(axis, x.rank)
    return Type(x.kind, (*x.dims[:at], *_reshaped(x.dims[at : at + 1], sizes), *x.dims[at + 1 :]))


def _reshaped(have: tuple[Size, ...], wanted: list[int]) -> tuple[Size, ...]:
    """The shape `wanted`, one of whose sizes may be -1, for the elements of `have`."""
    if wanted.count(-1) > 1:
        raise InvalidOp(f"at most one size may be -1, not those of {wanted}")
    rest = math.prod(n for n in wanted if n != -1)
    elements = product(have)
    if -1 not in wanted:
        if isinstance(elements, int) and elements != rest:
            raise InvalidOp(f"cannot give {elements} elements the shape {wanted}")
        return tuple(wanted)
    if isinstance(elements, int):
        if rest == 0 or elements % rest:
            raise InvalidOp(f"cannot give {elements} elements the shape {wanted}")
        return tuple(elements // rest if n == -1 else n for n in wanted)
    names = [n for n in have if not isinstance(n, int)]
    numbers = math.prod(n for n in have if isinstance(n, int))
    found = names[0] if len(names) == 1 and numbers == rest else None
    return tuple(found if n == -1 else n for n in wanted)


@rule("merge_axes")
def merge_axes(x: Type, start: int, end: int, **attrs: Any) -> Type:
    if not 0 <= start < end <= x.rank:
        raise InvalidOp(f"axes {start} to {end} are no range of axes of rank {x.rank}")
    return Type(x.kind, (*x.dims[:start], product(x.dims[start:end]), *x.dims[end:]))


@rule("flatten")
def flatten(x: Type, axis: int, **attrs: Any) -> Type:
    if not -x.rank <= axis <= x.rank:
        raise InvalidOp(f"axis {axis} is out of range for rank {x.rank}")
    at = axis % x.rank if axis < 0 else axis
    return Type(x.kind, (product(x.dims[:at]), product(x.dims[at:])))


@rule("flatten_contiguous_range")
def flatten_range(x: Type, start_axis: int, stop_axis: int, **attrs: Any) -> Type:
    if not x.rank:
        return Type(x.kind, (1,))
    first, last = as_axis(start_axis, x.rank), as_axis(stop_axis, x.rank)
    if first > last:
        raise InvalidOp(f"axes {start_axis} to {stop_axis} are no range")
    return Type(x.kind, (*x.dims[:first], product(x.dims[first : last + 1]), *x.dims[last + 1 :]))


@rule("reshape_as", "expand_as", "sum_to_like")
def shaped_like(x: Type, like: Type, **attrs: Any) -> Type:
    return Type(x.kind, like.dims)


@rule("unsqueeze")
def unsqueeze(x: Type, axes: list[int], **attrs: Any) -> Type:
    rank = x.rank + len(axes)
    new, old = as_axes(axes, rank), iter(x.dims)
    return Type(x.kind, tuple(1 if i in new else next(old) for i in range(rank)))


@rule("squeeze")
def squeeze(x: Type, axes: list[int] | None, **attrs: Any) -> Type:
    if axes is None:
        if not all(isinstance(n, int) for n in x.dims):
            raise NotKnown
        return Type(x.kind, tuple(n for n in x.dims if n != 1))
    gone = as_axes(axes, x.rank)
    for axis in gone:
        same_size(x.dims[axis], 1, f"axis {axis} must have size 1")
    return Type(x.kind, tuple(n for i, n in enumerate(x.dims) if i not in gone))


@rule("transpose")
def transpose(x: Type, axes: list[int] | None, **attrs: Any) -> Type:
    order = list(range(x.rank))[::-1] if axes is None else [as_axis(axis, x.rank) for axis in axes]
    if sorted(order) != list(range(x.rank)):
        raise InvalidOp(f"axes {axes} are no order of the {x.rank} axes of x: name each axis once")
    return Type(x.kind, tuple(x.dims[i] for i in order))


@rule("expand", "broadcast_to")
def expand(x: Type, shape: list[int], **attrs: Any) -> Type:
    extra = len(shape) - x.rank
    if extra < 0:
        raise InvalidOp(f"cannot expand to the lower rank of {shape}")
    sizes: list[Size] = list(shape)
    for i, n in enumerate(x.dims, start=extra):
        if shape[i] == -1:
            sizes[i] = n
        elif n not in (1, None, shape[i]):
            raise InvalidOp(f"cannot expand size {n} to {shape[i]}")
    if -1 in sizes:
        raise InvalidOp(f"a new axis needs a size, not -1 in {shape}")
    return Type(x.kind, tuple(sizes))


@rule("concat")
def concat(x: list[Type], axis: int, **attrs: Any) -> Type:
    dtype = same_dtype(*x)
    rank = x[0].rank
    at = as_axis(axis, rank)
    sizes = list(x[0].dims)
    for each in x[1:]:
        if each.rank != rank:
            raise InvalidOp("arrays of different rank cannot be concatenated")
        for i, n in enumerate(each.dims):
            if i != at:
                sizes[i] = same_size(sizes[i], n, f"sizes of axis {i} differ")
    sizes[at] = total(each.dims[at] for each in x)
    return Type(dtype, tuple(sizes))


@rule("stack")
def stack(x: list[Type], axis: int, **attrs: Any) -> Type:
    dtype = same_dtype(*x)
    sizes = list(x[0].dims)
    for each in x[1:]:
        if each.rank != len(sizes):
            raise InvalidOp("arrays of different rank cannot be stacked")
        sizes = [same_size(m, n, "sizes differ") for m, n in zip(sizes, each.dims, strict=True)]
    sizes.insert(as_axis(axis, len(sizes) + 1), len(x))
    return Type(dtype, tuple(sizes))


@rule("unstack")
def unstack(x: Type, axis: int, **attrs: Any) -> list[Type]:
    at = as_axis(axis, x.rank)
    n = x.dims[at]
    if not isinstance(n, int):
        raise NotKnown
    return [Type(x.kind, (*x.dims[:at], *x.dims[at + 1 :]))] * n


@rule("split")
def split(x: Type, num: int, sections: list[int] | None, axis: int, **attrs: Any) -> list[Type]:
    at = as_axis(axis, x.rank)
    n = x.dims[at]
    parts: list[Size]
    if sections:
        parts = list(sections)
        if isinstance(n, int) and sum(sections) != n:
            raise InvalidOp(f"sections {sections} do not add up to {n}")
    elif num:
        if isinstance(n, int) and n % num:
            raise InvalidOp(f"axis {axis} of size {n} cannot be divided into {num} equal parts")
        parts = [changed(n, lambda size: size // num)] * num
    else:
        raise InvalidOp("needs num or sections")
    return [Type(x.kind, (*x.dims[:at], part, *x.dims[at + 1 :])) for part in parts]


@rule("split_like")
def split_like(x: Type, like: list[Type], axis: int, **attrs: Any) -> list[Type]:
    at = as_axis(axis, x.rank)
    return [Type(x.kind, (*x.dims[:at], each.dims[at], *x.dims[at + 1 :])) for each in like]


@rule("tile")
def tile(x: Type, repeats: list[int], **attrs: Any) -> Type:
    rank = max(len(repeats), x.rank)
    sizes = (*(1,) * (rank - x.rank), *x.dims)
    times = (*(1,) * (rank - len(repeats)), *repeats)
    return Type(x.kind, tuple(product((n, k)) for n, k in zip(sizes, times, strict=True)))


@rule("repeat")
def repeat(x: Type, counts: Type | None, repeats: int, axis: int, **attrs: Any) -> Type:
    at = as_axis(axis, x.rank)
    n = product((x.dims[at], repeats)) if counts is None else None
    return Type(x.kind, (*x.dims[:at], n, *x.dims[at + 1 :]))


@rule("flip", "roll")
def same_axes(x: Type, axes: list[int], **attrs: Any) -> Type:
    for axis in axes:
        as_axis(axis, x.rank)
    return x


@rule("tril", "triu")
def triangle(x: Type, **attrs: Any) -> Type:
    if x.rank < 2:
        raise InvalidOp("needs at least two axes")
    return x


@rule("triangle_mask_like", "diagonal_mask_like")
def mask_like(x: Type, **attrs: Any) -> Type:
    return Type("bool", x.dims)


@rule("pad", "pad_constant")
def pad(x: Type, paddings: list[int], mode: str = "constant", **attrs: Any) -> Type:
    if len(paddings) != 2 * x.rank:
        raise InvalidOp(f"paddings must have {2 * x.rank} numbers, two for each axis, not {len(paddings)}")
    pairs = zip(paddings[::2], paddings[1::2], strict=True)
    sizes = [
        n if before == after == 0 else changed(n, lambda size, added: size + added, before + after)
        for n, (before, after) in zip(x.dims, pairs, strict=True)
    ]
    return Type(x.kind, tuple(sizes))


@rule("crop")
def crop(x: Type, offsets: list[int], shape: list[int], **attrs: Any) -> Type:
    sizes = [
        size if size != -1 else n if first == 0 else changed(n, lambda size, first: size - first, first)
        for n, first, size in zip(x.dims, offsets, shape, strict=True)
    ]
    return Type(x.kind, tuple(sizes))


@rule("meshgrid")
def meshgrid(x: list[Type], **attrs: Any) -> list[Type]:
    sizes = tuple(each.dims[0] for each in x)
    return [Type(each.kind, sizes) for each in x]


@rule("diagonal")
def diagonal(x: Type, offset: int, axis1: int, axis2: int, **attrs: Any) -> Type:
    first, second = as_axis(axis1, x.rank), as_axis(axis2, x.rank)
    rest = tuple(n for i, n in enumerate(x.dims) if i not in (first, second))
    rows, columns = x.dims[first], x.dims[second]
    n: Size = None
    if isinstance(rows, int) and isinstance(columns, int):
        n = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    elif rows == columns and offset == 0:
        n = rows
    return Type(x.kind, (*rest, n))


@rule("diag")
def diag(x: Type, offset: int, **attrs: Any) -> Type:
    if x.rank == 2:
        return diagonal(x, offset, 0, 1)
    n = x.dims[0] if not offset else changed(x.dims[0], lambda size: size + abs(offset))
    return Type(x.kind, (n, n))


@rule("dynamic_range")
def dynamic_range(start: Type, end: Type, step: Type, **attrs: Any) -> Type:
    if any(each.shape not in (None, ()) for each in (start, end, step)):
        raise InvalidOp("a range needs three scalars")
    return Type(same_dtype(start, end, step), (None,))


@rule("sum_to")
def sum_to(x: Type, shape: list[int], **attrs: Any) -> Type:
    if -1 in shape:
        raise NotKnown
    broadcast_sizes(x.dims, shape)
    return Type(x.kind, tuple(shape))


@rule("assert", "check_shape", "print")
def passed(x: Type, *others: Type, **attrs: Any) -> Type:
    return x


@rule("gradients")
def gradients(targets: list[Type], inputs: list[Type], **attrs: Any) -> list[Type]:
    return list(inputs)
