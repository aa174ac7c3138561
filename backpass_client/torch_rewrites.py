"""Operators of torch in other operators of torch, where torch's exporter changes their values or their gradients.

A rewrite takes all arguments of its operator in the order of the schema. torch is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backpass_client import torch_poles
from backpass_client.errors import BackpassError
from backpass_client.torch_graphs import Body, Rewrite, argument_values, calls, is_float, place, schema_name

__all__ = ["refuse_features", "rewrites"]

_MEAN, _SUM = 1, 2
"""Values of `reduction` in operators of losses; 0 is none."""
_POOLED_AXES = {"avg_pool2d": 2, "avg_pool3d": 3}


def rewrites() -> dict[Any, Rewrite]:
    """Rewrites by operator."""
    import torch

    aten = torch.ops.aten
    resized = (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_bicubic2d, aten.upsample_trilinear3d)
    return {
        aten.item.default: _item,
        aten.detach_.default: lambda make, x: make(aten.detach.default, x),
        aten.embedding.default: _embedding,
        aten.sinc.default: torch_poles.sinc,
        aten.std.default: torch_poles.std_of_all,
        aten.std.dim: torch_poles.std_by_axis,
        aten.std.correction: torch_poles.std,
        aten.scatter_reduce.two: _scatter_reduce,
        aten.scatter_reduce_.two: _scatter_reduce_in_place,
        aten.avg_pool2d.default: _average_pool,
        aten.avg_pool3d.default: _average_pool,
        aten.cross_entropy_loss.default: _cross_entropy,
        aten.multilabel_margin_loss.default: _multilabel_margin_loss,
        **{each.vec: _resized for each in resized},
    }


def refuse_features(program: Any) -> None:
    """Raise BackpassError for arguments that the exporter ignores or rejects, with the modules that use them."""
    wrong = [f"{feature} (at {place(node)})" for node in calls(program) if (feature := _unknown_feature(node))]
    if wrong:
        raise BackpassError(f"the export of these features of torch is not supported: {', '.join(wrong)}")


def _unknown_feature(node: Any) -> str | None:
    name = schema_name(node)
    if name == "embedding_renorm_":
        return "max_norm of an embedding, which changes the weights in the forward pass"
    if not name:
        return None
    given = argument_values(node)
    if given.get("scale_grad_by_freq"):
        return "scale_grad_by_freq of an embedding"
    if name == "lstm" and "hx" in given and len({each.meta["val"].shape[-1] for each in given["hx"]}) > 1:
        return "proj_size of an LSTM"
    if name in _POOLED_AXES and given["divisor_override"] is not None and given["ceil_mode"]:
        return "divisor_override with ceil_mode of an average pooling"
    return None


# --- gradients -----------------------------------------------------------------------------------------------------


def _item(make: Body, x: Any) -> None:
    """A number of Python has no gradient."""
    import torch

    if is_float(x):
        make.node.args = (make(torch.ops.aten.detach.default, x),)


def _embedding(
    make: Body, weight: Any, indices: Any, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> Any | None:
    """The row of the padding has no gradient."""
    import torch

    aten = torch.ops.aten
    if padding_idx < 0:  # F.embedding has counted it from the front
        return None
    rows = make(aten.embedding.default, weight, indices)
    is_padding = make(aten.unsqueeze.default, make(aten.eq.Scalar, indices, padding_idx), -1)
    return make(aten.where.self, is_padding, make(aten.detach.default, rows), rows)


# --- reductions ----------------------------------------------------------------------------------------------------


def _scatter_reduce(
    make: Body, x: Any, axis: int, index: Any, source: Any, reduce: str, include_self: bool
) -> Any | None:
    """The mean as a sum and a count."""
    import torch

    aten = torch.ops.aten
    if reduce != "mean":
        return None
    add = lambda *values: make(
        aten.scatter_reduce.two, values[0], axis, index, values[1], "sum", include_self=include_self
    )
    counts = add(make(aten.ones_like.default, x), make(aten.ones_like.default, source))
    if not include_self:  # elements that stay as they are
        counts = make(aten.clamp_min.default, counts, 1)
    if is_float(x):
        return make(aten.div.Tensor, add(x, source), counts)
    return make(aten.div.Tensor_mode, add(x, source), counts, rounding_mode="floor")


def _scatter_reduce_in_place(make: Body, x: Any, *rest: Any) -> Any | None:
    import torch

    result = _scatter_reduce(make, x, *rest)
    return None if result is None else make(torch.ops.aten.copy_.default, x, result)


def _average_pool(
    make: Body,
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Any | None:
    """Sums over windows, divided by another number than their sizes."""
    import torch

    if divisor is None:
        return None
    axes = _POOLED_AXES[schema_name(make.node)]
    size = math.prod(kernel) if len(kernel) == axes else kernel[0] ** axes
    mean = make(make.node.target, x, kernel, stride, padding, False, True)
    return make(torch.ops.aten.mul.Tensor, mean, size / divisor)


# --- losses --------------------------------------------------------------------------------------------------------


def _cross_entropy(
    make: Body, x: Any, target: Any, weight: Any, reduction: int, ignored: int, smoothing: float
) -> Any | None:
    """Cross entropy with probabilities as targets, with smoothed class numbers, or of one row."""
    import torch

    aten = torch.ops.aten
    axis, rank, soft = 1, len(x.meta["val"].shape), is_float(target)
    if rank == 1:
        x, target = (make(aten.unsqueeze.default, each, 0) for each in (x, target))
        settings = (weight, reduction, ignored, smoothing)
        loss = _cross_entropy(make, x, target, *settings) or make(aten.cross_entropy_loss.default, x, target, *settings)
        return loss if reduction else make(aten.squeeze.dim, loss, 0)
    if not soft and smoothing == 0.0:
        return None
    classes = x.meta["val"].shape[axis]
    if not isinstance(classes, int):
        raise BackpassError(f"cross_entropy needs a fixed number of classes (at {place(make.node)})")
    weighted = make(aten.log_softmax.int, x, axis)
    if weight is not None:
        shape = [classes if i == axis else 1 for i in range(rank)]
        weighted = make(aten.mul.Tensor, weighted, make(aten.reshape.default, weight, shape))
    if soft:
        if smoothing:
            target = make(aten.add.Tensor, make(aten.mul.Tensor, target, 1 - smoothing), smoothing / classes)
        products = make(aten.mul.Tensor, weighted, target)
        return _reduced(make, make(aten.neg.default, make(aten.sum.dim_IntList, products, [axis])), reduction)
    chosen = make(aten.cross_entropy_loss.default, x, target, weight, 0, ignored)
    kept = make(aten.ne.Scalar, target, ignored)
    even = make(aten.where.ScalarOther, kept, make(aten.sum.dim_IntList, weighted, [axis]), 0.0)
    share = make(aten.mul.Tensor, chosen, 1 - smoothing)
    losses = make(aten.sub.Tensor, share, make(aten.mul.Tensor, even, smoothing / classes))
    if reduction != _MEAN:
        return _reduced(make, losses, reduction)
    if weight is None:
        counts = kept
    else:
        classes_of = make(aten.where.ScalarOther, kept, target, 0)
        counts = make(aten.where.ScalarOther, kept, make(aten.index.Tensor, weight, [classes_of]), 0.0)
    return make(aten.div.Tensor, make(aten.sum.default, losses), make(aten.sum.default, counts))


def _multilabel_margin_loss(make: Body, x: Any, target: Any, reduction: int) -> Any:
    """The classes of each row end at the first negative number.

    loss = sum(max(0, 1 - x[t] + x[c]) for t among the row's classes, for c not among them) / number of classes
    """
    import torch

    aten = torch.ops.aten
    classes = x.meta["val"].shape[-1]
    ended = make(aten.cumsum.default, make(aten.lt.Scalar, target, 0), -1)
    given = make(aten.eq.Scalar, ended, 0)
    positions = make(aten.arange.default, classes, device=x.meta["val"].device)
    named = make(aten.unsqueeze.default, make(aten.where.ScalarOther, given, target, -1), -1)
    is_target = make(aten.any.dim, make(aten.eq.Tensor, named, positions), -2)
    chosen = make(aten.gather.default, x, -1, make(aten.where.ScalarOther, given, target, 0))
    differences = make(aten.sub.Tensor, make(aten.unsqueeze.default, x, -2), make(aten.unsqueeze.default, chosen, -1))
    margins = make(aten.relu.default, make(aten.add.Tensor, differences, 1.0))
    others = make(aten.unsqueeze.default, make(aten.logical_not.default, is_target), -2)
    counted = make(aten.logical_and.default, make(aten.unsqueeze.default, given, -1), others)
    sums = make(aten.sum.dim_IntList, make(aten.where.ScalarOther, counted, margins, 0.0), [-2, -1])
    return _reduced(make, make(aten.div.Scalar, sums, classes), reduction)


def _reduced(make: Body, losses: Any, reduction: int) -> Any:
    import torch

    aten = torch.ops.aten
    if reduction == _MEAN:
        return make(aten.mean.default, losses)
    return make(aten.sum.default, losses) if reduction == _SUM else losses


# --- images --------------------------------------------------------------------------------------------------------


def _resized(make: Body, x: Any, sizes: Any, align_corners: bool, factors: Sequence[float] | None) -> Any | None:
    """Sizes in place of factors, which ONNX holds in single precision and multiplies with sizes without rounding."""
    before, after = x.meta["val"].shape[2:], make.node.meta["val"].shape[2:]
    if factors is None or not all(isinstance(n, int) for n in (*before, *after)):
        return None
    exact = all(abs(n * factor - m) < 1e-6 * m for n, m, factor in zip(before, after, factors, strict=True))
    return make(make.node.target, x, list(after), align_corners, None) if align_corners or exact else None
