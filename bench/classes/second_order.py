"""Small nets, most of them trained through a gradient."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from bench import small_tasks
from bench.classes.made import normal, symbols, zeros
from bench.small_tasks import Task, then, with_gradients
from bench.workload import Arrays, Workload
from examples.models import Op, op

__all__ = ["INNER_RATE", "WORKLOADS", "maml", "pinn", "vae", "wgan_gp"]

INNER_RATE = 0.01
"""The learning rate of the step that `maml` differentiates."""


def pinn() -> Workload:
    return _of_task(small_tasks.pinn(rows=512, hidden=50), "pinn")


def vae() -> Workload:
    return _of_task(small_tasks.vae(rows=128, inputs=784, hidden=256, latent=16), "vae")


def wgan_gp() -> Workload:
    return _of_task(small_tasks.gan(rows=256, hidden=128), "wgan_gp")


def _of_task(task: Task, name: str) -> Workload:
    """One batch of a task, with SGD."""
    feeds = {name: value[0] for name, value in task.batches(1).items()}
    return Workload(name, task.program, feeds, task.parameters)


def maml(tasks: int = 16, shots: int = 10, hidden: int = 40) -> Workload:
    """Sine waves from a few points: the loss after a step on each task, and its gradient (Finn et al. 2017)."""
    rng = np.random.default_rng(70)
    height, phase = rng.uniform(0.1, 2, (tasks, 1, 1)), rng.uniform(0, np.pi, (tasks, 1, 1))
    feeds: Arrays = {}
    for x, y in (("x", "y"), ("asked", "answer")):
        feeds[x] = rng.uniform(-2, 2, (tasks, shots, 1)).astype("float32")
        feeds[y] = (height * np.sin(feeds[x] - phase)).astype("float32")
    parameters: Arrays = {}
    for i, (m, n) in enumerate(((1, hidden), (hidden, hidden), (hidden, 1))):
        parameters |= {f"w{i}": normal(rng, m, n, scale=m**-0.5), f"b{i}": zeros(1, n)}

    with bp.Builder("maml") as b:
        p, given = symbols(feeds, parameters, {})
        own = {
            name: bp.broadcast_to(p[name], shape=[tasks, *value.shape]).named(f"own/{name}")
            for name, value in parameters.items()
        }
        h = given["x"]
        for i in range(3):
            h = h @ own[f"w{i}"] + own[f"b{i}"]
            h = bp.relu(h) if i < 2 else h
        inner = (bp.square(h - given["y"]).sum() / shots).named("inner")
        document = bp.built(b, {"inner": inner}).document()
    document, slopes = with_gradients(document, "inner", [f"own/{name}" for name in parameters])
    ops: list[Op] = []
    for name, slope in zip(parameters, slopes, strict=True):
        ops.append(op("scale", f"move/{name}", x=slope, attrs={"scale": -INNER_RATE}))
        ops.append(op("add", f"new/{name}", x=f"own/{name}", y=f"move/{name}"))
    x = "asked"
    for i in range(3):
        ops.append(op("matmul", f"product{i}", x=x, y=f"new/w{i}"))
        ops.append(op("add", f"sum{i}", x=f"product{i}", y=f"new/b{i}"))
        if i < 2:
            ops.append(op("relu", f"hidden{i}", x=f"sum{i}"))
        x = f"hidden{i}"
    ops.append(op("mse_loss", "loss", x="sum2", y="answer"))
    return Workload("maml", then(document, ops), feeds, parameters)


WORKLOADS = {"pinn": pinn, "vae": vae, "wgan_gp": wgan_gp, "maml": maml}
