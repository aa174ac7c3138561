"""Operators of torch in operators of ONNX, where those of torch's exporter are missing or wrong.

torch, onnx and onnxscript are imported where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from backpass_client.torch_functions import of_service

__all__ = ["translations"]


def translations() -> dict[Any, Callable[..., Any]]:
    """Translations by operator, for `torch.onnx.export`."""
    import torch

    aten = torch.ops.aten
    nearest = (aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d)
    return {
        aten._native_batch_norm_legit_functional.default: _batch_norm,
        aten._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
        aten.scaled_dot_product_attention.default: _attention,
        aten.log_sigmoid.default: _log_sigmoid,
        aten.scalar_tensor.default: _scalar,
        **{each.vec: _nearest for each in nearest},
        **of_service(),
    }


def _log_sigmoid(x: Any) -> Any:
    """Finite where the sigmoid is zero."""
    from onnxscript import opset20 as op

    return op.Neg(op.Softplus(op.Neg(x)))


def _scalar(number: Any, dtype: int, **_: Any) -> Any:
    """A number of Python, which the exporter would round to single precision."""
    import numpy as np
    from onnxscript import ir
    from onnxscript import opset20 as op

    if isinstance(number, bool | int | float):
        number = op.Constant(value=ir.tensor(np.asarray(number)))
    return op.Cast(number, to=dtype)


def _nearest(x: Any, output_size: Any, scale_factors: Sequence[float] | None) -> Any:
    """The nearest elements before the positions, whose rounding in single precision is that of torch."""
    import torch
    from onnxscript import opset20 as op

    before = list(x.shape)[2:]
    after = output_size if scale_factors is None else [None] * len(before)
    if all(isinstance(n, int) for n in before) and (scale_factors or all(isinstance(n, int) for n in output_size)):
        for axis, size in enumerate(before):
            given = {"size": after[axis]} if scale_factors is None else {"scale_factor": scale_factors[axis]}
            counted = torch.arange(size, dtype=torch.float64)[None, None]
            positions = torch.nn.functional.interpolate(counted, **given)[0, 0].long().tolist()
            repeats, rest = divmod(len(positions), size)
            if rest or positions != [i // repeats for i in range(len(positions))]:
                x = op.Gather(x, op.Constant(value_ints=positions), axis=axis + 2)
            elif repeats > 1:
                x = _repeated(x, [float(repeats) if i == axis else 1.0 for i in range(len(before))])
        return x
    if scale_factors is not None:
        return _repeated(x, scale_factors)
    sizes = op.Concat(op.Shape(x, start=0, end=2), op.Cast(output_size, to=7), axis=0)  # 7: int64
    return op.Resize(x, None, None, sizes, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _repeated(x: Any, factors: Sequence[float]) -> Any:
    from onnxscript import opset20 as op

    scales = op.Constant(value_floats=[1.0, 1.0, *factors])
    return op.Resize(x, None, scales, None, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


# --- normalisation -------------------------------------------------------------------------------------------------


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Batch normalisation with running statistics: out, mean and 1 / deviation of the batch, new statistics.

    ONNX's new variance has the biased variance of the batch, torch's the unbiased one.
    """
    from onnxscript import opset20 as op

    weight, bias = _affine(x, weight, bias)
    if not training:
        out = op.BatchNormalization(x, weight, bias, mean, var, epsilon=eps)
        return out, mean, op.Reciprocal(op.Sqrt(op.Add(var, _like(eps, var)))), mean, var
    out, new_mean, biased = op.BatchNormalization(
        x, weight, bias, mean, var, epsilon=eps, momentum=1.0 - momentum, training_mode=1
    )
    count = op.CastLike(op.Div(op.Size(x), op.Size(mean)), mean)
    kept = op.Mul(var, _like(1.0 - momentum, var))
    unbiased = op.Div(op.Mul(op.Sub(biased, kept), count), op.Sub(count, _like(1.0, mean)))
    return (out, *_of_batch(x, eps), new_mean, op.Add(kept, unbiased))


def _batch_norm_without_statistics(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Batch normalisation with the statistics of the batch, in training and in evaluation."""
    from onnxscript import opset20 as op

    weight, bias = _affine(x, weight, bias)
    zeros = op.Mul(weight, _like(0.0, weight))
    out, _, _ = op.BatchNormalization(x, weight, bias, zeros, zeros, epsilon=eps, training_mode=1)
    return (out, *_of_batch(x, eps))


def _affine(x: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Factors and terms: ones and zeros for a layer that learns none."""
    from onnxscript import opset20 as op

    channels = op.Shape(x, start=1, end=2)
    ones = op.Expand(_like(1.0, x), channels) if weight is None else weight
    return ones, op.Expand(_like(0.0, x), channels) if bias is None else bias


def _of_batch(x: Any, eps: float) -> tuple[Any, Any]:
    """The mean and the reciprocal of the deviation of each channel."""
    from onnxscript import opset20 as op

    axes = op.Constant(value_ints=[i for i in range(len(x.shape)) if i != 1])
    mean = op.ReduceMean(x, axes, keepdims=1)
    difference = op.Sub(x, mean)
    var = op.ReduceMean(op.Mul(difference, difference), axes, keepdims=0)
    return op.Squeeze(mean, axes), op.Reciprocal(op.Sqrt(op.Add(var, _like(eps, var))))


# --- attention ----------------------------------------------------------------------------------------------------


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention. A query that may look at nothing gets zeros, as torch gives it."""
    import onnx
    from onnxscript import opset20 as op

    if enable_gqa:
        key, value = _for_each_query(query, key), _for_each_query(query, value)
    size = op.CastLike(op.Shape(query, start=-1), query)
    factor = op.Reciprocal(op.Sqrt(size)) if scale is None else _like(scale, query)
    rank = len(query.shape)
    turned = [*range(rank - 2), rank - 1, rank - 2]
    scores = op.MatMul(op.Mul(query, factor), op.Transpose(key, perm=turned))
    allowed = attn_mask if attn_mask is not None and attn_mask.dtype == onnx.TensorProto.BOOL else None
    if is_causal:
        sizes = op.Concat(op.Shape(query, start=-2, end=-1), op.Shape(key, start=-2, end=-1), axis=0)
        ones = op.Expand(op.Constant(value_int=1), sizes)
        allowed = op.Cast(op.Trilu(ones, upper=0), to=onnx.TensorProto.BOOL)
    if allowed is None and attn_mask is None:
        weights = op.Softmax(scores, axis=-1)
    elif allowed is None:  # of a query whose mask is -inf everywhere, the softmax would be NaN
        top = op.ReduceMax(attn_mask, op.Constant(value_ints=[-1]), keepdims=1)
        hidden = op.Equal(top, _like(-math.inf, top))
        weights = op.Softmax(op.Add(scores, op.Where(hidden, _like(0.0, attn_mask), attn_mask)), axis=-1)
        weights = op.Where(hidden, _like(0.0, scores), weights)
    else:  # a finite number, so that the gradients of a query without any allowed key are finite, too
        lowest = -6e4 if query.dtype == onnx.TensorProto.FLOAT16 else -1e30
        weights = op.Softmax(op.Where(allowed, scores, _like(lowest, scores)), axis=-1)
        weights = op.Where(allowed, weights, _like(0.0, scores))
    if dropout_p > 0:
        weights, _ = op.Dropout(weights, op.Constant(value_float=dropout_p), op.Cast(1, to=onnx.TensorProto.BOOL))
    return op.MatMul(weights, value)


def _for_each_query(query: Any, key: Any) -> Any:
    """Keys or values with their heads repeated up to the number of heads of the queries."""
    from onnxscript import opset20 as op

    repeats = op.Div(op.Shape(query, start=-3, end=-2), op.Shape(key, start=-3, end=-2))
    apart = op.Unsqueeze(key, op.Constant(value_ints=[-3]))
    lead, rest = op.Shape(key, start=0, end=-2), op.Shape(key, start=-2)
    wide = op.Expand(apart, op.Concat(lead, repeats, rest, axis=0))
    heads = op.Mul(op.Shape(key, start=-3, end=-2), repeats)
    return op.Reshape(wide, op.Concat(op.Shape(key, start=0, end=-3), heads, rest, axis=0))


def _like(number: float, x: Any) -> Any:
    """The number in the element type of `x`. A constant given by `value_float` would be rounded to single precision."""
    import numpy as np
    from onnxscript import ir
    from onnxscript import opset20 as op

    return op.CastLike(op.Constant(value=ir.tensor(np.float64(number))), x)
