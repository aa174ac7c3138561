"""Layers: normalisation, attention, dropout, recurrent nets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.runtime.reference import execute
from tests.beside_torch.installed import F, torch
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def batch_norm(
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    momentum: float,
    epsilon: float,
    is_test: bool,
    use_global_stats: bool,
    data_layout: str,
) -> Any:
    if x.ndim < 2:  # no channels, which torch does not take
        return x.clone(), mean.detach(), variance.detach()
    last = data_layout == "NHWC"
    x = x.movedim(-1, 1) if last else x
    if is_test or use_global_stats:
        out = F.batch_norm(x, mean.detach(), variance.detach(), scale, bias, False, 0.0, epsilon)
    else:
        out = F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
        if x.numel():  # an empty batch has no mean
            axes = [0, *range(2, x.ndim)]
            mean = momentum * mean + (1 - momentum) * x.mean(axes)
            variance = momentum * variance + (1 - momentum) * x.var(axes, correction=0)  # torch keeps the unbiased one
    return out.movedim(1, -1) if last else out, mean.detach(), variance.detach()


def layer_norm(x: Any, scale: Any, bias: Any, begin_norm_axis: int, epsilon: float) -> Any:
    shape = x.shape[begin_norm_axis:]

    def fitted(value: Any) -> Any:
        if value is None:
            return None
        return value.reshape(shape) if value.numel() == shape.numel() else value.expand(shape)

    return F.layer_norm(x, shape, fitted(scale), fitted(bias), epsilon)


def instance_norm(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    if not x.numel():  # torch refuses it
        return x.clone()
    return F.instance_norm(x, None, None, scale, bias, True, 0.1, epsilon)


def group_norm(x: Any, scale: Any, bias: Any, groups: int, epsilon: float) -> Any:
    return F.group_norm(x, groups, scale, bias, epsilon)


def rms_norm(x: Any, scale: Any, begin_axis: int, epsilon: float) -> Any:
    shape = x.shape[begin_axis % x.ndim :]
    return F.rms_norm(x, shape, None if scale is None else scale.expand(shape), epsilon)


def lrn(x: Any, n: int, k: float, alpha: float, beta: float) -> Any:
    return F.local_response_norm(x, n, alpha * n, beta, k)  # torch divides alpha by n


def spectral_norm(weight: Any, u: Any, v: Any, axis: int, power_iterations: int, epsilon: float) -> Any:
    rows = weight.movedim(axis, 0).flatten(1)
    u, v = u.detach(), v.detach()
    for _ in range(power_iterations):
        v = F.normalize(rows.detach().t() @ u, dim=0, eps=epsilon)
        u = F.normalize(rows.detach() @ v, dim=0, eps=epsilon)
    return weight / torch.dot(u, rows @ v), u, v


def weight_norm(v: Any, g: Any, axis: int) -> Any:
    """torch._weight_norm's own second gradient is wrong: torch.autograd.gradgradcheck refuses it."""
    return v * (g.reshape([-1 if i == axis else 1 for i in range(v.ndim)]) / torch.norm_except_dim(v, 2, axis))


def attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None, softcap: float) -> Any:
    if softcap:
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        return torch.softmax(torch.tanh(scores / softcap) * softcap, -1) @ value
    return F.scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=scale)


def rotary(x: Any, positions: Any, base: float) -> Any:
    half = x.shape[-1] // 2
    rate = base ** (-2 * torch.arange(half, dtype=x.dtype) / x.shape[-1])
    turn = torch.polar(torch.ones((), dtype=x.dtype), positions.to(x.dtype).unsqueeze(-1) * rate)
    turned = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], -1)


# --- dropout: Backpass draws the mask for the same key; torch computes the rest ----------------------------------


def kept(name: str, x: Any, key: Any, **attrs: Any) -> Any:
    """The elements that Backpass keeps: those that are not 0 in its result for ones."""
    b = BlockBuilder()
    ones = np.ones(x.shape)
    block = b.build(
        [b.emit(name, b.param(TensorType(ones.shape, "float64")), b.param(TensorType((), "int64")), **attrs)]
    )
    return torch.from_numpy(execute(block, [ones, np.asarray(key)])[0]) > 0


def dropout(x: Any, key: Any, p: float, is_test: bool, mode: str, axes: Any) -> Any:
    if mode == "downscale_in_infer":
        return x * (1 - p) if is_test else x * kept("dropout", x, key, p=p, mode=mode, axes=axes)
    if is_test or p == 1:
        return F.dropout(x, p, not is_test)
    return x * kept("dropout", x, key, p=p, axes=axes) / (1 - p)


def alpha_dropout(x: Any, key: Any, p: float, is_test: bool) -> Any:
    if is_test or p == 1:
        return F.alpha_dropout(x, p, not is_test)
    floor = -1.7580993408473766
    spread = ((1 - p) * (1 + p * floor**2)) ** -0.5
    return torch.where(kept("alpha_dropout", x, key, p=p), x, floor) * spread - spread * p * floor


# --- recurrent nets --------------------------------------------------------------------------------------------


def stepped(cell: Callable[[], Any], states: int) -> Callable[..., Any]:
    """The cell of torch, called once a step."""

    def f(x: Any, *rest: Any, reverse: bool) -> Any:
        state, weights = list(rest[:states]), rest[states:]
        out = [None] * len(x)
        for t in reversed(range(len(x))) if reverse else range(len(x)):
            found = cell()(x[t], tuple(state) if states > 1 else state[0], *weights)
            state = list(found) if states > 1 else [found]
            out[t] = state[0]
        rows = torch.stack(out) if out else torch.zeros(0, *state[0].shape, dtype=x.dtype)
        return rows, *(s.clone() for s in state)

    return f


def lstm_cell(x: Any, h: Any, c: Any, *weights: Any) -> Any:
    return torch.lstm_cell(x, (h, c), *weights)


OPS: dict[str, Callable[..., Any]] = {
    "alpha_dropout": alpha_dropout,
    "batch_norm": batch_norm,
    "dropout": dropout,
    "group_norm": group_norm,
    "gru": stepped(lambda: torch.gru_cell, 1),
    "gru_cell": lambda x, h, weight_x, weight_h, bias_x, bias_h: torch.gru_cell(
        x, h, weight_x, weight_h, bias_x, bias_h
    ),
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "lrn": lrn,
    "lstm": stepped(lambda: torch.lstm_cell, 2),
    "lstm_cell": lstm_cell,
    "rms_norm": rms_norm,
    "rnn": stepped(lambda: torch.rnn_tanh_cell, 1),
    "rnn_cell": lambda x, h, *weights: torch.rnn_tanh_cell(x, h, *weights),
    "rotary_embedding": rotary,
    "scaled_dot_product_attention": attention,
    "spectral_norm": spectral_norm,
    "weight_norm": weight_norm,
}


def recurrent(gates: int, states: int, steps: tuple[int, ...]) -> list[Inputs]:
    """Nets of 4 hidden units and 3 inputs on 2 sequences."""
    state, weights = [(2, 4)] * states, [(gates * 4, 3), (gates * 4, 4)]
    biases = [(gates * 4,)] * 2
    return [case((*steps, 2, 3), *state, *weights, *biases), case((*steps, 2, 3), *state, *weights)]


MASK = np.array([[True, False, True, True], [False, True, True, False], [True, True, True, True]])

MORE: dict[str, list[Inputs]] = {
    "batch_norm": [
        case((4, 3, *more), (3,), (3,), (3,), (3,), span=(0.3, 2.0), **attrs)
        for more in ((), (5,), (2, 3), (2, 1, 3))
        for attrs in ({}, {"is_test": True}, {"use_global_stats": True, "epsilon": 0.01})
    ],
    "group_norm": [case((2, 6, 3, 2), (6,), (6,), groups=g) for g in (1, 2, 3, 6)],
    "instance_norm": [case((2, 3, 4, 2), (3,), (3,)), case((2, 3, 5), epsilon=0.1)],
    "layer_norm": [
        case((3, 4, 5), (5,), (5,), begin_norm_axis=2),
        case((3, 4, 5), (4, 5), (4, 5)),
        case((3, 4, 5), begin_norm_axis=0),
    ],
    "rms_norm": [case((3, 4, 5), (5,)), case((3, 4, 5), (4, 5), begin_axis=1)],
    "lrn": [case((2, 6, 3, 2), n=n, alpha=0.3, beta=b) for n in (1, 2, 3, 4, 5) for b in (0.5, 0.75)],
    "spectral_norm": [case((4, 3, 2), (4,), (6,), power_iterations=k) for k in (0, 1, 3)],
    "weight_norm": [case((4, 3, 2), (n,), axis=a) for a, n in ((0, 4), (1, 3), (2, 2))],
    "dropout": [
        case((3, 4), np.array(k), p=p, mode=m)
        for k in (1, 2)
        for p in (0.0, 0.3, 0.9)
        for m in ("upscale_in_train", "downscale_in_infer")
    ],
    "alpha_dropout": [case((3, 4), np.array(k), p=p) for k in (1, 2) for p in (0.3, 0.9)],
    "scaled_dot_product_attention": [
        case((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 2)),
        case((2, 3, 4), (2, 4, 4), (2, 4, 5), MASK),
        case((2, 3, 4), (2, 4, 4), (2, 4, 5), (3, 4), scale=0.3),
        case((2, 5, 4), (2, 5, 4), (2, 5, 3), causal=True),
    ],
    "rotary_embedding": [case((2, 3, 5, 6), np.arange(5)), case((5, 4), (5,), base=100.0)],
    "rnn_cell": recurrent(1, 1, ()),
    "rnn": recurrent(1, 1, (3,)),
    "gru_cell": recurrent(3, 1, ()),
    "gru": recurrent(3, 1, (3,)),
    "lstm_cell": recurrent(4, 2, ()),
    "lstm": recurrent(4, 2, (3,)),
}
