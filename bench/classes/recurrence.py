"""Recurrent nets whose number of steps is an open size of their feeds."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from bench.classes.made import Symbols, made, normal, zeros
from bench.workload import Arrays, Workload

__all__ = ["WORKLOADS", "language_model", "lstm_lengths", "seq2seq"]


def lstm_lengths(steps: int = 50, batch: int = 32, inputs: int = 64, hidden: int = 128, classes: int = 10) -> Workload:
    """Padded sequences of 10 to `steps` steps; the last state that an LSTM has of each is classified."""
    rng = np.random.default_rng(10)
    feeds = {
        "x": normal(rng, steps, batch, inputs),
        "lengths": np.sort(rng.integers(10, steps + 1, batch))[::-1].copy(),
        "y": rng.integers(0, classes, batch),
    }
    feeds["lengths"][0] = steps
    parameters = {
        "wx": normal(rng, 4 * hidden, inputs, scale=inputs**-0.5),
        "wh": normal(rng, 4 * hidden, hidden, scale=hidden**-0.5),
        "bx": zeros(4 * hidden),
        "bh": zeros(4 * hidden),
        "w": normal(rng, hidden, classes, scale=hidden**-0.5),
        "b": zeros(classes),
    }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        live = bp.steps_within(bp.transpose(given["x"], axes=[1, 0, 2]), given["lengths"])
        live = bp.unsqueeze(bp.transpose(live, axes=[1, 0]), axes=[2])

        def step(before, seen):
            h, c = before
            x, here = seen
            new_h, new_c = bp.lstm_cell(x, h, c, p["wx"], p["wh"], p["bx"], p["bh"])
            return (bp.where(here, new_h, h), bp.where(here, new_c, c)), ()

        start = bp.fill_constant(shape=[batch, hidden], value=0.0, dtype="float32")
        (h, _), _ = bp.scan(step, (start, start), (given["x"], live))
        return bp.softmax_with_cross_entropy(h @ p["w"] + p["b"], given["y"], reduction="mean")

    return made("lstm_lengths", loss, feeds, parameters, {"x": {0: "time"}})


def seq2seq(steps: int = 30, batch: int = 32, vocabulary: int = 1000, inputs: int = 64, hidden: int = 128) -> Workload:
    """A GRU reads a sentence, another one writes its translation and attends to all states of the first."""
    rng = np.random.default_rng(11)
    words = lambda: rng.integers(0, vocabulary, (steps, batch))
    feeds = {"source": words(), "target": words(), "following": words()}
    parameters: Arrays = {
        "words": normal(rng, vocabulary, inputs, scale=0.3),
        "out": normal(rng, 2 * hidden, vocabulary, scale=0.05),
    }
    for net, read in (("encoder", inputs), ("decoder", inputs + hidden)):
        parameters |= {
            f"{net}.wx": normal(rng, 3 * hidden, read, scale=read**-0.5),
            f"{net}.wh": normal(rng, 3 * hidden, hidden, scale=hidden**-0.5),
            f"{net}.bx": zeros(3 * hidden),
            f"{net}.bh": zeros(3 * hidden),
        }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        cell = lambda net, x, h: bp.gru_cell(x, h, *(p[f"{net}.{name}"] for name in ("wx", "wh", "bx", "bh")))

        def encode(h, x):
            h = cell("encoder", x, h)
            return h, h

        start = bp.fill_constant(shape=[batch, hidden], value=0.0, dtype="float32")
        last, states = bp.scan(encode, start, bp.embedding(p["words"], given["source"]))
        states = bp.transpose(states, axes=[1, 0, 2])

        def decode(before, x):
            h, context = before
            h = cell("decoder", bp.concat([x, context], axis=1), h)
            scores = bp.matmul(states, bp.unsqueeze(h, axes=[2]))
            attention = bp.softmax(bp.squeeze(scores, axes=[2]))
            context = bp.squeeze(bp.matmul(bp.unsqueeze(attention, axes=[1]), states), axes=[1])
            return (h, context), bp.concat([h, context], axis=1)

        _, seen = bp.scan(decode, (last, start), bp.embedding(p["words"], given["target"]))
        return bp.softmax_with_cross_entropy(seen @ p["out"], given["following"], reduction="mean")

    time = {"source": {0: "read"}, "target": {0: "written"}, "following": {0: "written"}}
    return made("seq2seq", loss, feeds, parameters, time)


def language_model(steps: int = 35, batch: int = 20, vocabulary: int = 2000, hidden: int = 256) -> Workload:
    """Two layers of LSTM predict each next word; the weights are much larger than the states that they multiply."""
    rng = np.random.default_rng(12)
    words = lambda: rng.integers(0, vocabulary, (steps, batch))
    feeds = {"x": words(), "y": words()}
    parameters: Arrays = {
        "words": normal(rng, vocabulary, hidden, scale=0.1),
        "out": normal(rng, hidden, vocabulary, scale=hidden**-0.5),
    }
    for i in range(2):
        parameters |= {
            f"wx{i}": normal(rng, 4 * hidden, hidden, scale=hidden**-0.5),
            f"wh{i}": normal(rng, 4 * hidden, hidden, scale=hidden**-0.5),
            f"bx{i}": zeros(4 * hidden),
            f"bh{i}": zeros(4 * hidden),
        }

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        seen = bp.embedding(p["words"], given["x"])
        start = bp.fill_constant(shape=[batch, hidden], value=0.0, dtype="float32")
        for i in range(2):
            weights = [p[f"{name}{i}"] for name in ("wx", "wh", "bx", "bh")]

            def step(before, x, weights=weights):
                h, c = bp.lstm_cell(x, *before, *weights)
                return (h, c), h

            _, seen = bp.scan(step, (start, start), seen)
        return bp.softmax_with_cross_entropy(seen @ p["out"], given["y"], reduction="mean")

    return made("language_model", loss, feeds, parameters, {"x": {0: "time"}, "y": {0: "time"}})


WORKLOADS = {"lstm_lengths": lstm_lengths, "seq2seq": seq2seq, "language_model": language_model}
