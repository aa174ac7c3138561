"""VAE: a variational autoencoder of handwritten digits, which then draws new ones.

The encoder gives each digit a normal distribution over a few numbers; the decoder draws a digit from them. Kingma and
Welling 2013.

    python -m examples.recipes.vae --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys

import numpy as np

import backpass_client as bp
from examples import digits
from examples.recipes.start import connected, options, progress

PIXELS = 64
BATCH = 64
SHADES = " .:-=+*#%@"


# --8<-- [start:model]
def vae(latent: int = 8, hidden: int = 128) -> bp.BuiltProgram:
    grow, shrink = bp.nn.Linear(hidden, name="decoder.hidden"), bp.nn.Linear(PIXELS, name="decoder.pixels")

    def decoded(z: bp.Symbol) -> bp.Symbol:
        """Logits of the pixels for z [batch, latent]. All calls share the parameters of the layers."""
        return shrink(bp.relu(grow(z)))

    @bp.program
    def network(x: bp.f32["batch", PIXELS], noise: bp.f32["drawn", latent]):
        h = bp.relu(bp.nn.Linear(hidden, name="encoder.hidden")(x))
        mean = bp.nn.Linear(latent, name="encoder.mean")(h)
        log_variance = bp.nn.Linear(latent, name="encoder.log_variance")(h)
        z = mean + bp.exp(0.5 * log_variance) * bp.gaussian_random_like(mean)  # the gradient flows around the noise
        logits = decoded(z)
        bits = bp.sigmoid_cross_entropy_with_logits(logits, x)
        kl = -0.5 * (1 + log_variance - mean * mean - bp.exp(log_variance))
        reconstruction, divergence = bits.sum(1).mean(), kl.sum(1).mean()
        return {
            "loss": reconstruction + divergence,
            "reconstruction": reconstruction,
            "divergence": divergence,
            "copies": bp.sigmoid(decoded(mean)),
            "new": bp.sigmoid(decoded(noise)),
        }

    return network


# --8<-- [end:model]


# --8<-- [start:train]
def run(service: bp.Service, epochs: int = 60, latent: int = 8, hidden: int = 128) -> dict[str, float]:
    """Train and show new digits; returns the loss on the test digits, in nats per digit, before and after."""
    train, test = digits.load()
    random = np.random.default_rng(0)
    whole = len(train) // BATCH * BATCH
    optimizer = {"type": "adam", "learning_rate": 0.002}
    with service.create_session(vae(latent, hidden), optimizer=optimizer, init={"seed": 0}) as session:
        before = session.evaluate({"x": test.x})["loss"].item()
        for _ in (bar := progress(range(epochs), "vae", "epoch")):
            batches = train.x[random.permutation(len(train))[:whole]].reshape(-1, BATCH, PIXELS)
            answer = session.step({"x": batches}, batches=len(batches))  # an epoch in one call
            bar.set_postfix(loss=f"{answer.loss.mean():.2f}", refresh=False)
        after = session.evaluate({"x": test.x})["loss"].item()
        copies = session.evaluate({"x": test.x[:6]}, ["copies"])["copies"]
        new = session.evaluate({"noise": random.normal(size=(6, latent)).astype("float32")}, ["new"])["new"]
    for title, rows in (("test digits", test.x[:6]), ("their copies", copies), ("new digits", new)):
        print(f"\n{title}\n{drawing(rows)}")
    return {"before": before, "after": after}


# --8<-- [end:train]


def drawing(rows: np.ndarray) -> str:
    """Digits [count, 64] side by side, as characters."""
    shades = np.clip(rows * len(SHADES), 0, len(SHADES) - 1).astype(int).reshape(-1, 8, 8)
    return "\n".join("   ".join("".join(SHADES[s] * 2 for s in digit[line]) for digit in shades) for line in range(8))


def main() -> int:
    given = options(__doc__, epochs=60, latent=8, hidden=128)
    with connected(given.url) as service:
        reached = run(service, given.epochs, given.latent, given.hidden)
    print(f"\nloss on the test digits: {reached['before']:.2f} -> {reached['after']:.2f}")
    return 0 if reached["after"] < 30 else 1


if __name__ == "__main__":
    sys.exit(main())
