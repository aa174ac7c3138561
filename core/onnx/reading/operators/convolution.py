"""Convolutions, their transposes, and deformable convolution."""

from __future__ import annotations

from core.onnx.reading.borders import with_same_pads
from core.onnx.reading.node import Node
from core.onnx.reading.operators.shapes import padded
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor
from core.onnx.reading.windows import Windows, windows


@converter("Conv")
def conv(node: Node) -> Tensor:
    return convolved(node, node[0], node[1], node.get(2))


def convolved(node: Node, x: Tensor, filter: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution that the attributes of `node` describe."""
    how = windows(node, x, _kernel(node, x, filter), follows=True)
    if min(how.paddings) < 0:
        raise node.refuse(f"negative pads {how.pads} are not supported")
    x = with_same_pads(node, x, how, 0.0)
    result: Tensor = node.emit(
        f"conv{x.rank - 2}d",
        x,
        filter,
        bias,
        strides=how.strides,
        paddings=how.paddings,
        dilations=how.dilations,
        groups=int(node.attr("group", 1)),
    )
    return result


def _kernel(node: Node, x: Tensor, filter: Tensor) -> list[int]:
    if filter.rank != x.rank or filter.rank < 3:
        raise node.refuse(f"the filter {filter.type} does not fit {x.type}")
    kernel = list(filter.shape[2:])
    if -1 in kernel:
        raise node.refuse(f"the filter {filter.type} must have known spatial sizes")
    given = [int(k) for k in node.attr("kernel_shape", kernel)]
    if given != kernel:
        raise node.refuse(f"kernel_shape {given} is not that of the filter {filter.type}")
    return kernel


@converter("ConvTranspose")
def conv_transpose(node: Node) -> Tensor:
    x, filter, bias = node[0], node[1], node.get(2)
    how = windows(node, x, _kernel(node, x, filter), needs_pads=False)
    n = x.rank - 2
    more = [int(k) for k in node.attr("output_padding", [0] * n)]
    if len(more) != n or min(more) < 0:
        raise node.refuse(f"output_padding must be {n} numbers of at least 0, not {more}")
    pads = _transposed_pads(node, x, how, more)
    around = [(-before, extra - after) for (before, after), extra in zip(pads, more, strict=True)]
    attrs = {"strides": how.strides, "dilations": how.dilations, "groups": int(node.attr("group", 1))}
    fits = all(min(p) >= 0 for p in pads) and all(
        m < max(s, d) for m, s, d in zip(more, how.strides, how.dilations, strict=True)
    )
    if -1 in x.shape[2:]:
        result = _over_open_sizes(node, x, filter, how, attrs)
    elif fits:
        paddings = [k for pair in pads for k in pair]
        found: Tensor = node.emit(
            f"conv{n}d_transpose", x, filter, bias, paddings=paddings, output_padding=more, **attrs
        )
        return found
    else:
        result = node.emit(f"conv{n}d_transpose", x, filter, **attrs)
    result = padded(node, result, [(0, 0), (0, 0), *around], node.const(0, x.dtype))
    if bias is None:
        return result
    over_space: Tensor = node.emit("unsqueeze", bias, axes=list(range(1, n + 1)))
    total: Tensor = node.emit("add", result, over_space)
    return total


def _transposed_pads(node: Node, x: Tensor, how: Windows, more: list[int]) -> list[tuple[int, int]]:
    """The pads, chosen so that the output has the size that the attributes ask for."""
    n = x.rank - 2
    automatic = node.attr("auto_pad", "NOTSET")
    if node.has("output_shape"):
        wanted = [int(k) for k in node.attr("output_shape")][-n:]
        if -1 in x.shape[2:] or len(wanted) != n:
            raise node.refuse(f"output_shape {wanted} needs {n} known spatial sizes, not {x.type}")
        axes = zip(x.shape[2:], how.kernel, how.strides, how.dilations, more, wanted, strict=True)
        totals = [s * (m - 1) + extra + d * (k - 1) + 1 - out for m, k, s, d, extra, out in axes]
    elif automatic.startswith("SAME"):
        spans = zip(how.kernel, how.strides, how.dilations, more, strict=True)
        totals = [extra + d * (k - 1) + 1 - s for k, s, d, extra in spans]
    elif min(how.paddings) < 0:
        raise node.refuse(f"negative pads {how.pads} are not supported")
    else:
        return how.pads
    # Runtimes widen the end of an output that is larger than the reach of the input.
    halves = [(t // 2, t - t // 2) if automatic == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]
    return [pair if total >= 0 else (0, total) for pair, total in zip(halves, totals, strict=True)]


def _over_open_sizes(node: Node, x: Tensor, filter: Tensor, how: Windows, attrs: dict[str, object]) -> Tensor:
    """The full transposed convolution of x with open spatial sizes: the adjoint of a convolution of zeros."""
    sizes = node.emit("slice", node.emit("shape", x), axes=[0], starts=[2], ends=[x.rank])
    less_one = node.emit("sub", sizes, node.const(1, "int64"))
    reach = [d * (k - 1) + 1 for k, d in zip(how.kernel, how.dilations, strict=True)]
    full = node.emit("add", node.emit("mul", less_one, node.const(how.strides, "int64")), node.const(reach, "int64"))
    channels = filter.shape[1] * int(node.attr("group", 1))
    batch = node.reshape(node.size(x, 0), [1])
    shape = node.emit("concat", batch, node.const([channels], "int64"), full, axis=0)
    zeros = node.emit(
        "dynamic_fill", shape, shape=[x.shape[0], channels, *[-1] * (x.rank - 2)], value=0.0, dtype=x.dtype
    )
    result: Tensor = node.emit("correlate_input_adjoint", x, filter, zeros, **attrs)
    return result


@converter("DeformConv")
def deform_conv(node: Node) -> Tensor:
    x, filter, offset = node[0], node[1], node[2]
    how = windows(node, x, _kernel(node, x, filter))
    if x.rank != 4:
        raise node.refuse(f"it needs two spatial axes, not {x.type}")
    result: Tensor = node.emit(
        "deformable_conv2d",
        x,
        offset,
        filter,
        node.get(4),
        node.get(3),
        strides=how.strides,
        paddings=how.paddings,
        dilations=how.dilations,
        groups=int(node.attr("group", 1)),
        deformable_groups=int(node.attr("offset_group", 1)),
    )
    return result
