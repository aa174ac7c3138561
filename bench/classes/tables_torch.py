"""The losses of bench/classes/tables.py in PyTorch, of the rows that a step reads from its tables."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["LOSSES"]

Tensors = dict[str, torch.Tensor]


def word2vec(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    score = torch.bmm(p["contexts"], p["centres"][:, :, None])[:, :, 0]
    return -F.logsigmoid(score * feeds["sign"]).sum()


def factorisation(p: Tensors, feeds: dict[str, Any]) -> torch.Tensor:
    vectors = p["vectors"]
    pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
    return F.binary_cross_entropy_with_logits(p["weights"].sum((1, 2)) + pairs + p["bias"], feeds["y"])


LOSSES = {"word2vec": word2vec, "factorisation": factorisation}
