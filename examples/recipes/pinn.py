"""PINN: a network that solves a differential equation, because the equation is its loss.

The equation is that of Burgers, `u_t + u u_x = NU u_xx`, for x in [-1, 1] and t in [0, 1]. The network knows u at t = 0
and at both ends; the derivatives of the network with respect to its inputs must satisfy the equation everywhere else.
The solution is a front that moves to the right, which has a closed form to compare with. Raissi et al. 2019.

    python -m examples.recipes.pinn --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys

import numpy as np

import backpass_client as bp
from examples.recipes.start import connected, options, progress

NU = 0.1
INSIDE, EDGE = 256, 96  # points in a batch
ROUND = 50  # steps in a call
RATE = 0.005


def solution(points: np.ndarray) -> np.ndarray:
    """u [n, 1] at points (x, t) [n, 2]: a front of height 1 that moves with speed 1/2."""
    x, t = points[:, :1], points[:, 1:]
    return (0.5 - 0.5 * np.tanh((x - t / 2) / (4 * NU))).astype("float32")


# --8<-- [start:network]
class Network(bp.nn.Layer):
    """u [n, 1] at points (x, t) [n, 2]. It is smooth, because its second derivatives are needed."""

    def __init__(self, hidden: int) -> None:
        super().__init__("u")
        self.hidden = [bp.nn.Linear(hidden, name=f"layer_{i}") for i in range(3)]
        self.last = bp.nn.Linear(1, name="last")

    def forward(self, points: bp.Symbol) -> bp.Symbol:
        for layer in self.hidden:
            points = bp.tanh(layer(points))
        return self.last(points)


# --8<-- [end:network]


# --8<-- [start:loss]
def burgers(hidden: int) -> bp.BuiltProgram:
    u = Network(hidden)

    def slope(points: bp.Symbol) -> bp.Symbol:
        """(u_x, u_t) [n, 2]: u at one point depends on that point alone, so the sum keeps the points apart."""
        return bp.grad(lambda points: u(points).sum())(points)

    @bp.program
    def equation(inside: bp.f32["inside", 2], edge: bp.f32["edge", 2], known: bp.f32["edge", 1]):
        first = slope(inside)
        u_x, u_t = first[:, :1], first[:, 1:]
        u_xx = bp.grad(lambda points: slope(points)[:, 0].sum())(inside)[:, :1]
        residual = u_t + u(inside) * u_x - NU * u_xx
        at_edge = u(edge) - known
        loss = (residual**2).mean() + (at_edge**2).mean()
        return {"loss": loss, "u": u(inside), "u_x": u_x, "u_t": u_t, "u_xx": u_xx}

    return equation


# --8<-- [end:loss]


# --8<-- [start:points]
def batches(count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Points for `count` steps: new ones for each step, since they cost nothing."""
    inside = random.uniform((-1, 0), (1, 1), (count, INSIDE, 2))
    edge = random.uniform((-1, 0), (1, 1), (count, EDGE, 2))
    edge[:, ::3, 1] = 0  # a third of them at the beginning
    edge[:, 1::3, 0], edge[:, 2::3, 0] = -1, 1  # and a third at each end
    known = solution(edge.reshape(-1, 2)).reshape(count, EDGE, 1)
    return {"inside": inside.astype("float32"), "edge": edge.astype("float32"), "known": known}


# --8<-- [end:points]


# --8<-- [start:train]
def grid() -> np.ndarray:
    """Points (x, t) of a grid, 17 times after each other and 41 from left to right."""
    t, x = np.meshgrid(np.linspace(0, 1, 17), np.linspace(-1, 1, 41), indexing="ij")
    return np.stack([x.ravel(), t.ravel()], axis=1).astype("float32")


def run(service: bp.Service, steps: int = 2000, hidden: int = 32) -> dict[str, float]:
    """Train; returns the first and last loss, and the largest and root-mean-square error on a grid."""
    random = np.random.default_rng(0)
    falling = {"schedule": "cosine_decay", "learning_rate": RATE, "decay_steps": steps}
    points = grid()
    with service.create_session(burgers(hidden), optimizer={"type": "adam", "learning_rate": falling}) as session:
        losses: list[float] = []
        for _ in (bar := progress(range(steps // ROUND), "pinn", "calls")):
            losses += session.step(batches(ROUND, random), batches=ROUND).loss.tolist()
            bar.set_postfix(loss=f"{losses[-1]:.1e}", refresh=False)
        found = session.evaluate({"inside": points}, ["u"])["u"]
    error = np.abs(found - solution(points))
    show(found.reshape(17, 41), error.reshape(17, 41))
    return {
        "first": losses[0],
        "last": losses[-1],
        "largest": float(error.max()),
        "rms": float((error**2).mean() ** 0.5),
    }


# --8<-- [end:train]


def show(u: np.ndarray, error: np.ndarray) -> None:
    """Print u at five times as characters, and its largest error there."""
    print()
    for row in range(0, 17, 4):
        print(f"  t = {row / 16:.2f}  {''.join(' .:-=+*#%@'[min(9, max(0, int(10 * value)))] for value in u[row])}"
              f"  error {error[row].max():.4f}")  # fmt: skip


def main() -> int:
    given = options(__doc__, steps=2000, hidden=32)
    with connected(given.url) as service:
        found = run(service, given.steps, given.hidden)
    print(f"loss {found['first']:.3f} -> {found['last']:.1e}")
    print(f"distance from the closed form: at most {found['largest']:.4f}, root mean square {found['rms']:.5f}")
    return 0 if found["largest"] < 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
