"""The values that a job records of each step: loss, gradient norm, learning rate, fetched scalars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.compiler.compile import Outputs
from core.ir.errors import ExecutionError
from core.optim.rates import Rates
from core.runtime.sparse_rows import RowArray
from service.worker.finite import judged
from service.worker.state import WorkerState

__all__ = ["Curves", "scalar"]

PART = 2**13
"""Elements of a gradient that are squared and summed at a time: BLAS uses one thread for so few, so that the sum does
not depend on the number of threads."""

LEAST = 1e-30
"""Sums of squares below this have lost digits, or all of them, in float32."""

SUMMED = (np.dtype("float32"), np.dtype("float64"))


class Curves:
    """Columns with one value for each step; None for one that is not finite."""

    def __init__(self, state: WorkerState, rates: Rates, require_finite: bool) -> None:
        self.done = 0
        self.finite = True
        self._state, self._rates, self._require_finite = state, rates, require_finite
        self._columns: dict[str, list[Any]] = {"loss": [], "gradient_norm": []}
        self._scheduled: dict[str, list[Any]] = {}

    def add(self, out: Outputs) -> None:
        """Add the outputs of a step. Raises ExecutionError (not_finite), before the step changes anything."""
        state = self._state
        if state.xp is np:
            norm = global_norm(out.gradients)
            finite = math.isfinite(norm) or all(map(_is_finite, out.gradients.values()))
        else:
            _, norms = judged(state, out, with_norms=True, require_finite=False)
            norm = math.hypot(*norms.values())
            finite = all(map(math.isfinite, norms.values()))
        loss = scalar(state, out.loss)
        values = {name: scalar(state, value) for name, value in out.fetched.items()}
        known = all(map(math.isfinite, (loss, *values.values())))
        if self._require_finite and not (known and (finite or out.scaling)):
            names = [name for name, value in {"loss": loss, **values}.items() if not math.isfinite(value)]
            names += [] if finite else ["the gradients"]
            raise ExecutionError(f"not finite: {', '.join(names)}", "not_finite")
        self.finite = self.finite and known and finite
        put = self._columns
        put["loss"].append(loss if math.isfinite(loss) else None)
        put["gradient_norm"].append(norm if math.isfinite(norm) else None)
        for name, value in values.items():
            put.setdefault(f"metric/{name}", []).append(value if math.isfinite(value) else None)
        for name, given in out.rates.items():
            self._scheduled.setdefault(name, []).append(scalar(state, given))
        for name, given in out.scaling.items():
            put.setdefault(name, []).append(float(scalar(state, given)))
        self.done += 1

    def columns(self) -> dict[str, list[Any]]:
        """Name -> the values of all steps: loss, gradient_norm, learning_rate (for each group, if there are several),
        metric/<variable>, and those of a dynamic loss scale."""
        rates = self._rates.shown(self._scheduled, self.done)
        if isinstance(rates, Mapping):
            return self._columns | {f"learning_rate/{name}": values for name, values in rates.items()}
        return self._columns | {"learning_rate": rates}


def global_norm(gradients: Mapping[str, Any]) -> float:
    """The joint 2-norm of gradients on the CPU, equal to the bit for equal gradients."""
    total = 0.0
    for gradient in gradients.values():
        flat = _array(gradient).reshape(-1)
        if flat.dtype in SUMMED:
            found = 0.0
            for start in range(0, flat.size, PART):
                part = flat[start : start + PART]
                found += float(np.vdot(part, part))
            if math.isfinite(found) and (found > LEAST or flat.dtype != np.float32):
                total += found
                continue
        total += _squares(flat)  # squares that float32 cannot hold
    return math.sqrt(total)


def _array(gradient: Any) -> np.ndarray:
    """The elements of a gradient; those of the rows that are not zero."""
    return gradient.values if isinstance(gradient, RowArray) else gradient


def _is_finite(gradient: Any) -> bool:
    return bool(np.isfinite(_array(gradient)).all())


def _squares(flat: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(
            float(np.square(flat[start : start + PART].astype("float64")).sum()) for start in range(0, flat.size, PART)
        )


def scalar(state: WorkerState, value: Any) -> float:
    """The number in an array of one element."""
    found: float = state.to_host(value).item()
    return found
