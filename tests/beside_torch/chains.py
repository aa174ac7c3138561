"""Losses over chains, alignments and trees, by explicit enumeration of all paths."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np

from tests.beside_torch.installed import F, torch
from tests.beside_torch.losses import WAYS, reduced
from tests.beside_torch.sample import Inputs, case

__all__ = ["MORE", "OPS"]


def hierarchical(x: Any, label: Any, weight: Any, bias: Any, table: Any, code: Any, num_classes: int) -> Any:
    """The decisions on the path to a leaf of a complete tree, from the leaf upwards; or the given paths."""
    losses = []
    for i, k in enumerate(label.reshape(-1).tolist()):
        if table is None:
            c = k + num_classes
            way = [((c >> j) // 2 - 1, (c >> j) % 2) for j in range(c.bit_length() - 1)]
        else:
            way = [(n, t) for n, t in zip(table[i].tolist(), code[i].tolist(), strict=True) if n >= 0]
        nodes, turns = [n for n, _ in way], torch.tensor([float(t) for _, t in way], dtype=x.dtype)
        score = weight[nodes] @ x[i] + (0 if bias is None else bias[nodes])
        losses.append(F.binary_cross_entropy_with_logits(score, turns, reduction="sum"))
    return torch.stack(losses).reshape(label.shape) if losses else x.sum(1)


def nce(x: Any, label: Any, weight: Any, bias: Any, samples: Any, key: Any, sampler: str) -> Any:
    n, m = weight.shape[0], samples.shape[0]
    k = torch.arange(n, dtype=x.dtype)
    chance = torch.full_like(k, 1 / n) if sampler == "uniform" else torch.log((k + 2) / (k + 1)) / math.log(n + 1)
    scores = F.linear(x, weight, bias) - torch.log(m * chance)
    true = scores.gather(1, label.reshape(-1, 1)).squeeze(1)
    return (-F.logsigmoid(true) - F.logsigmoid(-scores[:, samples]).sum(1)).reshape(label.shape)


def chain_score(emission: Any, transition: Any, path: list[int], i: int) -> Any:
    if not path:
        return (emission.sum() + transition.sum()) * 0
    total = transition[0, path[0]] + transition[1, path[-1]]
    for t, k in enumerate(path):
        total = total + emission[i, t, k]
    for a, b in pairwise(path):
        total = total + transition[2 + a, b]
    return total


def counts(emission: Any, lengths: Any) -> list[int]:
    return [emission.shape[1]] * emission.shape[0] if lengths is None else lengths.tolist()


def all_scores(emission: Any, transition: Any, i: int, n: int) -> tuple[list[tuple[int, ...]], Any]:
    """Every sequence of labels with its score."""
    paths = list(product(range(emission.shape[2]), repeat=n))
    return paths, torch.stack([chain_score(emission, transition, list(p), i) for p in paths])


def stacked(values: list[Any], like: Any) -> Any:
    return torch.stack(values) if values else like.sum((1, 2))


def crf_partition(emission: Any, transition: Any, lengths: Any) -> Any:
    each = [
        torch.logsumexp(all_scores(emission, transition, i, n)[1], 0) for i, n in enumerate(counts(emission, lengths))
    ]
    return stacked(each, emission)


def crf_score(emission: Any, transition: Any, label: Any, lengths: Any) -> Any:
    each = [
        chain_score(emission, transition, label[i, :n].tolist(), i) for i, n in enumerate(counts(emission, lengths))
    ]
    return stacked(each, emission)


def viterbi(emission: Any, transition: Any, lengths: Any) -> Any:
    best, ways = [], torch.zeros(emission.shape[:2], dtype=torch.int64)
    for i, n in enumerate(counts(emission, lengths)):
        paths, scores = all_scores(emission, transition, i, n)
        at = int(torch.argmax(scores))
        best.append(scores[at])
        ways[i, :n] = torch.tensor(paths[at], dtype=torch.int64)
    return stacked(best, emission), ways


def ctc(
    log_probs: Any, label: Any, input_lengths: Any, label_lengths: Any, blank: int, zero_infinity: bool, reduction: str
) -> Any:
    """F.ctc_loss gives the gradient by the logits of log_probs; this function adds up all alignments instead."""
    losses = []
    for i, (t, n) in enumerate(zip(input_lengths.tolist(), label_lengths.tolist(), strict=True)):
        wanted = label[i, :n].tolist()
        ways = []
        for path in product(range(log_probs.shape[2]), repeat=t):
            merged = [k for j, k in enumerate(path) if j == 0 or path[j - 1] != k]
            if [k for k in merged if k != blank] == wanted:
                ways.append(log_probs[torch.arange(t), i, list(path)].sum())
        nothing = 0 * log_probs[:, i].sum() + (0.0 if zero_infinity else math.inf)
        losses.append(-torch.logsumexp(torch.stack(ways), 0) if ways else nothing)
    each = torch.stack(losses) if losses else log_probs.sum((0, 2))
    if reduction == "mean":
        return (each / label_lengths.clamp(min=1)).mean() if losses else each.sum()
    return reduced(each, reduction)


OPS: dict[str, Callable[..., Any]] = {
    "crf_partition": crf_partition,
    "crf_score": crf_score,
    "ctc_loss": ctc,
    "hierarchical_sigmoid": hierarchical,
    "linear_chain_crf": lambda emission, transition, label, lengths: (
        crf_partition(emission, transition, lengths) - crf_score(emission, transition, label, lengths)
    ),
    "nce": nce,
    "viterbi_decode": viterbi,
}


MORE: dict[str, list[Inputs]] = {
    "crf_partition": [case((2, 4, 3), (5, 3), np.array([4, 2]))],
    "crf_score": [case((2, 4, 3), (5, 3), np.array([[0, 2, 1, 1], [2, 2, 0, 0]]), np.array([4, 2]))],
    "linear_chain_crf": [case((2, 4, 3), (5, 3), np.array([[0, 2, 1, 1], [2, 2, 0, 0]]), np.array([4, 2]))],
    "viterbi_decode": [case((3, 4, 3), (5, 3), np.array([4, 2, 3])), case((2, 3, 2), (4, 2))],
    "ctc_loss": [
        case(
            (5, 2, 3),
            np.array([[1, 2, 1], [2, 2, 0]]),
            np.array([5, 4]),
            np.array([3, 2]),
            span=(-3, -0.2),
            reduction=r,
        )
        for r in WAYS
    ],
    "hierarchical_sigmoid": [case((4, 3), np.array([0, 5, 3, 2]), (5, 3), (5,), num_classes=6)],
    "nce": [
        case((3, 4), np.array([[1], [4], [0]]), (6, 4), (6,), np.array([5, 1, 1]), sampler=s)
        for s in ("uniform", "log_uniform")
    ],
}
