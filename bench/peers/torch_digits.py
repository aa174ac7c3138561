"""Training of the digits network in one process with PyTorch, op by op: steps on request.

    python -m bench.peers.torch_digits FILE BATCH_SIZE

FILE is an NPZ file with the rows of x and y. Reads a number of steps from each line of its input, trains as many, and
writes the seconds that they took. The rows are shuffled in each epoch, and a batch is gathered by index, as in a job.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
from torch.nn import functional as F

__all__: list[str] = []


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    feeds, size = np.load(sys.argv[1]), int(sys.argv[2])
    x, y = (torch.from_numpy(feeds[name]) for name in ("x", "y"))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    rows, at = torch.randperm(len(x)), 0
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            if at + size > len(x):
                rows, at = torch.randperm(len(x)), 0
            batch = rows[at : at + size]
            at += size
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            loss.item()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
