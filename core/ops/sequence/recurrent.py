"""Recurrent cells, and recurrent networks over whole sequences."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.control.array_joins import array_join, array_unstack
from core.ops.control.loop import loop
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.math import sigmoid, tanh
from core.ops.indexing.gather import slice_
from core.ops.linalg.matmul import matmul
from core.ops.shape.agreeing import agreed, shaped
from core.ops.shape.concat_split import split
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

K = np.cos(np.arange(16.0)).reshape(2, 4, 2)
V = np.sin(np.arange(24.0) * 3).reshape(2, 4, 3)


def _projected(x, weight, bias):
    """``x @ weight.T + bias``: the contribution of one operand to all gates."""
    out = matmul(x, weight, transpose_y=True)
    return out if bias is None else out + bias


_OF_CELL, _STATE = "[batch, input]", "[batch, hidden]"
_AXES = {"h": _STATE, "c": _STATE, "weight_x": "[gates * hidden, input]", "weight_h": "[gates * hidden, hidden]"}


def _check_ranks(axes_of_x: str, **operands) -> None:
    """Raise ProgramError (shape_mismatch) for an operand with another number of axes. Biases broadcast.

    axes_of_x: as the documentation writes them, such as "[batch, input]".
    """
    for name, operand in operands.items():
        axes = _AXES.get(name, axes_of_x)
        if operand.rank != axes.count(",") + 1:
            raise ProgramError(f"{name} must be {axes}, not {operand.type}", "shape_mismatch")


def _with_rows(weight_h, gates: int):
    """weight_h, which has `gates` rows for each column. Raises ProgramError (shape_mismatch); the run compares open
    sizes.
    """
    rows, hidden = weight_h.shape
    if (rows % gates if hidden == -1 else rows != gates * hidden) and rows != -1:
        raise ProgramError(f"weight_h must be [{gates} * hidden, hidden], not {weight_h.type}", "shape_mismatch")
    if hidden != -1:
        return shaped(weight_h, (gates * hidden, hidden))
    if rows != -1:
        return shaped(weight_h, (rows, rows // gates))
    gate = weight_h
    if gates > 1:  # one column is enough to compare the rows
        gate, *_ = split(slice_(weight_h, axes=(1,), starts=(0,), ends=(1,)), num=gates, axis=0)
    return weight_h.builder.emit("check_shape", weight_h, gate, shape=(-1, -1), axes=(1, 0))


def _cell(step, gates: int, x, states, weight_x, weight_h, bias_x, bias_h):
    """One `step` of the operands of a cell, whose sizes are compared."""
    named = dict(zip("hc"[: len(states)], states, strict=True))
    _check_ranks(_OF_CELL, x=x, **named, weight_x=weight_x, weight_h=weight_h)
    weight_x, weight_h = agreed(weight_x, _with_rows(weight_h, gates), (0, 0))
    states = list(states)
    for i, each in enumerate(states):
        x, each = agreed(x, each, (0, 0))
        weight_h, states[i] = agreed(weight_h, each, (1, 1))
    return step(_projected(x, weight_x, bias_x), _projected(states[0], weight_h, bias_h), *states)


def _parts(x, count: int):
    return split(x, num=count, axis=x.rank - 1) if x.shape[-1] else (x,) * count


# Steps take the contributions of x and h to the gates: those of x are one product for a whole sequence.


def _rnn_step(a, b, h):
    return (tanh(a + b),)


def _lstm_step(a, b, h, c):
    i, f, g, o = _parts(a + b, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru_step(a, b, h):
    (xr, xz, xn), (hr, hz, hn) = _parts(a, 3), _parts(b, 3)
    new = tanh(xn + sigmoid(xr + hr) * hn)
    z = sigmoid(xz + hz)
    return (new + z * (h - new),)


@composite
def rnn_cell(x, h, weight_x, weight_h, bias_x=None, bias_h=None):
    """``out = tanh(x @ weight_x.T + bias_x + h @ weight_h.T + bias_h)``, for x [n, input] and h [n, hidden]."""
    return _cell(_rnn_step, 1, x, [h], weight_x, weight_h, bias_x, bias_h)


@composite(outputs=("h_out", "c_out"))
def lstm_cell(x, h, c, weight_x, weight_h, bias_x=None, bias_h=None):
    """One step of a long short-term memory: the new h and c, both [n, hidden].

    Weights are [4 hidden, ...], for the gates input, forget, cell, output in this order:
    ``c = sigmoid(f) * c + sigmoid(i) * tanh(g)`` and ``h = sigmoid(o) * tanh(c)``.
    """
    return _cell(_lstm_step, 4, x, [h, c], weight_x, weight_h, bias_x, bias_h)


@composite
def gru_cell(x, h, weight_x, weight_h, bias_x=None, bias_h=None):
    """One step of a gated recurrent unit: the new h [n, hidden].

    Weights are [3 hidden, ...], for the gates reset, update, new in this order: ``n = tanh(xn + sigmoid(r) * hn)`` and
    ``h = (1 - sigmoid(z)) * n + sigmoid(z) * h``; hn includes its bias.
    """
    return _cell(_gru_step, 3, x, [h], weight_x, weight_h, bias_x, bias_h)


def _s(x):
    return 1 / (1 + np.exp(-x))


def _lstm(x, h, c, wx, wh, bx=0.0, bh=0.0):
    i, f, g, o = np.split(x @ wx.T + bx + h @ wh.T + bh, 4, axis=1)
    c = _s(f) * c + _s(i) * np.tanh(g)
    return _s(o) * np.tanh(c), c


def _gru(x, h, wx, wh, bx=0.0, bh=0.0):
    xr, xz, xn = np.split(x @ wx.T + bx, 3, axis=1)
    hr, hz, hn = np.split(h @ wh.T + bh, 3, axis=1)
    new, z = np.tanh(xn + _s(xr + hr) * hn), _s(xz + hz)
    return (1 - z) * new + z * h


def _weights(gates: int, hidden: int = 2):
    rows = gates * hidden
    return (
        np.sin(np.arange(rows * 3.0)).reshape(rows, 3),
        np.cos(np.arange(rows * hidden * 1.0)).reshape(rows, hidden),
        np.sin(np.arange(rows * 1.0) + 1) / 2,
        np.cos(np.arange(rows * 1.0) + 1) / 2,
    )


_X, _H, _C = V[0, :2], K[0, :2], K[1, :2]


def _plain(x, h, wx, wh, bx=0.0, bh=0.0):
    return np.tanh(x @ wx.T + bx + h @ wh.T + bh)


rnn_cell.example(
    lambda: [
        Example((_X, _H, *_weights(1)), (_plain(_X, _H, *_weights(1)),)),
        Example((_X[:1], _H[:1], *_weights(1)[:2]), (_plain(_X[:1], _H[:1], *_weights(1)[:2]),)),
        Example((_X[:0], _H[:0], *_weights(1)), (_H[:0],)),
    ]
)
lstm_cell.example(
    lambda: [
        Example((_X, _H, _C, *_weights(4)), _lstm(_X, _H, _C, *_weights(4))),
        Example((_X[:1], _H[:1], _C[:1], *_weights(4)[:2]), _lstm(_X[:1], _H[:1], _C[:1], *_weights(4)[:2])),
        Example((_X[:0], _H[:0], _C[:0], *_weights(4)), (_H[:0], _C[:0])),
    ]
)
gru_cell.example(
    lambda: [
        Example((_X, _H, *_weights(3)), (_gru(_X, _H, *_weights(3)),)),
        Example((_X[:1], _H[:1], *_weights(3)[:2]), (_gru(_X[:1], _H[:1], *_weights(3)[:2]),)),
        Example((_X[:0], _H[:0], *_weights(3)), (_H[:0],)),
    ]
)


# --- whole sequences -------------------------------------------------------------------------------------------


def _over_time(step, gates: int, x, states, weight_x, weight_h, bias_x, bias_h, reverse: bool):
    """Run ``step(part from x, part from h, *states) -> states`` over the first axis of x [time, batch, input].

    Returns the first state of every step, stacked, and then all states of the last step.
    """
    named = dict(zip("hc"[: len(states)], states, strict=True))
    _check_ranks("[time, batch, input]", x=x, **named, weight_x=weight_x, weight_h=weight_h)
    weight_h = _with_rows(weight_h, gates)
    batch, hidden = {x.shape[1], *(each.shape[0] for each in states)} - {-1}, weight_h.shape[1]
    if len(batch) > 1:
        raise ProgramError(
            f"x and the states must have one batch, not {x.type}, {', '.join(str(s.type) for s in states)}",
            "shape_mismatch",
        )
    (size,) = batch or {-1}
    x, states = shaped(x, (-1, size, -1)), [shaped(each, (size, hidden)) for each in states]
    for i, each in enumerate(states):
        x, each = agreed(x, each, (1, 0))
        weight_h, states[i] = agreed(weight_h, each, (1, 1))
    shares = _projected(x, weight_x, bias_x)
    weight_h, shares = agreed(weight_h, shares, (0, 2))
    captured = [weight_h] if bias_h is None else [weight_h, bias_h]
    b = BlockBuilder()
    before = [b.param(v.type) for v in states]
    weights = [b.param(v.type) for v in captured]
    share = b.param(TensorType(shares.shape[1:], shares.dtype))
    after = step(share, _projected(before[0], weights[0], weights[1] if len(weights) > 1 else None), *before)
    body = b.build([*after, after[0]])
    *last, recorded = loop(
        *states,
        *captured,
        array_unstack(shares),
        sub_block=body,
        carried=len(states),
        captured=len(captured),
        condition=False,
        reverse=reverse,
    )
    element = states[0]
    like = None if element.type.is_static else _of_each_time(x, element)
    every = array_join(recorded, like, shape=element.shape, dtype=element.dtype, count=x.shape[0])
    return (every, *last)


def _of_each_time(x, state):
    """Zeros [time, batch, hidden]: they tell the sizes of the result if there is no step."""
    step = x.builder.emit("roll_positions", x, shift=0, axis=0)
    return unsqueeze(fill_zeros_like(cast(step, dtype=state.dtype)), axes=(1, 2)) + fill_zeros_like(state)


@composite(outputs=("out", "h_out"))
def rnn(x, h, weight_x, weight_h, bias_x=None, bias_h=None, *, reverse: bool = False):
    """`rnn_cell` over x [time, batch, input]: h of each time [time, batch, hidden], and the last h."""
    return _over_time(_rnn_step, 1, x, [h], weight_x, weight_h, bias_x, bias_h, reverse)


@composite(outputs=("out", "h_out", "c_out"))
def lstm(x, h, c, weight_x, weight_h, bias_x=None, bias_h=None, *, reverse: bool = False):
    """`lstm_cell` over x [time, batch, input]: h of each time [time, batch, hidden], and the last h and c."""
    return _over_time(_lstm_step, 4, x, [h, c], weight_x, weight_h, bias_x, bias_h, reverse)


@composite(outputs=("out", "h_out"))
def gru(x, h, weight_x, weight_h, bias_x=None, bias_h=None, *, reverse: bool = False):
    """`gru_cell` over x [time, batch, input]: h of each time [time, batch, hidden], and the last h."""
    return _over_time(_gru_step, 3, x, [h], weight_x, weight_h, bias_x, bias_h, reverse)


def _run(cell, x, states, weights, reverse=False):
    out = np.zeros((x.shape[0], *states[0].shape))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        found = cell(x[t], *states, *weights)
        states = found if isinstance(found, tuple) else (found,)
        out[t] = states[0]
    return (out, *states)


_SEQ = np.sin(np.arange(18.0) * 2).reshape(3, 2, 3)


def _sequence_cases(cell, gates, count):
    def examples():
        weights = _weights(gates)
        states = (_H, _C)[:count]
        yield Example((_SEQ, *states, *weights), _run(cell, _SEQ, states, weights))
        yield Example(
            (_SEQ[:2], *states, *weights[:2]), _run(cell, _SEQ[:2], states, weights[:2], True), {"reverse": True}
        )
        yield Example((_SEQ[:0], *states, *weights), (np.zeros((0, 2, 2)), *states))

    return examples


rnn.example(_sequence_cases(_plain, 1, 1))
lstm.example(_sequence_cases(_lstm, 4, 2))
gru.example(_sequence_cases(_gru, 3, 1))
