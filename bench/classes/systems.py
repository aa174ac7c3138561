"""Losses that solve linear systems."""

from __future__ import annotations

import numpy as np

import backpass_client as bp
from bench.classes.made import Symbols, made, normal, zeros
from bench.workload import Workload

__all__ = ["WORKLOADS", "gaussian_process", "least_squares"]


def gaussian_process(points: int = 300, inputs: int = 4) -> Workload:
    """Minus the log marginal likelihood of a Gaussian process with a length scale for each input, per point."""
    rng = np.random.default_rng(60)
    x = normal(rng, points, inputs)
    feeds = {"x": x, "y": np.sin(x.sum(1)).astype("float32"), "eye": np.eye(points, dtype="float32")}
    parameters = {"scales": zeros(inputs), "height": zeros(), "noise": np.full((), -1.0, "float32")}

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        x = given["x"] * bp.exp(p["scales"])
        squares = bp.square(x).sum(1)
        apart = bp.unsqueeze(squares, axes=[1]) + squares - 2.0 * bp.matmul(x, x, transpose_y=True)
        k = bp.exp(p["height"] - 0.5 * bp.maximum(apart, 0.0)) + bp.exp(p["noise"]) * given["eye"]
        factor = bp.cholesky(k)
        white = bp.triangular_solve(factor, bp.unsqueeze(given["y"], axes=[1]), upper=False)
        logs = bp.log((factor * given["eye"]).sum(1)).sum()
        return (0.5 * bp.square(white).sum() + logs) / points

    return made("gaussian_process", loss, feeds, parameters)


def least_squares(tasks: int = 8, points: int = 64, inputs: int = 16, hidden: int = 128, width: int = 48) -> Workload:
    """Features that a net learns so that ridge regression on some points of a task predicts the others
    (Bertinetto et al. 2019)."""
    rng = np.random.default_rng(61)
    feeds = {
        name: normal(rng, tasks, points, size)
        for name, size in (("x", inputs), ("y", 1), ("asked", inputs), ("answer", 1))
    } | {"eye": np.eye(width, dtype="float32")}
    parameters = {
        "w1": normal(rng, inputs, hidden, scale=inputs**-0.5), "b1": zeros(hidden),
        "w2": normal(rng, hidden, width, scale=hidden**-0.5), "b2": zeros(width),
        "ridge": zeros(),
    }  # fmt: skip

    def loss(p: Symbols, given: Symbols) -> bp.Symbol:
        features = lambda x: bp.tanh(bp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"])
        seen = features(given["x"])
        normal_matrix = bp.matmul(seen, seen, transpose_x=True) + bp.exp(p["ridge"]) * given["eye"]
        weights = bp.solve(normal_matrix, bp.matmul(seen, given["y"], transpose_x=True))
        return bp.mse_loss(features(given["asked"]) @ weights, given["answer"])

    return made("least_squares", loss, feeds, parameters)


WORKLOADS = {"gaussian_process": gaussian_process, "least_squares": least_squares}
