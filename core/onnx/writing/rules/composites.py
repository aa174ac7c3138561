"""Composites that ONNX has an operator for, so that readers of a model find them by name.

Only programs without a backward pass keep composites: a backward pass reads values inside them.
"""

from __future__ import annotations

from core.onnx.writing.registry import writes
from core.ops.common.windows import pads_of, sizes

NATIVE = ("float16", "float32")
"""Dtypes that onnxruntime computes all operators of this file with."""


def _same(operator: str, **fixed: float):
    """The rule of an elementwise op; its attributes have the names of the operator's."""

    def rule(w, x, **attrs):
        if x.dtype not in NATIVE:
            return w.expanded(x)
        return w.node(operator, x, shape=x.shape, **fixed, **attrs)

    return rule


writes("elu")(_same("Elu"))
writes("leaky_relu")(_same("LeakyRelu"))
writes("mish")(_same("Mish"))
writes("softsign")(_same("Softsign"))


@writes("hard_sigmoid")
def hard_sigmoid(w, x, *, slope, offset):
    if x.dtype not in NATIVE:
        return w.expanded(x)
    return w.node("HardSigmoid", x, alpha=slope, beta=offset, shape=x.shape)


@writes("hard_swish")
def hard_swish(w, x, *, threshold, scale, offset):
    if x.dtype not in NATIVE or (threshold, scale, offset) != (6.0, 6.0, 3.0):
        return w.expanded(x)
    return w.node("HardSwish", x, shape=x.shape)


@writes("gelu")
def gelu(w, x, *, approximate):
    if x.dtype not in NATIVE:
        return w.expanded(x)
    return w.node("Gelu", x, approximate="tanh" if approximate else "none", shape=x.shape)


@writes("softmax")
def softmax(w, x, *, axis):
    return _along(w, "Softmax", x, axis)


@writes("log_softmax")
def log_softmax(w, x, *, axis):
    return _along(w, "LogSoftmax", x, axis)


def _along(w, operator, x, axis):
    if x.shape[axis] == 0:
        return x
    v = w.wide(x)
    return w.cast(w.node(operator, v, axis=axis % x.rank), x.dtype)


@writes("layer_norm")
def layer_norm(w, x, scale=None, bias=None, *, begin_norm_axis, epsilon):
    begin = begin_norm_axis % x.rank if x.rank else 0
    shape = x.shape[begin:]
    fits = scale is not None and scale.shape == shape and (bias is None or bias.shape == shape)
    if not fits or -1 in shape or 0 in x.shape or x.dtype not in ("float32", "float64"):
        return w.expanded(x, scale, bias)
    return w.node("LayerNormalization", x, scale, bias, axis=begin, epsilon=epsilon)


@writes("batch_norm")
def batch_norm(w, x, scale, bias, mean, variance, *, is_test, use_global_stats, data_layout, epsilon, momentum):
    """A `BatchNormalization` with the running statistics, which stay as they are; in training, its parts."""
    tested = is_test or use_global_stats
    if not tested or data_layout != "NCHW" or x.rank < 2 or x.dtype not in ("float32", "float64"):
        return w.expanded(x, scale, bias, mean, variance)
    given = (x, scale, bias, mean, variance)
    if any(v.dtype != x.dtype or v.rank != 1 for v in given[1:]) or 0 in x.shape:
        return w.expanded(*given)
    return w.node("BatchNormalization", *given, epsilon=epsilon, shape=x.shape), mean, variance


@writes("conv1d", "conv2d", "conv3d")
def convolution(w, x, filter, bias=None, *, padding, data_format, strides, paddings, dilations, groups):
    """A `Conv` with its bias, if the channels are axis 1."""
    n = x.rank - 2
    if data_format[1] != "C" or padding == "same" or x.dtype not in NATIVE or 0 in x.shape:
        return w.expanded(x, filter, bias)
    pads = pads_of(tuple(paddings) if padding == "explicit" else (0,), n)
    return w.node(
        "Conv",
        x,
        filter,
        bias,
        strides=list(sizes(tuple(strides), n, "strides", 1)),
        dilations=list(sizes(tuple(dilations), n, "dilations", 1)),
        pads=[p[0] for p in pads] + [p[1] for p in pads],
        group=groups,
        shape=w.types[0].shape,
    )


@writes("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(w, x, *, kernel_size, strides, paddings, dilations, ceil_mode, exclusive):
    n = x.rank - 2
    if ceil_mode or set(dilations) != {1} or x.dtype not in NATIVE or 0 in x.shape:
        return w.expanded(x)
    kernel = sizes(tuple(kernel_size), n, "kernel_size", 1)
    pads = pads_of(tuple(paddings), n)
    return w.node(
        "AveragePool",
        x,
        kernel_shape=list(kernel),
        strides=list(sizes(tuple(strides or kernel), n, "strides", 1)),
        pads=[p[0] for p in pads] + [p[1] for p in pads],
        count_include_pad=int(not exclusive),
        shape=w.types[0].shape,
    )


@writes("global_avg_pool")
def global_avg_pool(w, x):
    if x.dtype not in NATIVE or 0 in x.shape:
        return w.expanded(x)
    return w.node("GlobalAveragePool", x, shape=w.types[0].shape)
