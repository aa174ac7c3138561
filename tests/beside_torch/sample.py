"""Samples for the comparison: a case has shapes, and a sample draws numbers for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from core.ir.registry import REGISTRY, Example

__all__ = ["Inputs", "Sample", "case", "drawn", "examples"]


@dataclass(frozen=True)
class Inputs:
    """Inputs of an op, in order: shapes to fill with numbers, arrays, or None for an omitted optional input."""

    given: tuple[Any, ...]
    attrs: dict[str, Any]
    span: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """One point at which an op is compared."""

    name: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any]
    label: str


def case(*given: Any, span: tuple[float, float] | None = None, **attrs: Any) -> Inputs:
    """A case of these inputs. Shapes are filled from `span`, by default the range of the op's own examples."""
    return Inputs(given, attrs, span)


def examples(name: str) -> Iterator[Sample]:
    """The op's own examples, then each again with its numbers moved closer together.

    Labels are hashes of the examples: a further example changes no other label.
    """
    rule = REGISTRY[name].example_rule
    for example in rule() if rule else ():
        mark = crc32(repr((example.inputs, example.attrs)).encode()) & 0xFFFF
        yield Sample(name, example.inputs, example.attrs, f"example{mark:04x}")
        if example.smooth and not any(isinstance(x, list) for x in example.inputs):
            r = generator(name, mark)
            moved = tuple(nearer(np.asarray(x), r) for x in example.inputs)
            if any(np.asarray(x).dtype.kind == "f" and np.size(x) > 1 for x in example.inputs):
                yield Sample(name, moved, example.attrs, f"example{mark:04x}-moved")


def drawn(name: str, cases: list[Inputs], label: str = "drawn") -> Iterator[Sample]:
    rule = REGISTRY[name].example_rule
    shown: list[Example] = list(rule()) if rule else []
    for i, inputs in enumerate(cases):
        r = generator(name, (1 << 16) + i)
        filled = []
        for k, x in enumerate(inputs.given):
            if isinstance(x, tuple):
                low, high = inputs.span or span(shown, k)
                x = r.uniform(low, high, x)
            filled.append(x)
        yield Sample(name, tuple(filled), inputs.attrs, f"{label}{i}")


def span(shown: list[Example], slot: int) -> tuple[float, float]:
    """The least and the largest number of the examples in a slot: they show the domain."""
    seen = [np.asarray(e.inputs[min(slot, len(e.inputs) - 1)]) for e in shown if e.smooth and e.inputs]
    seen = [x[np.isfinite(x)] for x in seen if x.dtype.kind == "f" and x.size > 1]
    seen = [x for x in seen if x.size] or [np.array([-1.7, 1.9])]
    return float(min(x.min() for x in seen)), float(max(x.max() for x in seen))


def nearer(x: np.ndarray, r: np.random.Generator) -> np.ndarray:
    """Each number moved by up to a tenth of the way to another of the same array, to stay inside the domain."""
    if x.dtype.kind != "f" or x.size < 2:
        return x
    other = r.permutation(x.ravel()).reshape(x.shape)
    share = r.uniform(0.02, 0.1, x.shape)
    return (1 - share) * x + share * other


def generator(name: str, i: int) -> np.random.Generator:
    return np.random.default_rng([*name.encode(), i])
