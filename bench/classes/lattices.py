"""Losses that add up over all paths through a lattice."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from bench.classes.made import Symbols, made, normal, zeros
from bench.workload import Workload

__all__ = ["WORKLOADS", "crf", "ctc"]


def ctc(steps: int = 100, batch: int = 16, inputs: int = 40, hidden: int = 128, classes: int = 29) -> Workload:
    """A small speech model: two convolutions over time, a linear layer, and the CTC loss of 10 to 20 letters."""
    rng = np.random.default_rng(40)
    feeds = {
        "x": normal(rng, batch, inputs, steps),
        "label": rng.integers(1, classes, (batch, 20)),
        "times": rng.integers(80, steps + 1, batch),
        "letters": rng.integers(10, 21, batch),
    }
    parameters = {
        "k1": normal(rng, hidden, inputs, 5, scale=(5 * inputs) ** -0.5), "b1": zeros(hidden),
        "k2": normal(rng, hidden, hidden, 5, scale=(5 * hidden) ** -0.5), "b2": zeros(hidden),
        "w": normal(rng, hidden, classes, scale=hidden**-0.5), "b": zeros(classes),
    }  # fmt: skip

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        h = bp.relu(bp.conv1d(given["x"], p["k1"], p["b1"], paddings=[2]))
        h = bp.relu(bp.conv1d(h, p["k2"], p["b2"], paddings=[2]))
        logs = bp.log_softmax(bp.transpose(h, axes=[2, 0, 1]) @ p["w"] + p["b"])
        return bp.ctc_loss(logs, given["label"], given["times"], given["letters"])

    return made("ctc", loss, feeds, parameters)


def crf(steps: int = 50, batch: int = 32, inputs: int = 100, hidden: int = 64, tags: int = 20) -> Workload:
    """A tagger: a dense layer and a linear-chain CRF over sentences of 10 to `steps` words."""
    rng = np.random.default_rng(41)
    feeds = {
        "x": normal(rng, batch, steps, inputs),
        "label": rng.integers(0, tags, (batch, steps)),
        "lengths": rng.integers(10, steps + 1, batch),
    }
    parameters = {
        "w1": normal(rng, inputs, hidden, scale=inputs**-0.5), "b1": zeros(hidden),
        "w2": normal(rng, hidden, tags, scale=hidden**-0.5), "b2": zeros(tags),
        "transition": normal(rng, tags + 2, tags, scale=0.3),
    }  # fmt: skip

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        emission = bp.tanh(given["x"] @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        return bp.mean(bp.linear_chain_crf(emission, p["transition"], given["label"], given["lengths"]))

    return made("crf", loss, feeds, parameters)


WORKLOADS = {"ctc": ctc, "crf": crf}
