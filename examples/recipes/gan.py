"""GAN with gradient penalty: a generator learns eight clusters of points from the judgement of a critic.

The critic learns to score real points above generated ones. A penalty keeps the norm of its gradient with respect to
the points near 1, so training differentiates a gradient. Gulrajani et al. 2017 (WGAN-GP).

    python -m examples.recipes.gan --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys

import numpy as np

import backpass_client as bp
from examples.recipes.start import connected, options, progress

NOISE = 2
BATCH = 128
CRITIC_STEPS = 5  # for each step of the generator
PENALTY = 0.1
SPREAD = 0.05  # of each cluster
ADAM = {"type": "adam", "learning_rate": 0.001, "beta1": 0.5, "beta2": 0.9}


# --8<-- [start:networks]
class Points(bp.nn.Layer):
    """A network with two hidden layers."""

    def __init__(self, name: str, hidden: int, outputs: int) -> None:
        super().__init__(name)
        self.layers = [bp.nn.Linear(n, name=f"layer_{i}") for i, n in enumerate((hidden, hidden, outputs))]

    def forward(self, x: bp.Symbol) -> bp.Symbol:
        for layer in self.layers[:-1]:
            x = bp.relu(layer(x))
        return self.layers[-1](x)


# --8<-- [end:networks]


# --8<-- [start:critic]
def critic_program(hidden: int) -> bp.BuiltProgram:
    critic = Points("critic", hidden, 1)

    @bp.program
    def network(real: bp.f32["batch", 2], fake: bp.f32["batch", 2]):
        share = bp.uniform_random_like(real[:, :1])
        between = share * real + (1 - share) * fake
        slope = bp.grad(lambda x: critic(x).sum())(between)  # [batch, 2], itself differentiable
        norm = bp.sqrt((slope * slope).sum(1) + 1e-12)
        distance = critic(real).mean() - critic(fake).mean()
        penalty = ((norm - 1) ** 2).mean()
        return {"loss": PENALTY * penalty - distance, "distance": distance, "norm": norm.mean()}

    return network


# --8<-- [end:critic]


# --8<-- [start:generator]
def generator_program(hidden: int) -> bp.BuiltProgram:
    @bp.program
    def network(noise: bp.f32["batch", NOISE]):
        points = Points("generator", hidden, 2)(noise)
        return {"loss": -Points("critic", hidden, 1)(points).mean(), "points": points}

    return network


# --8<-- [end:generator]


# --8<-- [start:data]
def centers() -> np.ndarray:
    angles = np.arange(8) * np.pi / 4
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def drawn(random: np.random.Generator, *count: int) -> np.ndarray:
    """Real points [*count, 2]."""
    return (centers()[random.integers(0, 8, count)] + SPREAD * random.normal(size=(*count, 2))).astype("float32")


# --8<-- [end:data]


# --8<-- [start:train]
def run(service: bp.Service, steps: int = 1500, hidden: int = 64) -> dict[str, float]:
    """Train; returns the number of clusters that the generator reaches, the share of its points that lie near one, and
    their mean distance from one."""
    random = np.random.default_rng(0)

    def noise(*count: int) -> np.ndarray:
        return random.normal(size=(*count, NOISE)).astype("float32")

    judge, drawer = critic_program(hidden), generator_program(hidden)
    own = [name for name in drawer.parameters if name.startswith("generator.")]  # the critic's stay as they are sent
    with (
        service.create_session(judge, optimizer=ADAM) as critic,
        service.create_session(drawer, optimizer=ADAM, parameter_list=own) as generator,
    ):
        for _ in (bar := progress(range(steps), "gan")):
            fake = generator.evaluate({"noise": noise(CRITIC_STEPS * BATCH)}, ["points"])["points"]
            batches = {"real": drawn(random, CRITIC_STEPS, BATCH), "fake": fake.reshape(CRITIC_STEPS, BATCH, 2)}
            judged = critic.step(batches, batches=CRITIC_STEPS, fetch=["distance", "norm"])
            generator.put_parameters(critic.parameters())  # the generator learns from the newest critic
            generator.step({"noise": noise(BATCH)})
            bar.set_postfix({name: f"{value[-1]:.3f}" for name, value in judged.fetched.items()}, refresh=False)
        points = generator.evaluate({"noise": noise(1000)}, ["points"])["points"]
    print(f"\n{drawing(points)}")
    distances = np.linalg.norm(points[:, None] - centers(), axis=2)
    near = distances.min(1) < 4 * SPREAD
    reached = np.bincount(distances.argmin(1)[near], minlength=8) > 20
    return {"clusters": int(reached.sum()), "near": near.mean(), "distance": distances.min(1).mean()}


# --8<-- [end:train]


def drawing(points: np.ndarray) -> str:
    """The density of points as characters."""
    counts, _, _ = np.histogram2d(-points[:, 1], points[:, 0], bins=(17, 34), range=[[-1.4, 1.4]] * 2)
    return "\n".join("".join(" .:*#"[min(4, int(np.ceil(n / 6)))] for n in row) for row in counts)


def main() -> int:
    given = options(__doc__, steps=1500, hidden=64)
    with connected(given.url) as service:
        found = run(service, given.steps, given.hidden)
    print(f"{found['clusters']} of 8 clusters reached; {found['near']:.0%} of the points lie near one")
    return 0 if found["clusters"] == 8 else 1


if __name__ == "__main__":
    sys.exit(main())
