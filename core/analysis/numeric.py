"""A numeric check of gradients, at values that the client gives or at random values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.compiler.compile import GradientQuery, compile_forward, compile_gradient
from core.cost.scratch import drawn_bytes
from core.ir import Program
from core.ir.errors import ProgramError
from core.ops.common.types import byte_size
from core.runtime.run import Run, RunLimits
from core.runtime.sparse_rows import RowArray

__all__ = ["Comparison", "check_gradients", "random_values"]

MANY = 10_000
"""Most positions that are permuted to choose a few of them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of the check of one parameter.

    worst:   position of the checked element with the largest error.
    error:   its relative error, the difference divided by the largest of the two values and `floor`.
    kinks:   elements whose one-sided differences disagree; the function may have no gradient there.
    checked: number of elements checked.
    """

    worst: tuple[int, ...]
    analytic: float
    numeric: float
    error: float
    kinks: int
    checked: int
    passed: bool

    def as_document(self) -> dict[str, Any]:
        """The comparison as JSON-ready values. A number that is not finite becomes null."""

        def shown(value: float) -> float | None:
            return value if np.isfinite(value) else None

        return {
            "worst": list(self.worst),
            "analytic": shown(self.analytic),
            "numeric": shown(self.numeric),
            "error": shown(self.error),
            "kinks": self.kinks,
            "checked": self.checked,
            "passed": self.passed,
        }


def random_values(program: Program, given: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """`given`, and random values for each other leaf: floats from the normal distribution, integers and bools 0.

    Raises ProgramError (feed_missing) for a leaf of unknown size.
    """
    r = np.random.default_rng(seed)
    values = dict(given)
    for v in program.variables:
        if v.role == "key" or v.name in values:
            continue
        if not v.type.is_static:
            raise ProgramError(f"{v.name!r} needs a value, because {v.type} has an unknown size", "feed_missing")
        if v.type.is_float:
            values[v.name] = r.standard_normal(v.type.shape).astype(v.type.dtype)
        else:
            values[v.name] = np.zeros(v.type.shape, dtype=v.type.dtype)
    return values


def check_gradients(
    program: Program,
    loss: str,
    given: Mapping[str, np.ndarray],
    parameter_list: Sequence[str] | None = None,
    *,
    samples: int = 50,
    tolerance: float | None = None,
    seed: int = 0,
    limits: RunLimits | None = None,
) -> dict[str, Comparison]:
    """Compare d loss / d parameter with central differences, at `samples` random elements of each parameter.

    tolerance: largest relative error that passes; by default 1e-5 for float64 and 2e-2 for float32.
    Raises ProgramError and ExecutionError as a step does.
    """
    missing = [v.type for v in program.variables if v.role != "key" and v.name not in given]
    copies = 2 * max([0, *(byte_size(v.type) for v in program.parameters)])  # one for each side of a difference
    Run(np, limits or RunLimits()).admit(drawn_bytes(missing) + copies, None)
    values = random_values(program, given, seed)
    shapes = {v.name: values[v.name].shape for v in program.feeds}
    wanted = None if parameter_list is None else tuple(parameter_list)
    step = compile_gradient(program, GradientQuery(loss=loss, parameter_list=wanted), shapes=shapes)
    forward = compile_forward(program, [loss], shapes)
    out = step.step(_read(step.inputs, values), seed=seed, limits=limits).gradients
    found = {name: grad.whole() if isinstance(grad, RowArray) else grad for name, grad in out.items()}
    inputs = _read(forward.inputs, values)

    def at(name: str, perturbed: np.ndarray) -> float:
        if name not in inputs:
            return base
        out = forward.step({**inputs, name: perturbed}, seed=seed, limits=limits)
        return float(np.asarray(out.fetched[loss], dtype=np.float64).reshape(()))

    base = float(np.asarray(forward.step(inputs, seed=seed, limits=limits).fetched[loss], np.float64).reshape(()))
    r = np.random.default_rng(seed)
    return {name: _compare(values[name], grad, lambda m, n=name: at(n, m), base, samples, tolerance, r)
            for name, grad in found.items()}  # fmt: skip


def _read(inputs: Sequence[Any], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {v.name: values[v.name] for v in inputs if v.name in values}


def _compare(
    value: np.ndarray,
    grad: np.ndarray,
    f: Any,
    base: float,
    samples: int,
    tolerance: float | None,
    r: np.random.Generator,
) -> Comparison:
    short = value.dtype != np.float64
    width = 1e-2 if short else 1e-6
    tolerance = tolerance if tolerance is not None else (2e-2 if short else 1e-5)
    scale = max(float(np.max(grad, initial=0.0)), -float(np.min(grad, initial=0.0)), 1e-8)
    chosen = _chosen(r, value.size, samples)
    worst = Comparison((), 0.0, 0.0, 0.0, 0, len(chosen), True)
    kinks = 0
    for index in sorted(int(i) for i in chosen):
        place = tuple(int(i) for i in np.unravel_index(index, value.shape))
        step = width * max(1.0, abs(float(value[place])))
        up, down = value.copy(), value.copy()
        up[place] += step
        down[place] -= step
        above, below = f(up), f(down)
        perturbed = float(up[place]) - float(down[place])
        numeric = (above - below) / perturbed
        analytic = float(grad[place])
        right, left = (above - base) / (perturbed / 2), (base - below) / (perturbed / 2)
        kink = abs(right - left) > 100 * width * max(abs(right), abs(left), scale)
        kinks += kink
        error = abs(analytic - numeric) / max(abs(analytic), abs(numeric), 1e-3 * scale)
        if not error <= worst.error and not kink:
            worst = Comparison(place, analytic, numeric, error, 0, len(chosen), bool(error <= tolerance))
    return Comparison(worst.worst, worst.analytic, worst.numeric, worst.error, kinks, worst.checked, worst.passed)


def _chosen(r: np.random.Generator, size: int, samples: int) -> np.ndarray:
    """Up to `samples` different positions below `size`. A permutation of a large array would take eight bytes each."""
    return r.permutation(size)[:samples] if size <= MANY else r.choice(size, min(samples, size), replace=False)
