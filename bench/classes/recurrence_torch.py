"""The losses of bench/classes/recurrence.py in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["COMPILED", "LOSSES"]

Tensors = dict[str, torch.Tensor]


def lstm_lengths(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """The fused LSTM over all steps; the state at the last step of a sequence does not depend on the padding."""
    x, lengths = feeds["x"], feeds["lengths"]
    start = x.new_zeros(1, x.shape[1], p["wh"].shape[1])
    weights = [p[name] for name in ("wx", "wh", "bx", "bh")]
    out, _, _ = torch.lstm(x, (start, start), weights, True, 1, 0.0, True, False, False)
    last = out[lengths - 1, torch.arange(x.shape[1])]
    return F.cross_entropy(torch.addmm(p["b"], last, p["w"]), feeds["y"])


def lstm_written(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """The cell step by step, for torch.compile, with the products of x for all steps at once."""
    x, lengths = feeds["x"], feeds["lengths"]
    seen = F.linear(x, p["wx"], p["bx"] + p["bh"]).unbind(0)
    h = c = x.new_zeros(x.shape[1], p["wh"].shape[1])
    for i, each in enumerate(seen):
        gate, forget, new, out = torch.addmm(each, h, p["wh"].T).chunk(4, 1)
        here = (lengths > i)[:, None]
        later = torch.sigmoid(forget) * c + torch.sigmoid(gate) * torch.tanh(new)
        h = torch.where(here, torch.sigmoid(out) * torch.tanh(later), h)
        c = torch.where(here, later, c)
    return F.cross_entropy(torch.addmm(p["b"], h, p["w"]), feeds["y"])


def seq2seq(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """A fused GRU reads; the writer's cell runs step by step, its attention by batched products."""
    source, target = F.embedding(feeds["source"], p["words"]), F.embedding(feeds["target"], p["words"])
    start = source.new_zeros(1, source.shape[1], p["encoder.wh"].shape[1])
    weights = [p[f"encoder.{name}"] for name in ("wx", "wh", "bx", "bh")]
    states, last = torch.gru(source, start, weights, True, 1, 0.0, True, False, False)
    return _written(p, feeds, states, last[0], target)


def seq2seq_written(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """Both cells step by step, for torch.compile."""
    source, target = F.embedding(feeds["source"], p["words"]), F.embedding(feeds["target"], p["words"])
    h = source.new_zeros(source.shape[1], p["encoder.wh"].shape[1])
    found = []
    for x in F.linear(source, p["encoder.wx"], p["encoder.bx"]).unbind(0):
        h = _gru(x, F.linear(h, p["encoder.wh"], p["encoder.bh"]), h)
        found.append(h)
    return _written(p, feeds, torch.stack(found), h, target)


def _written(
    p: Tensors, feeds: dict[str, Any], states: torch.Tensor, h: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """The loss of the decoder from the encoder's states. The part of its products that reads words is one product."""
    by_batch = states.transpose(0, 1).contiguous()
    inputs = target.shape[-1]
    of_word, of_context = p["decoder.wx"][:, :inputs], p["decoder.wx"][:, inputs:]
    context, seen = torch.zeros_like(h), []
    for x in F.linear(target, of_word, p["decoder.bx"]).unbind(0):
        h = _gru(x + context @ of_context.T, F.linear(h, p["decoder.wh"], p["decoder.bh"]), h)
        attention = torch.bmm(by_batch, h[:, :, None]).softmax(1)
        context = torch.bmm(attention.transpose(1, 2), by_batch)[:, 0]
        seen.append(torch.cat((h, context), 1))
    logits = torch.stack(seen) @ p["out"]
    return F.cross_entropy(logits.flatten(0, 1), feeds["following"].flatten())


def _gru(x: torch.Tensor, state: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """The new state from the products of all gates with the input and with the state."""
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), state.chunk(3, 1)
    z = torch.sigmoid(xz + hz)
    new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return new + z * (h - new)


def language_model(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """The fused LSTM of two layers."""
    x = F.embedding(feeds["x"], p["words"])
    start = x.new_zeros(2, x.shape[1], x.shape[2])
    weights = [p[f"{name}{i}"] for i in range(2) for name in ("wx", "wh", "bx", "bh")]
    out, _, _ = torch.lstm(x, (start, start), weights, True, 2, 0.0, True, False, False)
    return F.cross_entropy((out @ p["out"]).flatten(0, 1), feeds["y"].flatten())


def language_model_written(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """The cells step by step, for torch.compile, with the products of a layer's inputs for all steps at once."""
    x = F.embedding(feeds["x"], p["words"])
    for i in range(2):
        h = c = x.new_zeros(x.shape[1], x.shape[2])
        found = []
        for each in F.linear(x, p[f"wx{i}"], p[f"bx{i}"] + p[f"bh{i}"]).unbind(0):
            gate, forget, new, out = torch.addmm(each, h, p[f"wh{i}"].T).chunk(4, 1)
            c = torch.sigmoid(forget) * c + torch.sigmoid(gate) * torch.tanh(new)
            h = torch.sigmoid(out) * torch.tanh(c)
            found.append(h)
        x = torch.stack(found)
    return F.cross_entropy((x @ p["out"]).flatten(0, 1), feeds["y"].flatten())


LOSSES = {"lstm_lengths": lstm_lengths, "seq2seq": seq2seq, "language_model": language_model}
COMPILED = {
    "lstm_lengths": lstm_written,
    "seq2seq": seq2seq_written,
    "language_model": language_model_written,
}
"""Family of workloads -> its loss for torch.compile, where that is another one."""
