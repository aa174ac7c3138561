"""Workloads from functions that compute their loss with the builder of `backpass_client`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

import backpass_client as bp
from bench.workload import Arrays, Workload

__all__ = ["Loss", "made", "normal", "ones", "symbols", "zeros"]

Symbols = dict[str, bp.Symbol]
Loss = Callable[[Symbols, Symbols], bp.Symbol]
Opens = Mapping[str, Mapping[int, str]]
"""Feed -> axis -> the name of its open size."""

DTYPES = {"float32": bp.f32, "int64": bp.i64}


def made(
    name: str,
    loss: Loss,
    feeds: Arrays,
    parameters: Arrays,
    opens: Opens | None = None,
    optimizer: str = "sgd",
    lookups: Mapping[str, str] | None = None,
    tolerance: float = 1e-3,
) -> Workload:
    """The workload whose loss is `loss` of its parameters and its feeds."""
    with bp.Builder(name) as b:
        p, given = symbols(feeds, parameters, opens or {})
        document = bp.built(b, {"loss": loss(p, given)}).document()
    return Workload(name, document, feeds, parameters, optimizer, lookups or {}, tolerance)


def symbols(feeds: Arrays, parameters: Arrays, opens: Opens) -> tuple[Symbols, Symbols]:
    """(parameters, feeds) of the types of these arrays, declared in the builder that records."""
    given: Symbols = {}
    for name, value in feeds.items():
        sizes = [opens.get(name, {}).get(axis, size) for axis, size in enumerate(value.shape)]
        dtype = DTYPES[value.dtype.name]
        given[name] = bp.feed(name, dtype[tuple(sizes)] if sizes else dtype)
    return {name: bp.parameter(name, list(value.shape)) for name, value in parameters.items()}, given


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype("float32")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, "float32")


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, "float32")
