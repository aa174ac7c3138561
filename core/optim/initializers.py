"""Initial values of parameters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from core.ir import TensorType, Variable
from core.ir.errors import ProgramError
from core.ir.suggest import near
from core.ops.common.types import as_dtype

__all__ = ["INITIALIZERS", "initial_parameters"]

INITIALIZERS: dict[str, dict[str, float]] = {
    "zeros": {},
    "ones": {},
    "constant": {"value": 0.0},
    "uniform": {"min": -0.1, "max": 0.1},
    "normal": {"mean": 0.0, "std": 0.01},
    "glorot_uniform": {},
    "glorot_normal": {},
    "he_uniform": {},
    "he_normal": {},
}
"""Initialiser -> its attributes with their defaults."""


def initial_parameters(
    variables: Iterable[Variable], initializers: Mapping[str, Mapping[str, Any]], seed: int = 0
) -> dict[str, np.ndarray]:
    """An initial value for each variable.

    initializers: variable name -> ``{"type": ..., attributes}``. By default arrays of rank 2 or more are drawn by
                  `glorot_uniform`, and others are zeros.
    seed:         each variable draws from a random stream derived from `seed` and its name, so the order of the
                  declarations does not matter.

    Raises ProgramError (unknown_variable, bad_initializer).
    """
    variables = list(variables)
    names = {v.name for v in variables}
    for name in initializers:
        if name not in names:
            raise ProgramError(
                f"an initialiser is given for {name!r}, but the program has no such parameter",
                "unknown_variable",
                suggestion=near(name, [v.name for v in variables]),
            )
    found = {}
    for v in variables:
        default = {"type": "glorot_uniform" if v.type.rank >= 2 else "zeros"}
        found[v.name] = _value(v.name, v.type, initializers.get(v.name, default), seed)
    return found


def _value(name: str, type: TensorType, spec: Mapping[str, Any], seed: int) -> np.ndarray:
    kind = spec.get("type")
    if kind not in INITIALIZERS:
        raise ProgramError(
            f"the initialiser of {name!r} has an unknown type",
            "bad_initializer",
            suggestion=near(str(kind), INITIALIZERS) or f"one of {', '.join(INITIALIZERS)}",
        )
    given = {k: v for k, v in spec.items() if k != "type"}
    for k, v in given.items():
        if k not in INITIALIZERS[kind]:
            message = f"initialiser {kind} of {name!r} has no attribute {k!r}"
            raise ProgramError(message, "bad_initializer", suggestion=near(k, INITIALIZERS[kind]))
        if isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v):
            raise ProgramError(f"attribute {k!r} of the initialiser of {name!r} must be a number", "bad_initializer")
    attrs = INITIALIZERS[kind] | given
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    draw = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    fan_in, fan_out = _fans(type.shape)
    if kind in ("zeros", "ones", "constant"):
        values: Any = np.full(type.shape, {"zeros": 0.0, "ones": 1.0}.get(kind, attrs.get("value", 0.0)))
    elif kind == "uniform":
        if not attrs["min"] <= attrs["max"]:
            raise ProgramError(f"min of the initialiser of {name!r} must not be above max", "bad_initializer")
        values = draw.uniform(attrs["min"], attrs["max"], type.shape)
    elif kind == "normal":
        if attrs["std"] < 0:
            raise ProgramError(f"std of the initialiser of {name!r} must be at least 0", "bad_initializer")
        values = draw.normal(attrs["mean"], attrs["std"], type.shape)
    else:
        # variance 2 / (fan_in + fan_out): Glorot and Bengio 2010; 2 / fan_in: He et al. 2015
        fan = (fan_in + fan_out) / 2 if kind.startswith("glorot") else fan_in / 2
        std = 1.0 / math.sqrt(max(fan, 1.0))
        if kind.endswith("uniform"):
            values = draw.uniform(-std * math.sqrt(3.0), std * math.sqrt(3.0), type.shape)
        else:
            values = draw.normal(0.0, std, type.shape)
    return np.asarray(values).astype(as_dtype(type.dtype))


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight. A matrix is [in, out], a filter [out, in, height, width]."""
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    if len(shape) == 2:
        return shape[0], shape[1]
    field_size = math.prod(shape[2:])
    return shape[1] * field_size, shape[0] * field_size
