"""Private learning: no single example moves the weights by more than a bound, and noise hides what it did.

Each step computes the gradient of every example, shortens those that are longer than the bound, adds them up and adds
noise (DP-SGD, Abadi et al. 2016). All of it is part of the program; a session trains it like any other.

    python -m examples.recipes.private --url http://127.0.0.1:8080
"""

from __future__ import annotations

import math
import sys

import numpy as np

import backpass_client as bp
from examples.digits import Digits, load
from examples.recipes.start import connected, options, progress

NAMES = "hidden.weight", "hidden.bias", "out.weight", "out.bias"
BOUND = 1.0  # the length of the longest gradient that counts as it is
BATCH = 128  # examples in a batch, on average
DELTA = 1e-4  # the chance that the bound on the privacy loss does not hold
SGD = {"type": "sgd", "learning_rate": 2.0}


# --8<-- [start:network]
def loss(w: dict[str, bp.Symbol], image: bp.Symbol, digit: bp.Symbol) -> bp.Symbol:
    """The cross entropy of one image [64]."""
    h = bp.tanh(image @ w["hidden.weight"] + w["hidden.bias"])
    logits = h @ w["out.weight"] + w["out.bias"]
    return bp.logsumexp(logits) - bp.gather(logits, digit)


# --8<-- [end:network]


# --8<-- [start:program]
def private(hidden: int, noise: float) -> bp.BuiltProgram:
    """noise: its standard deviation, in `BOUND`."""

    @bp.program
    def private_digits(image: bp.f32["batch", 64], digit: bp.i64["batch"]):
        shapes = [64, hidden], [hidden], [hidden, 10], [10]
        weights = {name: bp.parameter(name, shape) for name, shape in zip(NAMES, shapes, strict=True)}

        def add(total, example):
            value, slopes = bp.value_and_grad(loss)(weights, *example)
            length = bp.sqrt(sum((each**2).sum() for each in slopes.values()))
            share = BOUND / bp.maximum(length, BOUND)
            return {name: total[name] + share * slopes[name] for name in weights}, (value, length)

        zeros = {name: bp.zeros_like(each) for name, each in weights.items()}
        total, (losses, lengths) = bp.scan(add, zeros, (image, digit))
        surrogate = 0.0
        for name, weight in weights.items():
            noisy = total[name] + BOUND * noise * bp.gaussian_random_like(total[name])
            mean = bp.stop_gradient(noisy / BATCH)  # of the expected batch: the size of this one is private, too
            surrogate = surrogate + (mean * weight).sum()  # its gradient is `mean`
        return {"surrogate": surrogate, "losses": losses, "lengths": lengths}

    return private_digits


# --8<-- [end:program]


# --8<-- [start:privacy]
def epsilon(noise: float, share: float, steps: int) -> float:
    """The privacy loss of `steps` steps on random batches, with `DELTA`: exp(epsilon) bounds how much more likely one
    example makes any result.

    share: the chance of each example to be in a batch. Mironov, Talwar and Zhang 2019, with integer orders.
    """

    def spent(order: int) -> float:
        terms = [
            math.log(math.comb(order, k))
            + (order - k) * math.log1p(-share)
            + k * math.log(share)
            + k * (k - 1) / (2 * noise**2)
            for k in range(order + 1)
        ]
        most = max(terms)
        step = (most + math.log(sum(math.exp(each - most) for each in terms))) / (order - 1)
        return steps * step + math.log(1 / DELTA) / (order - 1)

    return min(map(spent, range(2, 100)))


# --8<-- [end:privacy]


# --8<-- [start:train]
def run(service: bp.Service, steps: int = 300, hidden: int = 32, noise: float = 1.0) -> dict[str, float]:
    """Train on random batches; the accuracy on the test set, and the privacy loss."""
    examples, test = load()
    random, share = np.random.default_rng(0), BATCH / len(examples)
    built = private(hidden, noise)
    with service.create_session(built, loss="surrogate", optimizer=SGD, init={"seed": 0}) as session:
        for _ in (bar := progress(range(steps), "private")):
            chosen = random.random(len(examples)) < share  # each example by itself: batches differ in size
            step = session.step(_feeds(examples, chosen), fetch=["losses", "lengths"])
            losses, lengths = step.fetched["losses"], step.fetched["lengths"]
            shortened = float((lengths > BOUND).mean())
            bar.set_postfix(loss=f"{losses.mean():.3f}", shortened=f"{shortened:.0%}", refresh=False)
        weights = session.parameters()
    h = np.tanh(test.x @ weights["hidden.weight"] + weights["hidden.bias"])
    found = (h @ weights["out.weight"] + weights["out.bias"]).argmax(1)
    return {"accuracy": float((found == test.y).mean()), "epsilon": epsilon(noise, share, steps)}


def _feeds(examples: Digits, chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {"image": examples.x[chosen], "digit": examples.y[chosen]}


# --8<-- [end:train]


def main() -> int:
    given = options(__doc__, steps=300, hidden=32, noise=1.0)
    with connected(given.url) as service:
        found = run(service, given.steps, given.hidden, given.noise)
    print(f"\ntest accuracy {found['accuracy']:.3f} with epsilon {found['epsilon']:.1f}, delta {DELTA:g}")
    return 0 if found["accuracy"] > 0.85 else 1


if __name__ == "__main__":
    sys.exit(main())
