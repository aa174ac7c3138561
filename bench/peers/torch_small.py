"""The small tasks in PyTorch, op by op in one process: forward, backward and Adam.

    python -m bench.peers.torch_small THREADS

bench/small.py starts it. Each line of stdin, ``{"task", "steps", "rounds"}``, trains a task and is answered by a line
``{"seconds", "losses"}``: the seconds per step of each round, and the losses of the first round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench.small_tasks import GROUPS, PENALTY, RATES, TASKS, Task, played

__all__ = ["main"]

Tensors = dict[str, torch.Tensor]


def dense(p: Tensors, prefix: str, x: torch.Tensor, count: int, act: Callable[..., Any] = torch.tanh) -> torch.Tensor:
    for i in range(count):
        x = torch.addmm(p[f"{prefix}_b{i}"], x, p[f"{prefix}_w{i}"])
        x = x if i == count - 1 else act(x)
    return x


def gan(p: Tensors, feeds: Tensors) -> torch.Tensor:
    """The loss of the critic, whose gradients are kept, plus that of the generator."""
    fake = dense(p, "g", feeds["z"], 3)
    given = fake.detach()
    between = (given + (feeds["real"] - given) * feeds["mix"]).requires_grad_()
    (slope,) = torch.autograd.grad(dense(p, "d", between, 3).sum(), between, create_graph=True)
    penalty = PENALTY * ((slope.square().sum(1) + 1e-12).sqrt() - 1).square().mean()
    critic = dense(p, "d", given, 3).mean() - dense(p, "d", feeds["real"], 3).mean() + penalty
    frozen = {name: value.detach() if name.startswith("d_") else value for name, value in p.items()}
    return critic - dense(frozen, "d", fake, 3).mean()


def vae(p: Tensors, feeds: Tensors) -> torch.Tensor:
    mean, log = dense(p, "e", feeds["x"], 2, torch.relu).chunk(2, 1)
    y = dense(p, "d", mean + (0.5 * log).exp() * feeds["noise"], 2, torch.relu)
    return F.mse_loss(y, feeds["x"]) - 0.5 * (1 + log - mean.square() - log.exp()).mean()


def pinn(p: Tensors, feeds: Tensors) -> torch.Tensor:
    at = feeds["at"].requires_grad_()
    u = dense(p, "u", at, 4)
    (first,) = torch.autograd.grad(u.sum(), at, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), at, create_graph=True)
    residual = first[:, 1:] + u * first[:, :1] - 0.01 * second[:, :1]
    return residual.square().mean() + F.mse_loss(dense(p, "u", feeds["edge"], 4), feeds["value"])


LOSSES = {"gan": gan, "vae": vae, "pinn": pinn}


class Training:
    def __init__(self, task: Task) -> None:
        self._task = task
        self.p = {name: torch.tensor(value).requires_grad_() for name, value in task.parameters.items()}
        groups = [{"params": [v for n, v in self.p.items() if not n.startswith("g_")], "lr": RATES[task.name]}]
        if own := [v for n, v in self.p.items() if n.startswith("g_")]:
            groups.append({"params": own, "lr": GROUPS["learning_rate"]})
        self._adam = torch.optim.Adam(groups)

    def run(self, batches: dict[str, Any], steps: int) -> list[float]:
        """Train on `steps` batches. REINFORCE updates once with all of them, the others after each."""
        if self._task.name == "reinforce":
            return self._played(batches, steps)
        losses = []
        for i in range(steps):
            self._adam.zero_grad()
            loss = LOSSES[self._task.name](self.p, {n: torch.from_numpy(each[i]) for n, each in batches.items()})
            loss.backward()
            self._adam.step()
            losses.append(loss.detach())
        return torch.stack(losses).tolist()

    def _played(self, batches: dict[str, Any], steps: int) -> list[float]:
        self._adam.zero_grad()
        losses = []
        for i in range(steps):
            logits = dense(self.p, "p", torch.from_numpy(batches["state"][i]), 2)
            policy = logits.detach().softmax(-1).numpy()
            action, reward = played(policy, batches["state"][i], batches["chance"][i])
            surprise = F.cross_entropy(logits, torch.from_numpy(action), reduction="none")
            loss = (surprise * torch.from_numpy(reward)).mean()
            loss.backward()
            losses.append(loss.detach())
        self._adam.step()
        return torch.stack(losses).tolist()


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        task = TASKS[asked["task"]]()
        training, steps = Training(task), asked["steps"]
        losses = training.run(task.batches(steps), steps)
        seconds = []
        for _ in range(asked["rounds"]):
            batches = task.batches(steps)
            started = time.perf_counter()
            training.run(batches, steps)
            seconds.append((time.perf_counter() - started) / steps)
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
