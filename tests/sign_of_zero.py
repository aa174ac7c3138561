"""Variants of random programs that Python's == compares as equal, or that differ only in the dtype."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.ops.common.types import as_dtype
from tests.statements import UNARY
from tests.strategies import FEEDS, LEAVES, TABLE, written

__all__ = ["Question", "variants"]

SENSITIVE = (
    ("leaky_relu", "alpha", {}),
    ("elu", "alpha", {}),
    ("scale", "scale", {}),
    ("clip", "min", {"max": 1.0}),
)
"""Ops with an attribute that may be zero, and whose sign decides the sign of some results."""

HALVES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Question:
    """A program to differentiate, the order, the dtype and the executor."""

    document: dict[str, Any]
    seed: int
    number: int
    dtype: str
    second_order: bool = False
    native: bool = False

    @property
    def name(self) -> str:
        """A short description for the message of a failed test."""
        way = f"{'native' if self.native else 'reference'}, order {1 + self.second_order}"
        return f"variant {self.number} of the program of seed {self.seed} ({self.dtype}, {way})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return LEAVES

    def values(self) -> dict[str, np.ndarray]:
        """The values of leaves and feeds. Open sizes are 3."""
        draw = np.random.default_rng(self.seed)
        shapes = [*((name, "float64", [2]) for name in LEAVES), (TABLE, "float64", [3, 2]), *FEEDS]
        found = {}
        for name, dtype, declared in shapes:
            shape = [3 if n < 0 else n for n in declared]
            if dtype == "float64":
                found[name] = draw.uniform(-1.2, 1.2, shape).astype(as_dtype(self.dtype))
            else:
                found[name] = np.asarray(draw.integers(0, 2, shape)).astype(dtype)
        return found


def variants(seed: int, **more: Any) -> list[Question]:
    """Four variants of the program of `seed`: all zeros positive, all negative, and two with mixed signs in a dtype."""
    draw = random.Random(seed)
    mixed = draw.getrandbits(64)
    dtype = draw.choice(("float64", *HALVES))
    chosen = [(0, "float64"), (-1, "float64"), (mixed, dtype), (~mixed, dtype)]
    return [Question(_variant(seed, signs, each), seed, i, each, **more) for i, (signs, each) in enumerate(chosen)]


def _variant(seed: int, signs: int, dtype: str) -> dict[str, Any]:
    """The program of `seed` with added ops whose results depend on the sign of a zero; bit i of `signs` is a sign."""
    draw = random.Random(seed)
    document = written(seed, depth=3)
    blocks = [*document["blocks"], *(b for f in document.get("functions", {}).values() for b in f["program"]["blocks"])]
    bits = iter(range(10**6))

    def zero() -> float:
        return -0.0 if signs >> next(bits) % 64 & 1 else 0.0

    for block in blocks:
        ops = []
        for op in block["ops"]:
            ops.append(op)
            if op["type"] == "fill_constant" and op["attrs"]["dtype"] == "float64" and draw.random() < 0.3:
                op["attrs"]["value"] = zero()
            if op["type"] in (*UNARY, "mul") and draw.random() < 0.7:
                type, attr, rest = draw.choice(SENSITIVE)
                (out,), at = op["outputs"]["out"], next(bits)
                ops.append(_op(type, [out], f"z{at}", {attr: zero(), **rest}))
                ops.append(_op("scale", [f"z{at}"], f"minus{at}", {"scale": 0.0, "bias": draw.choice((-1, -1.0))}))
                ops.append(_op("atan2", [f"z{at}", f"minus{at}"], f"side{at}", {}))  # pi or -pi
                ops.append(_op("add", [out, f"side{at}"], f"sum{at}", {}))
                ops.append(_op("sin", [f"sum{at}"], out, {}))
        block["ops"] = ops
    return json.loads(json.dumps(document).replace('"float64"', f'"{dtype}"'))  # type: ignore[no-any-return]


def _op(type: str, inputs: list[str], out: str, attrs: dict[str, Any]) -> dict[str, Any]:
    slots = dict(zip(("x", "y"), ([n] for n in inputs), strict=False))
    return {"type": type, "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs}
