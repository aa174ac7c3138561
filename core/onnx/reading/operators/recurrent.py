"""RNN, GRU and LSTM: the ops of the same names where these fit, otherwise a `scan` over a cell of simple ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.steps import over_steps
from core.onnx.reading.values import Tensor

Function = Callable[[Tensor], Tensor]

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}
"""The place in ONNX of each gate of the op: reset, update, new; and input, forget, cell, output."""
_CONSTANTS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None), "tanh": (None, None), "sigmoid": (None, None), "softsign": (None, None),
    "softplus": (None, None), "affine": (1.0, 0.0), "leakyrelu": (0.01, None), "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5), "elu": (1.0, None),
}  # fmt: skip
"""Defaults of alpha and beta; None for a function without that constant."""


@dataclass(slots=True)
class _Direction:
    """The weights of one direction: filter [gates * hidden, input], recurrence, biases and peepholes."""

    filter: Tensor
    recurrence: Tensor
    bias: Tensor | None
    recurrent_bias: Tensor | None
    peepholes: list[Tensor]
    functions: list[Function]
    reverse: bool


@converter("RNN", "GRU", "LSTM")
def recurrent(node: Node) -> tuple[Tensor | None, ...]:
    by_batch = bool(node.attr("layout", 0))
    x = node[0]
    if x.rank != 3:
        raise node.refuse(f"it needs [time, batch, input], not {x.type}")
    x = node.emit("transpose", x, axes=[1, 0, 2]) if by_batch else x
    direction = node.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.refuse(f"direction must be forward, reverse or bidirectional, not {direction!r}")
    count = 2 if direction == "bidirectional" else 1
    gates, hidden = _GATES[node.op], node[2].shape[-1]
    if (
        node[1].rank != 3
        or node[1].shape[:2] != (count, gates * hidden)
        or node[2].shape[:2] != (count, gates * hidden)
    ):
        raise node.refuse(
            f"the weights {node[1].type} and {node[2].type} do not fit {count} directions of {gates} gates"
        )
    if int(node.attr("hidden_size", hidden)) != hidden:
        raise node.refuse(f"hidden_size {node.attr('hidden_size')} is not that of the weights {node[2].type}")
    x = _with_batch(node, x, by_batch)
    states = [_initial(node, x, place, count, hidden, by_batch) for place in ((5, 6) if node.op == "LSTM" else (5,))]
    sides = _directions(node, direction, count)
    mask = _mask(node, x)
    results = [_run(node, x, [s[i] for s in states], side, mask) for i, side in enumerate(sides)]
    every = _joined(node, [found[0] for found in results], 1)
    lasts = [_joined(node, [found[1][k] for found in results], 0) for k in range(len(states))]
    if by_batch:
        every = node.emit("transpose", every, axes=[2, 0, 1, 3])
        lasts = [node.emit("transpose", each, axes=[1, 0, 2]) for each in lasts]
    return every, *lasts


def _joined(node: Node, parts: Sequence[Tensor], axis: int) -> Tensor:
    """The results of all directions along a new axis."""
    raised = [node.emit("unsqueeze", each, axes=[axis]) for each in parts]
    result: Tensor = raised[0] if len(raised) == 1 else node.emit("concat", *raised, axis=axis)
    return result


def _at(node: Node, x: Tensor, place: int) -> Tensor:
    """Element `place` of the first axis of x."""
    cut = x if x.shape[0] == 1 else node.emit("slice", x, axes=[0], starts=[place], ends=[place + 1])
    result: Tensor = node.emit("squeeze", cut, axes=[0])
    return result


def _with_batch(node: Node, x: Tensor, by_batch: bool) -> Tensor:
    """`x` with the size of the batch that the first states know."""
    for place in (5, 6):
        state = node.get(place)
        batch = -1 if state is None or state.rank != 3 else state.shape[0 if by_batch else 1]
        if batch != -1 and x.shape[1] == -1:
            x = node.emit("check_shape", x, shape=[x.shape[0], batch, x.shape[2]])
    return x


def _initial(node: Node, x: Tensor, place: int, count: int, hidden: int, by_batch: bool) -> list[Tensor]:
    """The first state [batch, hidden] of each direction."""
    given = node.get(place)
    if given is not None:
        given = node.emit("transpose", given, axes=[1, 0, 2]) if by_batch else given
        if given.rank != 3:
            raise node.refuse(f"the first state {given.type} does not fit {count} directions")
        if given.shape != (count, x.shape[1], hidden):
            given = node.emit("check_shape", given, shape=[count, x.shape[1], hidden])
        return [_at(node, given, i) for i in range(count)]
    if x.shape[1] != -1:
        return [node.const(np.zeros((x.shape[1], hidden)), x.dtype)] * count
    zeros = node.emit(
        "fill_constant_batch_size_like", x, shape=[-1, hidden], dtype=x.dtype, value=0.0, input_dim=1, output_dim=0
    )
    return [zeros] * count


def _mask(node: Node, x: Tensor) -> Tensor | None:
    """Whether each step [time, batch, 1] lies inside its sequence; None if all sequences are full."""
    lengths = node.get(4)
    if lengths is None or (lengths.value is not None and x.shape[0] != -1 and (lengths.value == x.shape[0]).all()):
        return None
    first = node.emit("slice", x, axes=[2], starts=[0], ends=[1])
    wide = node.emit("unsqueeze", node.cast(lengths, "int64"), axes=[1])
    result: Tensor = node.emit("less_than", node.counted(first, 0), wide)
    return result


def _directions(node: Node, direction: str, count: int) -> list[_Direction]:
    functions = _functions(node, count)
    each = len(functions) // count
    found = []
    for i in range(count):
        bias = recurrent_bias = None
        if node.given(3):
            bias, recurrent_bias = node.emit("split", _at(node, node[3], i), num=2, axis=0)
        peepholes = list(node.emit("split", _at(node, node[7], i), num=3, axis=0)) if node.given(7) else []
        found.append(
            _Direction(
                _at(node, node[1], i),
                _at(node, node[2], i),
                bias,
                recurrent_bias,
                peepholes,
                functions[i * each : (i + 1) * each],
                direction == "reverse" or i == 1,
            )
        )
    return found


def _run(
    node: Node, x: Tensor, states: list[Tensor], side: _Direction, mask: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """The state of every step [time, batch, hidden], and the last states."""
    if mask is None and _is_plain(node, side):
        weights = [
            None if w is None else _ordered(node, w)
            for w in (side.filter, side.recurrence, side.bias, side.recurrent_bias)
        ]
        every, *last = node.emit(node.op.lower(), x, *states, *weights, reverse=side.reverse)
        return every, last
    share = node.emit("matmul", x, side.filter, transpose_y=True)
    share = share if side.bias is None else node.emit("add", share, side.bias)
    cell = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}[node.op]

    def step(before: list[Tensor], elements: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        after = cell(node, side, elements[0], before)
        if mask is None:
            return after, after[0]
        inside = elements[1]
        zero = node.const(0, x.dtype)
        kept = [node.emit("where", inside, new, old) for new, old in zip(after, before, strict=True)]
        return kept, node.emit("where", inside, after[0], zero)

    return over_steps(node, step, states, [share] if mask is None else [share, mask], side.reverse)


def _is_plain(node: Node, side: _Direction) -> bool:
    """Whether the op of the program computes this direction."""
    given = [name.lower() for name in node.attr("activations", [])]
    usual = [name.lower() for name in _DEFAULTS[node.op]]
    return (
        not (given and given != usual * (len(given) // len(usual)))
        and not node.has("clip")
        and not side.peepholes
        and not node.attr("input_forget", 0)
        and (node.op != "GRU" or bool(node.attr("linear_before_reset", 0)))
    )


def _ordered(node: Node, weight: Tensor) -> Tensor:
    """The gates of a weight in the order of the op."""
    order = _ORDER[node.op]
    if len(order) == 1:
        return weight
    parts = node.emit("split", weight, num=len(order), axis=0)
    result: Tensor = node.emit("concat", *(parts[i] for i in order), axis=0)
    return result


# --- cells ---------------------------------------------------------------------------------------------------------


def _recurrent_share(node: Node, side: _Direction, h: Tensor) -> Tensor:
    share: Tensor = node.emit("matmul", h, side.recurrence, transpose_y=True)
    return share if side.recurrent_bias is None else node.emit("add", share, side.recurrent_bias)


def _rnn(node: Node, side: _Direction, share: Tensor, before: list[Tensor]) -> list[Tensor]:
    (f,) = side.functions
    return [f(node.emit("add", share, _recurrent_share(node, side, before[0])))]


def _gru(node: Node, side: _Direction, share: Tensor, before: list[Tensor]) -> list[Tensor]:
    h = before[0]
    f, g = side.functions
    xz, xr, xn = node.emit("split", share, num=3, axis=1)
    if node.attr("linear_before_reset", 0):
        hz, hr, hn = node.emit("split", _recurrent_share(node, side, h), num=3, axis=1)
        new = node.emit("mul", f(node.emit("add", xr, hr)), hn)
    else:
        rz, rr, rn = node.emit("split", side.recurrence, num=3, axis=0)
        hz, hr = (node.emit("matmul", h, r, transpose_y=True) for r in (rz, rr))
        biases: list[Tensor] = []
        if side.recurrent_bias is not None:
            biases = list(node.emit("split", side.recurrent_bias, num=3, axis=0))
            hz, hr = node.emit("add", hz, biases[0]), node.emit("add", hr, biases[1])
        reset = node.emit("mul", f(node.emit("add", xr, hr)), h)
        new = node.emit("matmul", reset, rn, transpose_y=True)
        new = node.emit("add", new, biases[2]) if biases else new
    n = g(node.emit("add", xn, new))
    z = f(node.emit("add", xz, hz))
    return [node.emit("add", n, node.emit("mul", z, node.emit("sub", h, n)))]


def _lstm(node: Node, side: _Direction, share: Tensor, before: list[Tensor]) -> list[Tensor]:
    h, c = before
    f, g, last = side.functions
    i, o, forget, new = node.emit("split", node.emit("add", share, _recurrent_share(node, side, h)), num=4, axis=1)

    def looking(gate: Tensor, place: int, cell: Tensor) -> Tensor:
        seen: Tensor = node.emit("add", gate, node.emit("mul", side.peepholes[place], cell)) if side.peepholes else gate
        return seen

    i = f(looking(i, 0, c))
    if node.attr("input_forget", 0):
        forget = node.emit("sub", node.const(1, c.dtype), i)
    else:
        forget = f(looking(forget, 2, c))
    c = node.emit("add", node.emit("mul", forget, c), node.emit("mul", i, g(new)))
    o = f(looking(o, 1, c))
    return [node.emit("mul", o, last(c)), c]


# --- activation functions ------------------------------------------------------------------------------------------


def _functions(node: Node, count: int) -> list[Function]:
    """The activation functions of all directions. Each takes its constants from the lists of alphas and betas."""
    names = node.attr("activations", []) or _DEFAULTS[node.op] * count
    if len(names) != count * len(_DEFAULTS[node.op]):
        raise node.refuse(f"{count * len(_DEFAULTS[node.op])} activations are needed, not {names}")
    alphas, betas = iter(node.attr("activation_alpha", [])), iter(node.attr("activation_beta", []))
    bound = node.optional("clip")
    found = []
    for i, name in enumerate(names):
        if name.lower() not in _CONSTANTS:
            raise node.refuse(f"the activation {name!r} is unknown")
        alpha, beta = _CONSTANTS[name.lower()]
        a = 0.0 if alpha is None else next(alphas, alpha)
        b = 0.0 if beta is None else next(betas, beta)
        of_cell = node.op == "LSTM" and i % 3 == 2  # runtimes clip gates only
        found.append(_function(node, name.lower(), a, b, None if of_cell else bound))
    return found


def _function(node: Node, name: str, alpha: float, beta: float, bound: float | None) -> Function:
    def apply(x: Tensor) -> Tensor:
        if bound is not None:
            x = node.emit("clip", x, min=-bound, max=bound)
        if name == "affine":
            found: Tensor = node.emit("scale", x, scale=alpha, bias=beta)
        elif name == "scaledtanh":
            found = node.emit("scale", node.emit("tanh", node.emit("scale", x, scale=beta)), scale=alpha)
        elif name == "leakyrelu":
            found = node.emit("leaky_relu", x, alpha=alpha)
        elif name == "thresholdedrelu":
            found = node.emit("thresholded_relu", x, threshold=alpha)
        elif name == "hardsigmoid":
            found = node.emit("hard_sigmoid", x, slope=alpha, offset=beta)
        elif name == "elu":
            found = node.emit("elu", x, alpha=alpha)
        else:
            found = node.emit(name, x)
        return found

    return apply
