"""Types of losses, normalisations, attention and random ops."""

from __future__ import annotations

from typing import Any

from backpass_client.builder.inference.rules import rule
from backpass_client.builder.inference.sizes import (
    as_axis,
    broadcast,
    broadcast_sizes,
    floats,
    integers,
    same_dtype,
    same_size,
    without,
)
from backpass_client.builder.types import FLOATS, InvalidOp, Size, Type

__all__: list[str] = []


@rule("softmax_with_cross_entropy", "cross_entropy")
def cross_entropy(
    logits: Type, label: Type, weight: Type | None, soft_label: bool, axis: int, reduction: str, **attrs: Any
) -> Type:
    floats(logits)
    at = as_axis(axis, logits.rank)
    if soft_label:
        if label.dtype != logits.dtype:
            raise InvalidOp(f"soft labels must be {logits.dtype}, not {label.dtype}")
        each = without(broadcast_sizes(logits.dims, label.dims), (at,), True)
    else:
        if label.dtype in FLOATS and label.rank == logits.rank > 1:
            raise InvalidOp(f"labels must be integers, not {label}: soft_label=True takes probabilities of classes")
        integers(label)
        rows = without(logits.dims, (at,))
        with_axis = without(logits.dims, (at,), True)
        wanted = rows if label.rank == len(rows) else with_axis
        if label.rank not in (len(rows), len(with_axis)):
            raise InvalidOp(f"labels must have the shape of the logits without axis {axis}, not {label}")
        for m, n in zip(wanted, label.dims, strict=True):
            same_size(m, n, "sizes of logits and labels differ")
        each = label.dims
    return Type(logits.kind, each if reduction == "none" else ())


@rule("nll_loss")
def nll_loss(x: Type, label: Type, weight: Type | None, reduction: str, **attrs: Any) -> Type:
    floats(x)
    integers(label)
    return Type(x.kind, label.dims if reduction == "none" else ())


@rule(
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", "sigmoid_focal_loss",
    "square_error_cost", "hinge_loss", "log_loss", "rank_loss", "margin_rank_loss", "gaussian_nll_loss",
)  # fmt: skip
def loss_of_pairs(*types: Type, reduction: str = "none", **attrs: Any) -> Type:
    floats(*types)
    both = broadcast(*types)
    return both if reduction == "none" else Type(both.dtype, ())


@rule("sigmoid_cross_entropy_with_logits", "kldiv_loss", "bce_loss")
def loss_of_like(x: Type, label: Type, *weights: Type | None, reduction: str, **attrs: Any) -> Type:
    floats(x)
    both = broadcast(x, label)
    if reduction == "none":
        return both
    return Type(x.dtype, x.dims[:0])


@rule("soft_margin_loss", "hinge_embedding_loss")
def loss_of_signs(x: Type, label: Type, reduction: str, **attrs: Any) -> Type:
    floats(x)
    return Type(x.kind, broadcast_sizes(x.dims, label.dims) if reduction == "none" else ())


@rule("cosine_embedding_loss")
def loss_of_angles(x: Type, y: Type, label: Type, reduction: str, **attrs: Any) -> Type:
    near = broadcast(x, y)
    return Type(near.dtype, broadcast_sizes(near.dims[:-1], label.dims) if reduction == "none" else ())


@rule("multi_margin_loss", "multi_label_margin_loss", "multi_label_soft_margin_loss")
def loss_of_classes(x: Type, label: Type, *weights: Type | None, reduction: str, **attrs: Any) -> Type:
    floats(x)
    return Type(x.kind, x.dims[:-1] if reduction == "none" else ())


@rule("check_finite", "clip_by_norm")
def same_floats(x: Type, **attrs: Any) -> Type:
    floats(x)
    return x


@rule("clip_by_global_norm")
def all_same_floats(x: list[Type], **attrs: Any) -> list[Type]:
    floats(*x)
    return list(x)


@rule("dice_loss", "npair_loss", "accuracy", "auc")
def one_number(x: Type, *others: Type, **attrs: Any) -> Type:
    floats(x)
    return Type(x.dtype, ())


@rule("triplet_margin_loss")
def triplet(anchor: Type, positive: Type, negative: Type, reduction: str, **attrs: Any) -> Type:
    both = broadcast(anchor, positive, negative)
    return Type(both.dtype, both.dims[:-1] if reduction == "none" else ())


@rule("bpr_loss", "nce", "hierarchical_sigmoid")
def loss_of_rows(x: Type, label: Type, *others: Type | None, **attrs: Any) -> Type:
    floats(x)
    integers(label)
    return Type(x.kind, label.dims)


@rule("cos_sim")
def cos_sim(x: Type, y: Type, axis: int, **attrs: Any) -> Type:
    both = broadcast(x, y)
    return Type(both.dtype, without(both.dims, (as_axis(axis, both.rank),)))


@rule("layer_norm")
def layer_norm(x: Type, scale: Type | None, bias: Type | None, begin_norm_axis: int, **attrs: Any) -> Type:
    floats(x)
    if x.shape is not None:
        at = as_axis(begin_norm_axis, x.rank)
        _vector(scale, x.dims[at:], "scale")
        _vector(bias, x.dims[at:], "bias")
    same_dtype(x, *(t for t in (scale, bias) if t is not None))
    return x


@rule("rms_norm")
def rms_norm(x: Type, scale: Type | None, begin_axis: int, **attrs: Any) -> Type:
    floats(x)
    same_dtype(x, *(t for t in (scale,) if t is not None))
    return x


def _vector(type: Type | None, normalized: tuple[Size, ...], what: str) -> None:
    """Raises InvalidOp if a scale or bias of the rank of the normalised axes has other sizes."""
    if type is not None and type.rank == len(normalized):
        for m, n in zip(type.dims, normalized, strict=True):
            if m != 1:
                same_size(m, n, f"sizes of {what} and x differ")


@rule("instance_norm", "group_norm")
def channel_norm(x: Type, scale: Type | None, bias: Type | None, groups: int = 1, **attrs: Any) -> Type:
    floats(x)
    channels = x.dims[1] if x.rank > 1 else None
    if isinstance(channels, int) and channels % groups:
        raise InvalidOp(f"{channels} channels cannot be divided into {groups} groups")
    for each in (scale, bias):
        if each is not None:
            same_size(each.dims[0], channels, "one number for each channel")
    return x


@rule("batch_norm")
def batch_norm(
    x: Type, scale: Type, bias: Type, mean: Type, variance: Type, data_layout: str, **attrs: Any
) -> tuple[Type, Type, Type]:
    floats(x)
    if x.rank > 1:
        channels = x.dims[1 if data_layout == "NCHW" else -1]
        for each in (scale, bias, mean, variance):
            same_size(each.dims[0], channels, "one number for each channel")
    return x, mean, variance


@rule("channel_shuffle", "temporal_shift")
def moved(x: Type, **attrs: Any) -> Type:
    return x


@rule("dropout", "alpha_dropout", "l2_normalize", "lrn", "label_smooth")
def kept(x: Type, *others: Type | None, **attrs: Any) -> Type:
    floats(x)
    return x


@rule("rotary_embedding", "row_conv")
def rotated(x: Type, other: Type, **attrs: Any) -> Type:
    return x


@rule("scaled_dot_product_attention")
def attention(query: Type, key: Type, value: Type, mask: Type | None, **attrs: Any) -> Type:
    floats(query, key, value)
    dtype = same_dtype(query, key, value)
    same_size(query.dims[-1], key.dims[-1], "query and key differ in their last size")
    same_size(key.dims[-2], value.dims[-2], "key and value differ in their length")
    batch = broadcast_sizes(query.dims[:-2], key.dims[:-2], value.dims[:-2])
    if mask is not None:
        scores = broadcast_sizes((*batch, query.dims[-2], key.dims[-2]), mask.dims)
        batch = scores[:-2]
    return Type(dtype, (*batch, query.dims[-2], value.dims[-1]))


# --- random ops --------------------------------------------------------------------------------------------------


@rule("gaussian_random", "uniform_random", "truncated_gaussian", "exponential", "randint")
def drawn(key: Type | None, shape: list[int], dtype: str, **attrs: Any) -> Type:
    return Type(dtype, tuple(shape))


@rule(
    "gaussian_random_like", "uniform_random_like", "truncated_gaussian_like", "exponential_like", "randint_like",
    "bernoulli_like",
)  # fmt: skip
def drawn_like(x: Type, key: Type | None, dtype: str | None, **attrs: Any) -> Type:
    return Type(dtype or x.kind, x.dims)


@rule("bernoulli")
def bernoulli(p: Type, key: Type | None, **attrs: Any) -> Type:
    return p


@rule("randperm")
def randperm(key: Type | None, n: int, dtype: str, **attrs: Any) -> Type:
    return Type(dtype, (n,))


@rule("multinomial")
def multinomial(p: Type, key: Type | None, num_samples: int, **attrs: Any) -> Type:
    return Type("int64", (*p.dims[:-1], num_samples))
