"""Convolution and pooling."""

from __future__ import annotations

import math

import numpy as np

from core.onnx.writing.blocks import OpSite
from core.onnx.writing.graph import Tensor
from core.onnx.writing.registry import Refused, cannot, writes
from core.onnx.writing.rules.indexing import wrapped
from core.ops.common.windows import pads_of, reach, sizes

cannot("the size of each bin depends on the data", "roi_positions")


def _geometry(n, strides, paddings, dilations):
    return (
        sizes(tuple(strides), n, "strides", 1),
        pads_of(tuple(paddings), n),
        sizes(tuple(dilations), n, "dilations", 1),
    )


def _pads(pads):
    return [p[0] for p in pads] + [p[1] for p in pads]


@writes("correlate")
def correlate(w, x, filter, *, strides, paddings, dilations, groups):
    n = x.rank - 2
    stride, pads, dilation = _geometry(n, strides, paddings, dilations)
    how = {"strides": list(stride), "pads": _pads(pads), "dilations": list(dilation), "group": groups}
    if -1 not in filter.shape[2:]:
        how["kernel_shape"] = list(filter.shape[2:])
    return w.node("Conv", x, filter, shape=w.types[0].shape, **how)


@writes("correlate_input_adjoint")
def correlate_input_adjoint(w, ct, filter, like, *, strides, paddings, dilations, groups):
    """A `ConvTranspose`. It gives all positions that the windows cover, of which those inside x are taken."""
    n = ct.rank - 2
    stride, pads, dilation = _geometry(n, strides, paddings, dilations)
    return transposed(w, ct, filter, like, stride, pads, dilation, groups)


def transposed(w: OpSite, ct: Tensor, filter: Tensor, like: Tensor, stride, pads, dilation, groups: int) -> Tensor:
    """A transposed convolution with the spatial sizes of `like`."""
    n = ct.rank - 2
    channels = filter.shape[1] * groups if filter.shape and filter.shape[1] >= 0 else -1
    whole = w.node(
        "ConvTranspose",
        ct,
        filter,
        strides=list(stride),
        dilations=list(dilation),
        group=groups,
        shape=((ct.shape or (-1,))[0], channels, *(-1,) * n),
    )
    starts = [p[0] for p in pads]
    axes = list(range(2, n + 2))
    wanted = [w.size(like, a) for a in axes]
    ends = [w.arith("Add", size, start) for size, start in zip(wanted, starts, strict=True)]
    have = [w.size(whole, a) for a in axes]
    missing = [w.arith("Max", w.arith("Sub", end, size), 0) for end, size in zip(ends, have, strict=True)]
    before = [0] * (n + 2)
    after = [0, 0, *missing]
    grown = w.node("Pad", whole, w.vector([*before, *after]), w.number(0, whole), shape=whole.shape)
    how = (w.ints(starts), w.vector(ends), w.ints(axes))
    return w.node("Slice", grown, *how, shape=w.types[0].shape if w.types[0].shape == like.shape else like.shape)


@writes("correlate_filter_adjoint")
def correlate_filter_adjoint(w, ct, x, like, *, strides, paddings, dilations, groups):
    """A convolution of x by the cotangent, with the batch as channels; strides and dilations change places."""
    n = ct.rank - 2
    stride, pads, dilation = _geometry(n, strides, paddings, dilations)
    batch = w.size(x, 0)
    space, out_space = w.sizes(x)[2:], w.sizes(ct)[2:]
    per = w.arith("Div", w.size(x, 1), groups)
    outs = w.arith("Div", w.size(ct, 1), groups)
    axes = list(range(3, n + 3))
    a = w.reshape(x, [batch, groups, per, *space])
    a = w.reshape(w.transpose(a, [2, 1, 0, *axes]), [per, w.arith("Mul", batch, groups), *space])
    b = w.reshape(ct, [batch, groups, outs, *out_space])
    b = w.reshape(w.transpose(b, [1, 2, 0, *axes]), [w.arith("Mul", outs, groups), batch, *out_space])
    if x.shape[0] == 0:
        return w.zeros_like(like)
    found = w.node(
        "Conv",
        a,
        b,
        strides=list(dilation),
        dilations=list(stride),
        pads=_pads(pads),
        group=groups,
        shape=(-1,) * (n + 2),
    )
    kernel = w.sizes(like)[2:]
    cut = w.node("Slice", found, w.ints([0] * n), w.vector(kernel), w.ints(range(2, n + 2)), shape=(-1,) * (n + 2))
    return w.transpose(cut, [1, 0, *range(2, n + 2)])


def _pool(x, kernel_size, strides, paddings, dilations, ceil_mode):
    """Kernel, strides, dilations, and paddings (before, after) with which no size is rounded up."""
    n = x.rank - 2
    kernel = sizes(tuple(kernel_size), n, "kernel_size", 1)
    stride = sizes(tuple(strides or kernel), n, "strides", 1)
    dilation = sizes(tuple(dilations), n, "dilations", 1)
    pads = list(pads_of(tuple(paddings), n))
    if ceil_mode:
        for i, size in enumerate(x.shape[2:]):
            if size == -1:
                raise Refused("ceil_mode with open sizes of the image")
            (before, _), k, s, d = pads[i], kernel[i], stride[i], dilation[i]
            count = reach(size, k, s, pads[i], d, True)
            pads[i] = (before, max((count - 1) * s + d * (k - 1) + 1 - size - before, 0))
    return kernel, stride, dilation, pads


@writes("max_pool")
def max_pool(w, x, *, kernel_size, strides, paddings, dilations, ceil_mode):
    """A `MaxPool`, whose positions count through the whole array; here they count through one image."""
    kernel, stride, dilation, pads = _pool(x, kernel_size, strides, paddings, dilations, ceil_mode)
    if any(max(p) >= k for p, k in zip(pads, kernel, strict=True)):
        return _max_pool_of_padded(w, x, kernel, stride, dilation, pads)
    out, index = w.nodes(
        "MaxPool",
        x,
        kernel_shape=list(kernel),
        strides=list(stride),
        dilations=list(dilation),
        pads=_pads(pads),
        outputs=[(None, w.types[0].shape), ("int64", w.types[1].shape)],
    )
    return out, w.node("Mod", index, w.scalar(w.product(w.sizes(x)[2:])))


def _max_pool_of_padded(w, x, kernel, stride, dilation, pads):
    """A `MaxPool` of x with a border of -inf: onnxruntime takes no padding as large as the window.

    The positions count through the padded image, so each coordinate moves by the border before its axis.
    """
    border = w.ints([0, 0, *(p[0] for p in pads), 0, 0, *(p[1] for p in pads)])
    padded = w.node("Pad", x, border, w.number(-math.inf, x), shape=(*x.shape[:2], *(-1 for _ in pads)))
    how = {"kernel_shape": list(kernel), "strides": list(stride), "dilations": list(dilation)}
    shapes = [(None, w.types[0].shape), ("int64", w.types[1].shape)]
    out, index = w.nodes("MaxPool", padded, outputs=shapes, **how)
    total, step = None, 1
    for axis, (before, after) in reversed(list(enumerate(pads, 2))):
        size = w.size(x, axis)
        grown = w.scalar(w.arith("Add", size, before + after))
        place = w.sub(w.node("Mod", index, grown), w.const(before, "int64"))
        index = w.div(index, grown)
        part = place if step == 1 else w.mul(place, w.scalar(step))
        total = part if total is None else w.add(total, part)
        step = w.arith("Mul", step, size)
    return out, total


def _ones(w, x, kernel):
    return w.const(np.ones((1, 1, *kernel)), x.dtype)


@writes("window_sum")
def window_sum(w, x, *, kernel_size, strides, paddings, dilations, ceil_mode):
    """A `Conv` with a filter of ones, with the channels as a batch."""
    v = w.wide(x)
    kernel, stride, dilation, pads = _pool(v, kernel_size, strides, paddings, dilations, ceil_mode)
    n, c, *space = w.sizes(v)
    flat = w.reshape(v, [w.arith("Mul", n, c), 1, *space])
    filter = _ones(w, v, kernel)
    how = {"strides": list(stride), "pads": _pads(pads), "dilations": list(dilation)}
    out = w.node("Conv", flat, filter, shape=(-1, 1, *w.types[0].shape[2:]), **how)
    static = [m if m >= 0 else w.size(out, i) for i, m in enumerate(w.types[0].shape[2:], 2)]
    return w.cast(w.reshape(out, [n, c, *static]), x.dtype)


@writes("window_sum_adjoint")
def window_sum_adjoint(w, ct, like, *, kernel_size, strides, paddings, dilations, ceil_mode):
    """A `ConvTranspose` with a filter of ones."""
    v = w.wide(ct)
    kernel, stride, dilation, pads = _pool(like, kernel_size, strides, paddings, dilations, ceil_mode)
    n, c, *space = w.sizes(v)
    merged = w.arith("Mul", n, c)
    flat = w.reshape(v, [merged, 1, *space])
    static = like.shape
    image = Tensor(like.name, v.dtype, (-1, 1, *static[2:]))
    found = transposed(w, flat, _ones(w, v, kernel), image, stride, pads, dilation, 1)
    return w.cast(w.reshape(found, w.sizes(like)), ct.dtype)


@writes("unpool_like")
def unpool_like(w, x, index, like):
    """Additions to a vector of zeros, by the position in the whole array."""
    n, c, *space = w.sizes(like)
    images, count = w.product([n, c]), w.product(space)
    flat = w.reshape(wrapped(w, index, count), [images, w.product(w.sizes(index)[2:])])
    start = w.mul(w.unsqueeze(w.arange(images), [1]), w.scalar(count))
    at = w.flat(w.add(flat, start))
    out = w.scatter_add(w.arith("Mul", images, count), at, w.flat(x))
    return w.reshape(out, w.sizes(like))


@writes("pick")
def pick(w, x, index):
    n, c, *space = w.sizes(x)
    count = w.product(space)
    flat = w.reshape(x, [n, c, count])
    at = w.reshape(wrapped(w, index, count), [n, c, w.product(w.sizes(index)[2:])])
    found = w.node("GatherElements", flat, at, axis=2, shape=at.shape)
    return w.reshape_like(found, index)
