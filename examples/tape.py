"""The tape of `loss = softmax(W_2 (W_1 x), label)`: three forward ops, and the ops of their backward pass.

The example registers the program, prints the backward pass that the service wrote, requests the gradients, and compares
them with the formula.

    python -m examples.tape --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from examples.client import Backpass, arguments
from examples.models import tape


def line(op: dict[str, Any]) -> str:
    read = ", ".join(name for names in op.get("inputs", {}).values() for name in names)
    written = ", ".join(name for names in op["outputs"].values() for name in names)
    return f"{op['type']:<28s} {read}  ->  {written}"


def by_hand(x: np.ndarray, label: int, w1: np.ndarray, w2: np.ndarray) -> dict[str, np.ndarray]:
    """The gradients by formula: d loss / d pred is softmax(pred) minus the one-hot label; products transpose it."""
    h = w1 @ x
    pred = w2 @ h
    d_pred = np.exp(pred - pred.max())
    d_pred /= d_pred.sum()
    d_pred[label] -= 1
    return {"W_1": w2.T @ d_pred @ x.T, "W_2": d_pred @ h.T}


def main() -> int:
    given = arguments(__doc__)
    random = np.random.default_rng(0)
    x, label = random.normal(size=(20, 1)), 3
    parameters = {"W_1": random.normal(size=(20, 20)) / 4, "W_2": random.normal(size=(10, 20)) / 4}
    with Backpass(given.url) as service:
        known = service.register(tape())
        backward = service.call("GET", f"/v1/programs/{known}/backward?loss=loss")
        feeds = {"x": x, "label": np.array([label])}
        loss, gradients, _ = service.gradients(known, "loss", feeds, parameters)

    ops = backward["program"]["blocks"][0]["ops"]
    forward = len(tape()["blocks"][0]["ops"])
    print("recorded:")
    for op in ops[:forward]:
        print("  " + line(op))
    print("played back:")
    for op in ops[forward:]:
        print("  " + line(op))
    print(f"\nloss {loss:.6f}")
    worst = 0.0
    for name, wanted in by_hand(x, label, parameters["W_1"], parameters["W_2"]).items():
        error = float(np.abs(gradients[name] - wanted).max())
        worst = max(worst, error)
        print(f"d loss / d {name}: norm {np.linalg.norm(gradients[name]):.6f}, differs from the formula by {error:.1e}")
    return 0 if worst < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main())
