"""LSTM with lengths: tell lines of Python code from lines of English, letter by letter, in both directions.

The lines have 8 to 64 characters. A batch is an array of the width of its longest line, with the length of each line
beside it: the padding changes neither a result nor a gradient.

    python -m examples.recipes.lstm --url http://127.0.0.1:8080
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Sequence
from pydoc_data import topics

import numpy as np

import backpass_client as bp
from examples.recipes.start import connected, options, progress

SHORTEST, LONGEST = 8, 64
WIDTHS = 16  # batches are padded to a multiple of this width, because a step with code for its own width is faster
CHARACTERS = 128  # ASCII; 0 is the padding
SOURCES = (argparse, ast, inspect, textwrap)
BATCH = 32


# --8<-- [start:model]
def classifier(features: int = 16, hidden: int = 32) -> bp.BuiltProgram:
    @bp.program
    def network(text: bp.i64["batch", "time"], lengths: bp.i64["batch"], label: bp.i64["batch"]):
        x = bp.nn.Embedding(CHARACTERS, features)(text).named("embedded")
        _, (h, _) = bp.nn.LSTM(hidden, bidirectional=True)(x, lengths)
        logits = bp.nn.Linear(2, name="head")(bp.concat([h[0], h[1]], axis=1))  # the last state of each direction
        hits = bp.cast(bp.equal(bp.argmax(logits), label), dtype="float32")
        loss = bp.softmax_with_cross_entropy(logits, label, reduction="mean")
        return {"loss": loss, "accuracy": hits.mean(), "logits": logits}

    return network


# --8<-- [end:model]


# --8<-- [start:batch]
def batch(lines: Sequence[str]) -> dict[str, np.ndarray]:
    """The feeds `text` [batch, time] and `lengths` [batch] of some lines."""
    longest = max(map(len, lines))
    text = np.zeros((len(lines), -(-longest // WIDTHS) * WIDTHS), "int64")
    for row, line in zip(text, lines, strict=True):
        row[: len(line)] = [ord(character) for character in line]
    return {"text": text, "lengths": np.array([len(line) for line in lines])}


# --8<-- [end:batch]


def load() -> tuple[list[str], list[str]]:
    """(English, code): different lines of Python's reference manual, and of modules of its library."""
    pages = "\n".join(topics.topics.values()).splitlines()
    english = {line.strip() for line in pages if not line.startswith("     ")}  # further indented lines are code
    code = {
        line.strip() for module in SOURCES for line in ast.unparse(ast.parse(inspect.getsource(module))).split("\n")
    }
    return usable(english), usable(code)


def usable(lines: set[str]) -> list[str]:
    return sorted(line for line in lines if SHORTEST <= len(line) <= LONGEST and line.isascii())


# --8<-- [start:train]
def run(service: bp.Service, steps: int = 1500, hidden: int = 32) -> dict[str, float]:
    """Train; returns the accuracy on lines that were not in training, before and after."""
    random = np.random.default_rng(0)
    groups = [random.permutation(lines) for lines in load()]
    train, test = [g[200:] for g in groups], [g[:200] for g in groups]

    def drawn(groups: Sequence[np.ndarray], label: np.ndarray) -> dict[str, np.ndarray]:
        return {**batch([random.choice(groups[each]) for each in label]), "label": label}

    unseen = drawn(test, np.arange(400) % 2)
    with service.create_session(
        classifier(hidden=hidden), optimizer={"type": "adam", "learning_rate": 0.005}, clip_norm=1.0
    ) as session:
        before = session.evaluate(unseen, ["accuracy"])["accuracy"].item()
        for _ in (bar := progress(range(steps), "lstm")):
            answer = session.step(drawn(train, random.integers(0, 2, BATCH)))
            bar.set_postfix(loss=f"{answer.loss:.3f}", refresh=False)
        after = session.evaluate(unseen, ["accuracy"])["accuracy"].item()
        for line in ("return sorted(names, key=len)", "names are returned in sorted order"):
            logits = session.evaluate(batch([line]), ["logits"])["logits"][0]
            print(f"{line!r} is {'code' if logits[1] > logits[0] else 'English'}")
    return {"before": before, "after": after}


# --8<-- [end:train]


# --8<-- [start:padding]
def padding_gradient(service: bp.Service) -> float:
    """The largest gradient of the loss with respect to an embedded character behind the end of its line."""
    program = service.programs.create(classifier())
    feeds = {**batch(["x = 1", "a sentence of some length"]), "label": np.array([1, 0])}
    random = np.random.default_rng(0)
    values = {name: random.normal(size=type.shape).astype("float32") for name, type in program.built.parameters.items()}
    found = program.gradients(targets=["loss"], inputs=["embedded"], feeds=feeds, parameters=values)
    behind = np.arange(feeds["text"].shape[1]) >= feeds["lengths"][:, None]
    return float(np.abs(found.gradients["embedded"][behind]).max())


# --8<-- [end:padding]


def main() -> int:
    given = options(__doc__, steps=1500, hidden=32)
    with connected(given.url) as service:
        print(f"largest gradient behind the end of a line: {padding_gradient(service)}")
        reached = run(service, given.steps, given.hidden)
    print(f"accuracy on 400 unseen lines: {reached['before']:.3f} -> {reached['after']:.3f}")
    return 0 if reached["after"] > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
