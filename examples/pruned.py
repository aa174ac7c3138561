"""A tape with two networks on the same digits. The loss needs only one of them, so only that one is played back.

Then the example fetches the tape as a program and trains it in a session, which also runs only the needed ops.

    python -m examples.pruned --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits

import backpass_client as bp
from examples.client import arguments

LAYERS, WIDTH, HIDDEN, BATCH = 50, 64, 32, 256


def main() -> int:
    given = arguments(__doc__, steps=200)
    random = np.random.default_rng(0)
    pixels, digits = load_digits(return_X_y=True)
    order = random.permutation(len(digits))
    pixels, digits = (pixels[order] / 16).astype("float32"), digits[order].astype("int64")

    def weights(name: str, *shape: int) -> bp.Variable:
        return bp.Variable((random.normal(size=shape) / shape[0] ** 0.5).astype("float32"), name=name)

    big, first, second = weights("big", WIDTH, WIDTH), weights("first", WIDTH, HIDDEN), weights("second", HIDDEN, 10)

    def big_net(x: bp.Expression) -> bp.Expression:
        for _ in range(LAYERS):
            x = bp.tanh(x @ big)
        return x

    def small_net(x: bp.Expression) -> bp.Expression:
        return bp.relu(x @ first) @ second

    with bp.Service(given.url) as service:
        with bp.Tape(service) as tape:
            data = bp.Variable(pixels[:BATCH], requires_grad=False, name="pixels")
            label = bp.Variable(digits[:BATCH], requires_grad=False, name="digits")
            result = big_net(data)
            scores = small_net(data)
            loss = bp.softmax_with_cross_entropy(scores, label, reduction="mean")
            played = loss.backward()

            print(f"{tape.view()['ops']} ops recorded, {len(played.played)} played back")
            print(
                f"the big network ended with op {result.place}; op {min(played.played)} was the last to be played back"
            )
            for variable, why in played.missing:
                print(f"{variable.name} has no gradient: {why}")
            for variable, place in played.final:
                print(f"the gradient of {variable.name} was final after op {place}")
            program = bp.Program(service, tape.program())
            start = {each.name: each.data for each in (big, first, second)}

        def feeds(rows: np.ndarray | slice) -> dict[str, np.ndarray]:
            return {data.name: pixels[rows], label.name: digits[rows]}

        train, test = np.arange(BATCH, len(digits)), slice(0, BATCH)
        optimizer = {"type": "adam", "learning_rate": 0.01}
        with program.session(loss.name, start, optimizer=optimizer) as session:
            for _ in range(given.steps):
                session.step(feeds(random.choice(train, BATCH)))
            found = session.evaluate(feeds(test), [scores.name])[scores.name]
    accuracy = float((found.argmax(1) == digits[test]).mean())
    print(f"\naccuracy on unseen digits after {given.steps} steps in a session: {accuracy:.3f}")
    return 0 if accuracy > 0.9 and len(played.played) == 4 and not big.grad else 1


if __name__ == "__main__":
    sys.exit(main())
