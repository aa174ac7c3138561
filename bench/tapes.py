"""A lazy tape through HTTP, compared with PyTorch op by op in one process.

    python -m bench.tapes [--rounds 15] [--threads 1] [--json FILE] [--against CHECKOUT]

The network is `tree_rnn` of bench/workloads.py: about 270 ops on arrays of 64 numbers. The Python client records it
anew for every step, asks for the gradients, and updates its variables; PyTorch does the same in one process. Both must
agree about the loss and the update of every parameter. Then they take turns: a round is a few steps of each. Times are
milliseconds per step, medians over the rounds. The ratio is the time of the tape to that of PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.machine import cores_of, machine
from bench.peers.process import ROOT, TAPE, TAPE_BEFORE, Peer, started
from bench.steps import measured

__all__ = ["main"]

WORKLOADS = ("tree_rnn",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="all", help="number of threads, and of cores, of each peer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="a file for everything that was measured")
    parser.add_argument("--against", type=Path, help="another checkout of Backpass, whose client and service take part")
    given = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "rounds": given.rounds}
    with contextlib.ExitStack() as open:
        peers = open.enter_context(started([TAPE, "torch_eager"], cores_of(given.threads)))
        if given.against:
            other = open.enter_context(_checkout(given.against.resolve()))
            peers[TAPE_BEFORE] = open.enter_context(
                contextlib.closing(Peer(TAPE_BEFORE, cores_of(given.threads), other))
            )
        report["tapes"] = measured(peers, given.threads, WORKLOADS, given.rounds, own=TAPE)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")


@contextlib.contextmanager
def _checkout(other: Path) -> Iterator[Path]:
    """A folder with this checkout's bench, and with the product of the `other` one."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, root in {
            "bench": ROOT,
            "examples": ROOT,
            "core": other,
            "service": other,
            "backpass_client": other,
        }.items():
            Path(folder, name).symlink_to(root / name)
        yield Path(folder)


if __name__ == "__main__":
    main()
