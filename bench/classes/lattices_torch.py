"""The losses of bench/classes/lattices.py in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["LOSSES"]

Tensors = dict[str, torch.Tensor]


def ctc(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    h = F.conv1d(feeds["x"], p["k1"], p["b1"], padding=2).relu()
    h = F.conv1d(h, p["k2"], p["b2"], padding=2).relu()
    logs = (h.permute(2, 0, 1) @ p["w"] + p["b"]).log_softmax(-1)
    return F.ctc_loss(logs, feeds["label"], feeds["times"], feeds["letters"])


def crf(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    """Forward algorithm over all sentences at once; a sentence that has ended keeps its sums."""
    label, lengths = feeds["label"], feeds["lengths"]
    emission = (torch.addmm(p["b1"], feeds["x"].flatten(0, 1), p["w1"]).tanh() @ p["w2"] + p["b2"]).view(
        *label.shape, -1
    )
    first, last, move = p["transition"][0], p["transition"][1], p["transition"][2:]
    within = torch.arange(label.shape[1]) < lengths[:, None]
    sums = first + emission[:, 0]
    for t in range(1, label.shape[1]):
        new = torch.logsumexp(sums[:, :, None] + move, 1) + emission[:, t]
        sums = torch.where(within[:, t, None], new, sums)
    all_paths = torch.logsumexp(sums + last, 1)
    seen = emission.gather(2, label[..., None])[..., 0]
    seen = torch.where(within, seen, 0.0).sum(1)
    moved = torch.where(within[:, 1:], move[label[:, :-1], label[:, 1:]], 0.0).sum(1)
    ends = first[label[:, 0]] + last[label.gather(1, lengths[:, None] - 1)[:, 0]]
    return (all_paths - seen - moved - ends).mean()


LOSSES = {"ctc": ctc, "crf": crf}
