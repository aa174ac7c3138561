"""Normalization over batches, channels, layers and neighbouring channels, and dropout."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.arrays import dtype_name
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

HALVES = ("float16", "bfloat16")

# --- batch normalization -------------------------------------------------------------------------------------------


@converter("BatchNormalization")
def batch_normalization(node: Node) -> tuple[Tensor | None, ...]:
    """Before opset 14 more than one output means training.

    Training also writes the running statistics back to the states of the program that they come from.
    """
    x, scale, bias, mean, variance = (node[i] for i in range(5))
    if node.opset < 9 and not node.attr("spatial", 1):
        raise node.refuse("statistics for each position (spatial = 0) are not supported")
    count = len([name for name in node.proto.output if name])
    training = bool(node.attr("training_mode", 0)) if node.opset >= 14 else count > 1
    if node.opset >= 14 and count > 1 and not training:
        raise node.refuse("the running statistics are outputs of training only")
    wide = "float32" if mean.dtype in HALVES else mean.dtype
    wide_x, factor, shift, old_mean, old_variance = (node.cast(t, wide) for t in (x, scale, bias, mean, variance))
    axes = [i for i in range(x.rank) if i != 1]

    def per_channel(value: Tensor) -> Tensor:
        found: Tensor = node.emit("unsqueeze", value, axes=axes) if axes else value
        return found

    if training:
        batch_mean = node.emit("reduce_mean", wide_x, axes=axes)
        centred = node.emit("sub", wide_x, per_channel(batch_mean))
        batch_variance = node.emit("reduce_mean", node.emit("square", centred), axes=axes)
        spread = batch_variance
    else:
        centred, spread = node.emit("sub", wide_x, per_channel(old_mean)), old_variance
    inverse = node.emit("rsqrt", node.emit("add", spread, node.const(node.attr("epsilon", 1e-5), wide)))
    if _is_state(mean) and _is_state(variance):  # nothing differentiates them, and as one op it has a form for tests
        options = {"momentum": node.attr("momentum", 0.9), "epsilon": node.attr("epsilon", 1e-5)}
        statistics = factor, shift, old_mean, old_variance
        whole, _, _ = node.emit("batch_norm", wide_x, *statistics, **options, is_test=not training)
    else:
        scaled = node.emit("mul", centred, per_channel(node.emit("mul", inverse, factor)))
        whole = node.emit("add", scaled, per_channel(shift))
    out = node.cast(whole, x.dtype)
    if not training:
        return (out,)
    kept = node.attr("momentum", 0.9)
    results = []
    for source, old, new in ((mean, old_mean, batch_mean), (variance, old_variance, batch_variance)):
        updated = node.emit("add", node.emit("scale", old, scale=kept), node.emit("scale", new, scale=1.0 - kept))
        results.append(node.cast(updated, source.dtype))
        if _is_state(source) and node.draft.block is node.draft.root:
            node.draft.at_end.append((results[-1], source))
    if count > 3:
        results += [node.cast(batch_mean, mean.dtype), node.cast(batch_variance, variance.dtype)]
    return out, *results


def _is_state(value: Tensor) -> bool:
    return value.initial is not None and value.initial.role == "state"


# --- one sample at a time ------------------------------------------------------------------------------------------


def _in_width(node: Node, x: Tensor) -> Tensor:
    """`x` in the dtype of the statistics. The attribute stash_type chooses it for halves; it is float32 by default."""
    stash = dtype_name(node.attr("stash_type", 1))
    return node.cast(x, stash) if x.dtype in HALVES else x


@converter("InstanceNormalization")
def instance_normalization(node: Node) -> Tensor:
    x = node[0]
    wide = "float32" if x.dtype in HALVES else x.dtype
    found = node.emit(
        "instance_norm", *(node.cast(node[i], wide) for i in range(3)), epsilon=node.attr("epsilon", 1e-5)
    )
    return node.cast(found, x.dtype)


@converter("GroupNormalization", since=21)
def group_normalization(node: Node) -> Tensor:
    x, groups = node[0], int(node.attr("num_groups"))
    wide = _in_width(node, x)
    factors = [node.cast(node[i], wide.dtype) for i in (1, 2)]
    found = node.emit("group_norm", wide, *factors, groups=groups, epsilon=node.attr("epsilon", 1e-5))
    return node.cast(found, x.dtype)


@converter("LayerNormalization")
def layer_normalization(node: Node) -> tuple[Tensor | None, ...]:
    x, axis, epsilon = node[0], node.axis(-1), node.attr("epsilon", 1e-5)
    wide = _in_width(node, x)
    scale, bias = node[1], node.get(2)
    if wide is x and scale.shape == x.shape[axis:] and -1 not in scale.shape:
        out = node.emit("layer_norm", x, scale, bias, begin_norm_axis=axis, epsilon=epsilon)
    else:
        found = node.emit("layer_norm", wide, begin_norm_axis=axis, epsilon=epsilon)
        out = node.emit("mul", node.cast(found, x.dtype), scale)
        out = out if bias is None else node.emit("add", out, bias)
    if not any(node.proto.output[1:]):
        return (out,)
    axes = list(range(axis, x.rank))
    mean = node.emit("reduce_mean", wide, axes=axes, keepdims=True)
    spread = node.emit("var", wide, axes=axes, ddof=0, keepdims=True)
    inverse = node.emit("rsqrt", node.emit("add", spread, node.const(epsilon, wide.dtype)))
    stash = dtype_name(node.attr("stash_type", 1))
    return out, node.cast(mean, stash), node.cast(inverse, stash)


@converter("RMSNormalization")
def rms_normalization(node: Node) -> Tensor:
    x = node[0]
    wide = _in_width(node, x)
    found = node.emit("rms_norm", wide, begin_axis=node.axis(-1), epsilon=node.attr("epsilon", 1e-5))
    out = node.cast(found, x.dtype)
    result: Tensor = node.emit("mul", node.cast(out, node[1].dtype), node[1])
    return result


@converter("LRN")
def local_response(node: Node) -> Tensor:
    """With an even size ONNX has one more neighbour after a channel than before: the op has it the other way round."""
    x, size = node[0], int(node.attr("size"))
    even = size % 2 == 0
    found: Tensor = node.emit(
        "lrn",
        node.emit("flip", x, axes=[1]) if even else x,
        n=size,
        k=node.attr("bias", 1.0),
        alpha=node.attr("alpha", 1e-4) / size,
        beta=node.attr("beta", 0.75),
    )
    return node.emit("flip", found, axes=[1]) if even else found


@converter("MeanVarianceNormalization")
def mean_variance(node: Node) -> Tensor:
    """ONNX adds 1e-9 to the standard deviation."""
    x, axes = node[0], [int(a) for a in node.attr("axes", [0, 2, 3])]
    centred = node.emit("sub", x, node.emit("reduce_mean", x, axes=axes, keepdims=True))
    spread = node.emit("norm", centred, p=2.0, axes=axes, keepdims=True)
    count = node.emit("numel", x)
    for axis in range(x.rank):
        if axis not in [a % x.rank for a in axes]:
            count = node.emit("floor_div", count, node.size(x, axis))
    deviation = node.emit("div", spread, node.emit("sqrt", node.cast(count, x.dtype)))
    result: Tensor = node.emit("div", centred, node.emit("add", deviation, node.const(1e-9, x.dtype)))
    return result


# --- dropout -------------------------------------------------------------------------------------------------------


@converter("Dropout")
def dropout(node: Node) -> tuple[Tensor, Tensor | None]:
    """The identity, unless the input `training_mode` (since opset 12) is true."""
    x = node[0]
    training = node.get(2) if node.opset >= 12 else None
    wants_mask = len(node.proto.output) > 1 and node.proto.output[1]
    mask_dtype = "bool" if node.opset >= 10 else x.dtype
    known = False if training is None else training.value
    if known is not None and not bool(np.reshape(known, ())):
        return x, _mask(node, x, mask_dtype) if wants_mask else None
    ratio = node.get(1) or node.const(0.5, "float32")
    seed = {"seed": int(node.attr("seed")) % 2**32} if node.has("seed") else {}
    if known is not None and not wants_mask and ratio.value is not None:
        found: Tensor = node.emit("dropout", x, p=float(ratio.value.reshape(())), **seed)
        return found, None
    drawn = node.emit("uniform_random_like", node.cast(x, "float32"), min=0.0, max=1.0, **seed)
    share = node.cast(node.reshape(ratio, []), "float32")
    kept = node.emit("greater_equal", drawn, share)
    if known is None:
        assert training is not None
        kept = node.emit("logical_or", kept, node.emit("logical_not", node.reshape(training, [])))
        share = node.emit("mul", share, node.cast(node.reshape(training, []), "float32"))
    rest = node.emit("sub", node.const(1, "float32"), share)
    scaled = node.emit("div", x, node.cast(rest, x.dtype))
    out = node.emit("where", kept, scaled, node.const(0, x.dtype))
    return out, node.cast(kept, mask_dtype)


def _mask(node: Node, x: Tensor, dtype: str) -> Tensor:
    if x.type.is_static:
        return node.const(np.ones(x.shape), dtype)
    ones: Tensor = node.emit("ones_like", node.cast(x, dtype if dtype != "bool" else "int32"))
    return node.cast(ones, dtype)
