"""Small models whose steps take less time than a request: a GAN, a VAE, a PINN and REINFORCE.

Each task has a program, first values of its parameters, and batches from a fixed seed, so that every peer trains the
same model on the same numbers. bench/peers/torch_small.py has the same losses in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from core.backward.append_backward import gradients
from core.wire import read, write
from examples.models import Op, Program, Var, block, feed, op, parameter

__all__ = ["GROUPS", "PENALTY", "RATES", "TASKS", "Task", "played"]

Arrays = dict[str, np.ndarray]
ROWS = 64
RATES = {"gan": 1e-3, "vae": 1e-3, "pinn": 1e-3, "reinforce": 1e-2}
GROUPS = {"match": "g_*", "learning_rate": 5e-4}
"""The group of the generator: it learns half as fast as the critic."""

STATES, ACTIONS = 8, 4  # of the contextual bandit that REINFORCE plays
PENALTY = 10.0


@dataclass(frozen=True, slots=True)
class Task:
    """One model to train with Adam.

    optimizer: as a session takes it. batches: feeds for a number of steps, with a leading axis of steps.
    """

    name: str
    program: Program
    parameters: Arrays
    optimizer: dict[str, Any]
    batches: Callable[[int], Arrays]


def layers(prefix: str, x: str, out: str, count: int, act: str = "tanh", stopped: bool = False) -> list[Op]:
    """Dense layers with an activation between them. stopped: whether no gradient reaches the parameters."""
    ops: list[Op] = []
    for i in range(count):
        w, b = f"{prefix}_w{i}", f"{prefix}_b{i}"
        if stopped:
            ops += [op("stop_gradient", f"{out}/{name}", x=name) for name in (w, b)]
            w, b = f"{out}/{w}", f"{out}/{b}"
        last = i == count - 1
        ops.append(op("matmul", f"{out}/{i}/product", x=x, y=w))
        ops.append(op("add", out if last else f"{out}/{i}/sum", x=f"{out}/{i}/product", y=b))
        if not last:
            ops.append(op(act, f"{out}/{i}", x=f"{out}/{i}/sum"))
            x = f"{out}/{i}"
    return ops


def parameters_of(prefix: str, sizes: tuple[int, ...], rng: np.random.Generator) -> tuple[list[Var], Arrays]:
    """Declarations and first values of the weights and biases of dense layers."""
    variables, values = [], {}
    for i, (m, n) in enumerate(pairwise(sizes)):
        variables += [parameter(f"{prefix}_w{i}", [m, n]), parameter(f"{prefix}_b{i}", [n])]
        values[f"{prefix}_w{i}"] = (rng.standard_normal((m, n)) * m**-0.5).astype("float32")
        values[f"{prefix}_b{i}"] = np.zeros(n, "float32")
    return variables, values


def drawn(shapes: dict[str, tuple[int, ...]], seed: int) -> Callable[[int], Arrays]:
    """Batches of normal numbers."""
    rng = np.random.default_rng(seed)
    return lambda count: {n: rng.standard_normal((count, *s)).astype("float32") for n, s in shapes.items()}


def total(*terms: str, out: str = "loss") -> Op:
    return op("sum", out, x=list(terms))


def then(document: Program, ops: list[Op]) -> Program:
    """`document` with more ops at the end of block 0."""
    root, *rest = document["blocks"]
    return {**document, "blocks": [{**root, "ops": [*root["ops"], *ops]}, *rest]}


def with_gradients(document: Program, target: str, inputs: list[str]) -> tuple[Program, list[str]]:
    """(`document` with the gradients of `target`, as `GET /v1/programs/{id}/backward` returns it; their variables)."""
    found = gradients(read(document), [target], inputs)
    return write(found.program), [name for _, name in found.params_grads if name is not None]


def gan(rows: int = ROWS, hidden: int = 32) -> Task:
    """A Wasserstein GAN in the plane with a gradient penalty (Gulrajani et al. 2017): both players move in one step."""
    rng = np.random.default_rng(0)
    g_vars, g = parameters_of("g", (8, hidden, hidden, 2), rng)
    d_vars, d = parameters_of("d", (2, hidden, hidden, 1), rng)
    variables = [feed("real", [rows, 2]), feed("z", [rows, 8]), feed("mix", [rows, 1]), *g_vars, *d_vars]
    ops = [
        *layers("g", "z", "fake", 3),
        op("stop_gradient", "given", x="fake"),
        op("sub", "way", x="real", y="given"),
        op("mul", "part", x="way", y="mix"),
        op("add", "between", x="given", y="part"),
        *layers("d", "between", "score_between", 3),
        op("reduce_sum", "scores", x="score_between"),
    ]
    penalised, [slope] = with_gradients({"blocks": [block(ops, variables)]}, "scores", ["between"])
    more = [
        op("square", "slope2", x=slope),
        op("reduce_sum", "slope2/sum", x="slope2", attrs={"axes": [1]}),
        op("scale", "slope2/safe", x="slope2/sum", attrs={"bias": 1e-12}),
        op("sqrt", "slope", x="slope2/safe"),
        op("scale", "slope/off", x="slope", attrs={"bias": -1.0}),
        op("square", "slope/off2", x="slope/off"),
        op("mean", "slope/mean", x="slope/off2"),
        op("scale", "penalty", x="slope/mean", attrs={"scale": PENALTY}),
        *layers("d", "real", "score_real", 3),
        *layers("d", "given", "score_given", 3),
        *layers("d", "fake", "score_fake", 3, stopped=True),
        op("mean", "real/mean", x="score_real"),
        op("mean", "given/mean", x="score_given"),
        op("mean", "fake/mean", x="score_fake"),
        op("scale", "real/less", x="real/mean", attrs={"scale": -1.0}),
        op("scale", "fake/less", x="fake/mean", attrs={"scale": -1.0}),
        total("given/mean", "real/less", "penalty", "fake/less"),
    ]
    optimizer = {"type": "adam", "learning_rate": RATES["gan"], "groups": [GROUPS]}
    draw, mix = drawn({"real": (rows, 2), "z": (rows, 8)}, 1), np.random.default_rng(2)
    batches = lambda count: {**draw(count), "mix": mix.random((count, rows, 1), "float32")}
    return Task("gan", then(penalised, more), {**g, **d}, optimizer, batches)


def vae(rows: int = ROWS, inputs: int = 64, hidden: int = 64, latent: int = 8) -> Task:
    """A variational autoencoder of `inputs` numbers with `latent` ones inside; the noise is a feed."""
    rng = np.random.default_rng(0)
    e_vars, e = parameters_of("e", (inputs, hidden, 2 * latent), rng)
    d_vars, d = parameters_of("d", (latent, hidden, inputs), rng)
    variables = [feed("x", [rows, inputs]), feed("noise", [rows, latent]), *e_vars, *d_vars]
    ops = [
        *layers("e", "x", "code", 2, "relu"),
        op("slice", "mean", x="code", attrs={"axes": [1], "starts": [0], "ends": [latent]}),
        op("slice", "log", x="code", attrs={"axes": [1], "starts": [latent], "ends": [2 * latent]}),
        op("scale", "log/half", x="log", attrs={"scale": 0.5}),
        op("exp", "deviation", x="log/half"),
        op("mul", "move", x="deviation", y="noise"),
        op("add", "z", x="mean", y="move"),
        *layers("d", "z", "y", 2, "relu"),
        op("mse_loss", "apart", x="y", y="x"),
        op("square", "mean2", x="mean"),
        op("exp", "variance", x="log"),
        op("sub", "k1", x="log", y="mean2"),
        op("sub", "k2", x="k1", y="variance"),
        op("scale", "k3", x="k2", attrs={"bias": 1.0}),
        op("mean", "k4", x="k3"),
        op("scale", "divergence", x="k4", attrs={"scale": -0.5}),
        total("apart", "divergence"),
    ]
    optimizer = {"type": "adam", "learning_rate": RATES["vae"]}
    batches = drawn({"x": (rows, inputs), "noise": (rows, latent)}, 1)
    return Task("vae", {"blocks": [block(ops, variables)]}, {**e, **d}, optimizer, batches)


def pinn(rows: int = ROWS, hidden: int = 20) -> Task:
    """A network that solves Burgers' equation u_t + u u_x = 0.01 u_xx (Raissi et al. 2019): three derivatives deep."""
    rng = np.random.default_rng(0)
    variables, u = parameters_of("u", (2, hidden, hidden, hidden, 1), rng)
    ops = [*layers("u", "at", "u", 4), op("reduce_sum", "u/sum", x="u")]
    first, [slope] = with_gradients({"blocks": [block(ops, [feed("at", [rows, 2]), *variables])]}, "u/sum", ["at"])
    by = {"axes": [1], "ends": [1]}
    ops = [
        op("slice", "u_x", x=slope, attrs={**by, "starts": [0]}),
        op("slice", "u_t", x=slope, attrs={"axes": [1], "starts": [1], "ends": [2]}),
        op("reduce_sum", "u_x/sum", x="u_x"),
    ]
    second, [twice] = with_gradients(then(first, ops), "u_x/sum", ["at"])
    root = second["blocks"][0]
    root["vars"].append({**feed("edge", [rows, 2]), "role": "feed"})
    root["vars"].append({**feed("value", [rows, 1]), "role": "feed"})
    ops = [
        op("slice", "u_xx", x=twice, attrs={**by, "starts": [0]}),
        op("mul", "carried", x="u", y="u_x"),
        op("scale", "spread", x="u_xx", attrs={"scale": -0.01}),
        total("u_t", "carried", "spread", out="residual"),
        op("square", "residual2", x="residual"),
        op("mean", "inside", x="residual2"),
        *layers("u", "edge", "u_edge", 4),
        op("mse_loss", "outside", x="u_edge", y="value"),
        total("inside", "outside"),
    ]
    optimizer = {"type": "adam", "learning_rate": RATES["pinn"]}
    batches = drawn({"at": (rows, 2), "edge": (rows, 2), "value": (rows, 1)}, 1)
    return Task("pinn", then(second, ops), u, optimizer, batches)


def reinforce() -> Task:
    """A policy of a contextual bandit: the gradient of -mean(log p(action) reward), with actions from the client."""
    rng = np.random.default_rng(0)
    variables, p = parameters_of("p", (STATES, 32, ACTIONS), rng)
    leaves = [feed("state", [-1, STATES]), feed("action", [-1], "int64"), feed("reward", [-1]), *variables]
    ops = [
        *layers("p", "state", "logits", 2),
        op("softmax", "policy", x="logits"),
        op("softmax_with_cross_entropy", "surprise", slot="loss", logits="logits", label="action"),
        op("reshape", "surprise/flat", x="surprise", attrs={"shape": [-1]}),
        op("mul", "each", x="surprise/flat", y="reward"),
        op("mean", "loss", x="each"),
    ]
    optimizer = {"type": "adam", "learning_rate": RATES["reinforce"]}
    draw, chance = drawn({"state": (ROWS, STATES)}, 1), np.random.default_rng(2)
    batches = lambda count: {**draw(count), "chance": chance.random((count, ROWS), "float32")}
    return Task("reinforce", {"blocks": [block(ops, leaves)]}, p, optimizer, batches)


def played(policy: np.ndarray, state: np.ndarray, chance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(actions, rewards) for probabilities [..., actions]: the bandit pays where the state's first numbers say."""
    action = np.minimum((np.cumsum(policy, -1) < chance[..., None]).sum(-1), ACTIONS - 1)
    paid = action == state[..., :ACTIONS].argmax(-1)
    return action.astype("int64"), np.where(paid, 1.0, -0.25).astype("float32")


TASKS: dict[str, Callable[[], Task]] = {"gan": gan, "vae": vae, "pinn": pinn, "reinforce": reinforce}
