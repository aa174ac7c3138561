"""The table: for each op its equivalent in PyTorch, and samples in addition to its own examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.beside_torch import (
    activations,
    adams,
    chains,
    convolution,
    elements,
    images,
    indexing,
    layers,
    linalg,
    losses,
    optimisers,
    pools,
    reductions,
    regions,
    selections,
    sequences,
    shapes,
    signals,
)
from tests.beside_torch.kinks import KINKS
from tests.beside_torch.sample import Inputs, Sample, drawn, examples

__all__ = ["MORE", "TABLE", "samples"]

FAMILIES: tuple[Any, ...] = (
    activations, adams, chains, convolution, elements, images, indexing, layers, linalg, losses, optimisers, pools,
    reductions, regions, selections, sequences, shapes, signals,
)  # fmt: skip

TABLE: dict[str, Callable[..., Any]] = {}
"""An expression for each op: it takes the op's inputs, None for an omitted one, and the attributes it names."""

MORE: dict[str, list[Inputs]] = {}

for family in FAMILIES:
    assert not TABLE.keys() & family.OPS.keys()
    TABLE |= family.OPS
    MORE |= family.MORE


def samples(name: str) -> list[Sample]:
    return [*examples(name), *drawn(name, MORE.get(name, [])), *drawn(name, KINKS.get(name, []), "kink")]
