"""Train the network of the digits in a job of the service, and watch it.

    python -m examples.train_job --url http://127.0.0.1:8080

The data are uploaded once. The service trains on them by itself, stops when the validation loss stops improving, and
keeps the session, which then classifies the test digits.
"""

from __future__ import annotations

import argparse

from backpass_client import Program, Service
from examples.digits import load
from examples.models import digits_mlp


def main(arguments: list[str] | None = None) -> float:
    """Returns the accuracy on the test digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--epochs", type=int, default=40)
    asked = parser.parse_args(arguments)
    train, test = load()
    with Service(asked.url) as service:
        data = service.datasets.upload({"x": train.x, "y": train.y}, name="digits")
        settings = {"optimizer": {"type": "adam", "learning_rate": 0.005}}
        with Program(service, digits_mlp()).session("loss", **settings) as session:
            curves = session.fit(
                data,
                epochs=asked.epochs,
                batch_size=64,
                metrics=["accuracy"],
                validation={"fraction": 0.2},
                early_stop={"patience": 3},
                on_event=lambda kind, data: print(kind, data) if kind in ("state", "validation") else None,
                progress=False,
            )
            found = session.evaluate({"x": test.x, "y": test.y}, ["accuracy"])["accuracy"].item()
    print(f"{len(curves['step'])} steps; loss {curves['loss'][0]:.3f} -> {curves['loss'][-1]:.3f}")
    print(f"accuracy on {len(test)} test digits: {found:.3f}")
    return found


if __name__ == "__main__":
    main()
