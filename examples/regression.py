"""Fit a surface with a network of scalar neurons, in 200 steps of gradient descent.

Every weight is a scalar variable of the program, as in a computational graph on paper. The network has two inputs,
tanh neurons, and one linear output.

    python -m examples.regression --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np

from examples.client import Backpass, arguments
from examples.models import scalar_network

SIZES = (2, 8, 8, 1)


def surface(examples: int = 128, seed: int = 0) -> dict[str, np.ndarray]:
    """Random points of the square [-1, 1] x [-1, 1], and the height of a smooth surface with noise at each."""
    random = np.random.default_rng(seed)
    x0, x1 = random.uniform(-1, 1, (2, examples))
    height = np.sin(2 * x0) * np.cos(x1) + 0.5 * x1**2
    return {"x0": x0, "x1": x1, "y": height + random.normal(0, 0.02, examples)}


def initial(sizes: tuple[int, ...] = SIZES, seed: int = 1) -> dict[str, np.ndarray]:
    """Initial parameters: weights uniform within +-1 / sqrt(inputs of the neuron), biases 0."""
    random = np.random.default_rng(seed)
    parameters = {}
    for layer, (inputs, size) in enumerate(pairwise(sizes), start=1):
        for neuron in range(size):
            for i in range(inputs):
                parameters[f"n{layer}.{neuron}.w{i}"] = np.array(random.uniform(-1, 1) / inputs**0.5)
            parameters[f"n{layer}.{neuron}.b"] = np.array(0.0)
    return parameters


def main() -> int:
    given = arguments(__doc__, steps=200)
    data, parameters = surface(), initial()
    program = scalar_network(SIZES)
    print(f"{len(parameters)} scalar parameters, {len(program['blocks'][0]['ops'])} ops")
    with Backpass(given.url) as service:
        optimizer = {"type": "sgd", "learning_rate": 0.5}
        known = service.register(program)
        losses = []
        with service.session(known, parameters, loss="loss", optimizer=optimizer) as session:
            for step in range(given.steps):
                losses.append(session.step(data)["loss"].item())
                if step % 20 == 0 or step == given.steps - 1:
                    print(f"  step {step:3d}  loss {losses[-1]:.5f}  {'#' * round(100 * losses[-1])}")
            fitted = session.parameters()
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {given.steps} steps; n1.0.w0 = {fitted['n1.0.w0']:+.4f}")
    return 0 if losses[-1] < 0.2 * losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
