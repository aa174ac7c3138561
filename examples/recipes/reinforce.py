"""REINFORCE: a policy learns to balance a pole on a cart, in an environment that only the client knows.

The client simulates carts, asks the session for the probabilities of its actions and draws them. When the poles have
fallen it knows the rewards, and with them the cotangent of the log-probability of each action: minus its advantage.
The session turns the cotangents into an update of the weights. Williams 1992; the cart is that of Barto, Sutton and
Anderson 1983.

    python -m examples.recipes.reinforce --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

import backpass_client as bp
from examples.recipes.start import connected, options, progress

CARTS = 32  # simulated side by side
DISCOUNT = 0.98
ADAM = {"type": "adam", "learning_rate": 0.01}


# --8<-- [start:cart]
class Carts:
    """Carts on a track, each with a pole on top. A cart is up while its pole leans less than 12 degrees.

    state: [carts, 4]: place (m), speed (m/s), angle (rad), turning speed (rad/s).
    """

    GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02  # SI units
    EDGE, FALLEN = 2.4, np.radians(12)

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.state = random.uniform(-0.05, 0.05, (count, 4))
        self.up = np.ones(count, bool)

    def push(self, action: np.ndarray) -> None:
        """Push each cart that is up to the left (0) or to the right (1) for one tick."""
        _, speed, angle, turning = self.state.T
        force = np.where(action == 1, self.FORCE, -self.FORCE)
        total = self.CART + self.POLE
        sine, cosine = np.sin(angle), np.cos(angle)
        drive = (force + self.POLE * self.HALF_LENGTH * turning**2 * sine) / total
        inertia = self.HALF_LENGTH * (4 / 3 - self.POLE * cosine**2 / total)
        turn = (self.GRAVITY * sine - cosine * drive) / inertia
        push = drive - self.POLE * self.HALF_LENGTH * turn * cosine / total
        change = self.TICK * np.stack([speed, push, turning, turn], axis=1)
        self.state += np.where(self.up[:, None], change, 0)
        self.up &= (np.abs(self.state[:, 0]) < self.EDGE) & (np.abs(self.state[:, 2]) < self.FALLEN)


# --8<-- [end:cart]


# --8<-- [start:policy]
def policy(hidden: int) -> bp.BuiltProgram:
    @bp.program
    def cart_policy(state: bp.f32["n", 4], action: bp.i64["n"]):
        scaled = state * bp.constant([0.4, 0.5, 5.0, 0.5])
        h = bp.tanh(bp.nn.Linear(hidden, name="hidden")(scaled))
        logits = bp.nn.Linear(2, name="actor", init="zeros")(h)
        value = bp.nn.Linear(1, name="critic", init="zeros")(h).reshape("n")
        return {"logits": logits, "log_prob": -bp.softmax_with_cross_entropy(logits, action), "value": value}

    return cart_policy


# --8<-- [end:policy]


# --8<-- [start:play]
@dataclass(frozen=True, slots=True)
class Played:
    """Pushes of carts that were up: the state before [n, 4], the action [n], the return [n]; and ticks of each cart."""

    state: np.ndarray
    action: np.ndarray
    gain: np.ndarray
    ticks: np.ndarray


def play(session: bp.Session, ticks: int, random: np.random.Generator) -> Played:
    """Let all carts run until they have fallen or `ticks` are over. The reward of each tick is 1."""
    carts = Carts(CARTS, random)
    states, actions, up = [], [], []
    while len(up) < ticks and carts.up.any():
        state = carts.state.astype("float32")
        logits = session.evaluate({"state": state}, ["logits"])["logits"]
        action = (random.gumbel(size=logits.shape) + logits).argmax(1)  # a draw with the probabilities softmax(logits)
        states.append(state), actions.append(action), up.append(carts.up.copy())
        carts.push(action)
    was_up = np.array(up)  # [tick, cart]
    gain = np.zeros(was_up.shape)
    for t in reversed(range(len(gain))):
        gain[t] = was_up[t] * (1 + DISCOUNT * (gain[t + 1] if t + 1 < len(gain) else 0))
    return Played(np.array(states)[was_up], np.array(actions)[was_up], gain[was_up], was_up.sum(0))


# --8<-- [end:play]


# --8<-- [start:learn]
def learn(session: bp.Session, played: Played) -> None:
    """One update, with cotangents that this process computes: of the log-probabilities and of the values."""
    feeds = {"state": played.state, "action": played.action}
    value = session.evaluate(feeds, ["value"])["value"]
    gain = played.gain * (1 - DISCOUNT)  # between 0 and 1
    advantage = gain - value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    n = len(value)
    cotangents = [-advantage / n, 2 * (value - gain) / n]  # of targets, in their order; the second of (value - gain)^2
    session.step(feeds, target_gradients=[ct.astype("float32") for ct in cotangents])


def run(service: bp.Service, rounds: int = 30, ticks: int = 200, hidden: int = 32) -> list[float]:
    """Train; returns the mean number of ticks that a pole stands, for each round before its update."""
    random = np.random.default_rng(0)
    targets = ["log_prob", "value"]
    stood = []
    with service.create_session(policy(hidden), targets=targets, optimizer=ADAM, init={"seed": 0}) as session:
        for _ in (bar := progress(range(rounds), "reinforce", "rounds")):
            played = play(session, ticks, random)
            stood.append(float(played.ticks.mean()))
            learn(session, played)
            bar.set_postfix(ticks=f"{stood[-1]:.0f}", refresh=False)
    return stood


# --8<-- [end:learn]


def main() -> int:
    given = options(__doc__, rounds=30, ticks=200, hidden=32)
    with connected(given.url) as service:
        stood = run(service, given.rounds, given.ticks, given.hidden)
    print()
    for number in range(0, len(stood), max(1, len(stood) // 10)):
        print(f"  round {number:3d}  {stood[number]:5.1f} ticks  {'#' * round(stood[number] / 4)}")
    last = float(np.mean(stood[-5:]))
    print(f"a pole stands {stood[0]:.1f} ticks at first, and {last:.1f} of {given.ticks} ticks in the last five rounds")
    return 0 if last > 0.75 * given.ticks else 1


if __name__ == "__main__":
    sys.exit(main())
