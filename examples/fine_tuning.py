"""Fine-tuning: a network that knows the ten digits learns odd and even from a few examples.

A session trains an MLP on handwritten digits, and a checkpoint keeps it as a file. Two networks with a new last layer
then learn from four examples of each digit whether it is odd: one starts from the checkpoint, the other from random
weights.

    python -m examples.fine_tuning --url http://127.0.0.1:8080
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import backpass_client as bp
from examples.client import arguments
from examples.digits import Digits, load
from examples.models import digits_mlp

EXAMPLES = 4  # of each digit to learn from
BATCH = 64
ADAM = {"type": "adam", "learning_rate": 0.005}


def parity(data: Digits, count: int | None = None) -> Digits:
    """The digits labelled 1 if odd, else 0; `count` of each digit, or all."""
    rows = np.concatenate([np.flatnonzero(data.y == digit)[:count] for digit in range(10)])
    return Digits(data.x[rows], data.y[rows] % 2)


def with_new_head(program: dict[str, Any]) -> dict[str, Any]:
    """The same program with other names for its last layer: a checkpoint of `program` has no values for them."""
    changed: dict[str, Any] = json.loads(json.dumps(program).replace('"w2"', '"head.w"').replace('"b2"', '"head.b"'))
    return changed


def train(session: bp.Session, data: Digits, steps: int) -> None:
    """Train on random batches, in one call."""
    rows = np.random.default_rng(0).integers(0, len(data), (steps, BATCH))
    session.step({"x": data.x[rows], "y": data.y[rows]}, batches=steps)


def accuracy(session: bp.Session, data: Digits) -> float:
    return float(session.evaluate({"x": data.x, "y": data.y}, ["accuracy"])["accuracy"])


def main() -> int:
    given = arguments(__doc__, steps=300, tuning_steps=30)
    examples, test = load()
    with bp.Service(given.url) as service, tempfile.TemporaryDirectory() as folder:
        program = bp.Program(service, digits_mlp())
        with program.session("loss", optimizer=ADAM) as session:
            train(session, examples, given.steps)
            print(f"ten digits: accuracy {accuracy(session, test):.3f} after {given.steps} steps")
            kept = session.checkpoint("ten digits", ttl=3600)

        file = kept.download(Path(folder) / "digits.safetensors")
        print(f"checkpoint: {file.stat().st_size} bytes with {', '.join(sorted(kept.arrays()))}")

        tuned = bp.Program(service, with_new_head(digits_mlp()))
        few, unseen = parity(examples, EXAMPLES), parity(test)
        try:
            tuned.session("loss", from_checkpoint=kept.id)
        except bp.Refused as refused:
            print(f"without options: {refused}")
        reached = {}
        start = {"from_checkpoint": kept.id, "missing": "initialize", "extra": "ignore"}
        for name, settings in (("from the checkpoint", start), ("from random weights", {})):
            with tuned.session("loss", optimizer=ADAM, **settings) as session:
                train(session, few, given.tuning_steps)
                reached[name] = accuracy(session, unseen)
            print(f"odd or even: accuracy {reached[name]:.3f} {name}, {EXAMPLES} examples of each digit")
        kept.delete()
    return 0 if reached["from the checkpoint"] > reached["from random weights"] else 1


if __name__ == "__main__":
    sys.exit(main())
