"""Initial values of parameters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from core.ir import TensorType, Variable
from core.ir.aligned import aligned_empty
from core.ir.errors import ProgramError, below, escaped
from core.ir.patterns import first_match, matches
from core.ir.slot_roles import Role
from core.ir.stop import poll
from core.ir.suggest import near
from core.ops.common.types import as_dtype

__all__ = ["BY_ROLE", "INITIALIZERS", "initial_parameters", "named"]

PIECE = 1 << 20
"""Random numbers that are drawn at a time."""

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
    "unit_rows": {},
}
"""Initialiser -> its attributes with their defaults."""


BY_ROLE: Mapping[Role, Mapping[str, Any]] = {
    "scale": {"type": "ones"},
    "shift": {"type": "zeros"},
    "spread": {"type": "ones"},
    "divisor": {"type": "ones"},
    "slope": {"type": "constant", "value": 0.25},
    "table": {"type": "unit_rows"},
}
"""Role of a parameter -> its initialiser by default."""


def initial_parameters(
    variables: Iterable[Variable],
    initializers: Mapping[str, Mapping[str, Any]],
    seed: int = 0,
    roles: Mapping[str, Role] | None = None,
) -> dict[str, np.ndarray]:
    """An initial value for each variable.

    initializers: name or pattern -> ``{"type": ..., attributes}``. A name goes before patterns, and the first pattern
                  that matches goes before the later ones. By default the role of a variable decides; without one,
                  parameters of rank 2 or more are drawn by `glorot_uniform`, and others are zeros.
    roles:        variable -> its role, from `core.optim.parameter_roles`.
    seed:         each variable draws from a random stream derived from `seed` and its name, so the order of the
                  declarations does not matter.

    Raises ProgramError (bad_initializer). Its pointer leads from `initializers` to the mistake.
    """
    variables = list(variables)
    for pattern in initializers:
        if not any(matches(pattern, v.name) for v in variables):
            raise ProgramError(
                f"an initializer is given for {pattern!r}, but the program has no such parameter",
                "bad_initializer",
                suggestion=near(pattern, [v.name for v in variables]),
                pointer=f"/{escaped(pattern)}",
            )
    found = {}
    for v in variables:
        given = _key_of(v.name, initializers)
        spec = _default(v, (roles or {}).get(v.name)) if given is None else initializers[given]
        with below("" if given is None else f"/{escaped(given)}"):
            found[v.name] = _value(v.name, v.type, spec, seed)
    return found


def named(name: str, initializers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether an initialiser is given for the variable `name`, by its name or by a pattern."""
    return _key_of(name, initializers) is not None


def _key_of(name: str, initializers: Mapping[str, Any]) -> str | None:
    """The name or pattern that chooses the initialiser of the variable `name`; None if there is none."""
    if name in initializers:
        return name
    position = first_match(([pattern] for pattern in initializers), name)
    return None if position is None else list(initializers)[position]


def _default(variable: Variable, role: Role | None) -> Mapping[str, Any]:
    if role is not None:
        return BY_ROLE[role]
    is_weight = variable.role == "parameter" and variable.type.rank >= 2
    return {"type": "glorot_uniform" if is_weight else "zeros"}


def _value(name: str, type: TensorType, spec: Mapping[str, Any], seed: int) -> np.ndarray:
    kind = spec.get("type")
    if kind not in INITIALIZERS:
        raise ProgramError(
            f"the initializer of {name!r} has an unknown type",
            "bad_initializer",
            pointer="/type",
            suggestion=near(str(kind), INITIALIZERS) or f"one of {', '.join(INITIALIZERS)}",
        )
    given = {k: v for k, v in spec.items() if k != "type"}
    for k, v in given.items():
        if k not in INITIALIZERS[kind]:
            message, hint = f"initializer {kind} of {name!r} has no attribute {k!r}", near(k, INITIALIZERS[kind])
            raise ProgramError(message, "bad_initializer", suggestion=hint, pointer=f"/{escaped(k)}")
        if isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v):
            message = f"attribute {k!r} of the initializer of {name!r} must be a number"
            raise ProgramError(message, "bad_initializer", pointer=f"/{k}")
    attrs = INITIALIZERS[kind] | given
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    draw = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    numbers: Any
    fan_in, fan_out = _fans(type.shape)
    if kind in ("zeros", "ones", "constant"):
        value = {"zeros": 0.0, "ones": 1.0}.get(kind, attrs.get("value", 0.0))
        with np.errstate(over="ignore"):
            one = np.asarray(value).astype(as_dtype(type.dtype))
        _check_finite(name, type, one)
        return np.full(type.shape, one)
    if kind == "uniform":
        if not attrs["min"] <= attrs["max"]:
            raise ProgramError(f"min of the initializer of {name!r} must not be above max", "bad_initializer")
        if math.isinf(attrs["max"] - attrs["min"]):
            raise ProgramError(f"the range of the initializer of {name!r} is too wide", "bad_initializer")
        numbers = partial(draw.uniform, attrs["min"], attrs["max"])
    elif kind == "normal":
        if attrs["std"] < 0:
            raise ProgramError(f"std of the initializer of {name!r} must be at least 0", "bad_initializer")
        numbers = partial(draw.normal, attrs["mean"], abs(attrs["std"]))  # NumPy refuses -0.0
    elif kind == "unit_rows":  # rows whose squares add up to about 1
        numbers = partial(draw.normal, 0.0, 1.0 / math.sqrt(max(math.prod(type.shape[1:]), 1)))
    else:
        # variance 2 / (fan_in + fan_out): Glorot and Bengio 2010; 2 / fan_in: He et al. 2015
        fan = (fan_in + fan_out) / 2 if kind.startswith("glorot") else fan_in / 2
        std = 1.0 / math.sqrt(max(fan, 1.0))
        if kind.endswith("uniform"):
            numbers = partial(draw.uniform, -std * math.sqrt(3.0), std * math.sqrt(3.0))
        else:
            numbers = partial(draw.normal, 0.0, std)
    return _drawn(name, type, numbers)


def _drawn(name: str, type: TensorType, numbers: Callable[[int], np.ndarray]) -> np.ndarray:
    """An array of random numbers, drawn in pieces: the same numbers as in one piece, and a stop between two pieces.

    Raises ProgramError (bad_initializer) for numbers that are not finite in the dtype.
    """
    found = aligned_empty((math.prod(type.shape),), as_dtype(type.dtype))
    for start in range(0, found.size, PIECE):
        poll()
        piece = found[start : start + PIECE]
        with np.errstate(over="ignore"):
            piece[...] = numbers(piece.size)
        _check_finite(name, type, piece)
    return found.reshape(type.shape)


def _check_finite(name: str, type: TensorType, values: np.ndarray) -> None:
    """Raises ProgramError (bad_initializer) unless all values are finite."""
    if not np.isfinite(values).all():
        raise ProgramError(
            f"the initializer of {name!r} gives values that are not finite in {type.dtype}", "bad_initializer"
        )


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight. A matrix is [in, out], a filter [out, in, height, width]."""
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    if len(shape) == 2:
        return shape[0], shape[1]
    field_size = math.prod(shape[2:])
    return shape[1] * field_size, shape[0] * field_size
