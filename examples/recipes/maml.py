"""MAML: a network that learns how to learn a sine curve from five points.

Each task is a curve `a sin(x + b)` with another amplitude and phase. From the same first weights, steps of gradient
descent on five points of a curve give the weights for that curve, and the loss of these weights on other points of the
curve trains the first weights. So training differentiates gradient descent. Finn et al. 2017, section 5.1.

    python -m examples.recipes.maml --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys

import numpy as np

import backpass_client as bp
from examples.recipes.start import connected, options, progress

POINTS = 5  # to learn a curve from
TASKS = 25  # in a batch
ROUND = 50  # steps in a call
INNER_RATE = 0.01
ADAM = {"type": "adam", "learning_rate": 0.002}

Weights = dict[str, bp.Symbol]


# --8<-- [start:network]
def first_weights(hidden: int) -> Weights:
    """The parameters that all tasks start from: three layers, each a matrix and a row."""
    sizes = [(1, hidden), (hidden, hidden), (hidden, 1)]
    weights = {f"w{i}": bp.parameter(f"w{i}", size, init="he_normal") for i, size in enumerate(sizes)}
    return weights | {f"b{i}": bp.parameter(f"b{i}", [1, size[1]], init="zeros") for i, size in enumerate(sizes)}


def network(weights: Weights, x: bp.Symbol) -> bp.Symbol:
    """y [tasks, points, 1]; each task has its own weights, along their first axis."""
    h = bp.relu(x @ weights["w0"] + weights["b0"])
    h = bp.relu(h @ weights["w1"] + weights["b1"])
    return h @ weights["w2"] + weights["b2"]


# --8<-- [end:network]


# --8<-- [start:program]
def learner(hidden: int) -> bp.BuiltProgram:
    curve = bp.f32["tasks", "seen", 1]
    other = bp.f32["tasks", "other", 1]

    @bp.program
    def maml(steps: bp.i64, x: curve, y: curve, x_other: other, y_other: other):
        def loss(weights: Weights) -> bp.Symbol:
            """The sum over the tasks, so that the gradient of each is that of its own loss."""
            return ((network(weights, x) - y) ** 2).mean(1).sum()

        def descent(weights: Weights, done: bp.Symbol) -> tuple[Weights, bp.Symbol]:
            slopes = bp.grad(loss)(weights)
            return {name: w - INNER_RATE * slopes[name] for name, w in weights.items()}, done + 1

        each_task = bp.zeros_like(x[:, :1])  # [tasks, 1, 1]: a copy of the weights for each task
        weights = {name: w + each_task for name, w in first_weights(hidden).items()}
        weights, _ = bp.while_loop(lambda weights, done: done < steps, descent, (weights, 0))
        found = network(weights, x_other)
        return {"loss": ((found - y_other) ** 2).mean(), "y_found": found}

    return maml


# --8<-- [end:program]


# --8<-- [start:tasks]
def tasks(count: int, random: np.random.Generator, other: int = POINTS) -> dict[str, np.ndarray]:
    """Points of `count` curves: five to learn from and `other` more to be judged by."""
    amplitude, phase = random.uniform(0.1, 5, (count, 1, 1)), random.uniform(0, np.pi, (count, 1, 1))
    x = random.uniform(-5, 5, (count, POINTS + other, 1))
    y = amplitude * np.sin(x + phase)
    feeds = {"x": x[:, :POINTS], "y": y[:, :POINTS], "x_other": x[:, POINTS:], "y_other": y[:, POINTS:]}
    return {name: value.astype("float32") for name, value in feeds.items()}


# --8<-- [end:tasks]


# --8<-- [start:train]
def learned(session: bp.Session, seen: dict[str, np.ndarray], steps: int) -> float:
    """The loss on other points of new curves after `steps` steps on five points of each."""
    return float(session.evaluate({**seen, "steps": np.array(steps)}, ["loss"])["loss"])


def run(service: bp.Service, steps: int = 4000, hidden: int = 40, inner_steps: int = 1) -> dict[str, list[float]]:
    """Train first weights with and without inner steps; the losses on new curves after 0, 1, 5 and 10 steps."""
    unseen = tasks(500, np.random.default_rng(1), other=20)
    found = {}
    for name, inner in (("learned to learn", inner_steps), ("learned the average", 0)):
        random = np.random.default_rng(0)
        with service.create_session(learner(hidden), optimizer=ADAM, init={"seed": 0}) as session:
            for _ in (bar := progress(range(steps // ROUND), name, "calls")):
                many = tasks(ROUND * TASKS, random)
                feeds = {each: value.reshape(ROUND, TASKS, *value.shape[1:]) for each, value in many.items()}
                losses = session.step({**feeds, "steps": np.array(inner)}, batches=ROUND).loss
                bar.set_postfix(loss=f"{losses.mean():.2f}", refresh=False)
            found[name] = [learned(session, unseen, n) for n in (0, 1, 5, 10)]
    return found


# --8<-- [end:train]


def main() -> int:
    given = options(__doc__, steps=4000, hidden=40, inner_steps=1)
    with connected(given.url) as service:
        found = run(service, given.steps, given.hidden, given.inner_steps)
    print("\nmean squared error on new curves after 0, 1, 5 and 10 steps on five points")
    for name, losses in found.items():
        print(f"  {name:<20s} {'  '.join(f'{loss:.2f}' for loss in losses)}")
    return 0 if found["learned to learn"][-1] < 0.7 * found["learned the average"][-1] else 1


if __name__ == "__main__":
    sys.exit(main())
