"""Histograms of a session's parameters and states, computed where the arrays are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.ir.errors import ProgramError
from core.ir.stop import poll
from service.worker.session import chosen, session_of
from service.worker.state import WorkerState

__all__ = ["histogram"]

CHUNK = 2**18
"""Elements to convert to float64 at a time: two megabytes."""


def histogram(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Histograms of ``args["names"]``, or of all parameters and states if that is None. args: id, names, bins.

    Changes nothing. Raises ProgramError (feed_unknown) with all unknown names.
    """
    session = session_of(state, args)
    held = session.parameters | session.states
    names = chosen(held, args["names"])
    if not 1 <= args["bins"] <= 1000:
        raise ProgramError(f"a histogram has 1 to 1000 bins, not {args['bins']}", "bad_query")
    found = [
        {"name": name, "role": "state" if name in session.states else "parameter"}
        | _of(state, held[name], args["bins"])
        for name in names
    ]
    return session.about() | {"histograms": found}, {}


def _of(state: WorkerState, array: Any, bins: int) -> dict[str, Any]:
    """Counts and moments of an array of any type. Complex numbers count by their magnitude.

    `counts` divides the range from `min` to `max` of the finite elements into equal bins; the last one is closed.
    """
    flat = array.reshape(-1)
    lowest, highest, total, finite, zeros, nan = math.inf, -math.inf, 0.0, 0, 0, 0
    for values in _chunks(state, flat):
        poll()
        nan += int(np.isnan(values).sum())
        zeros += int((values == 0).sum())
        good = values[np.isfinite(values)]
        finite += good.size
        if good.size:
            lowest, highest = min(lowest, float(good.min())), max(highest, float(good.max()))
            total += float((good / max(flat.size, 1)).sum())  # divided first: a sum of large values overflows
    about: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape), "count": int(flat.size)}
    about |= {"zeros": zeros, "nan": nan, "infinite": int(flat.size) - finite - nan}
    if not finite:
        return about | {"min": None, "max": None, "mean": None, "std": None, "counts": []}
    mean = min(max(total * (flat.size / finite), lowest), highest)
    counts = np.zeros(bins, np.int64)
    scale = max(abs(lowest - mean), abs(highest - mean)) or 1.0
    scale = scale if math.isfinite(scale) else np.finfo(np.float64).max
    spread = 0.0
    for values in _chunks(state, flat):
        poll()
        good = values[np.isfinite(values)]
        counts += np.bincount(_bin_of(good, lowest, highest, bins), minlength=bins)
        spread += float(np.square(good / scale - mean / scale).sum())
    deviation = scale * math.sqrt(spread / finite)
    return about | {
        "min": lowest,
        "max": highest,
        "mean": mean,
        "std": deviation if math.isfinite(deviation) else None,
        "counts": counts.tolist(),
    }


def _bin_of(values: np.ndarray, lowest: float, highest: float, bins: int) -> np.ndarray:
    """The number of the bin of each value. Halves are subtracted because the whole range may overflow."""
    half = highest / 2 - lowest / 2
    if half == 0.0:
        return np.zeros(values.size, np.int64)
    share = (values / 2 - lowest / 2) / half
    return np.minimum((share * bins).astype(np.int64), bins - 1)


def _chunks(state: WorkerState, flat: Any) -> Any:
    for i in range(0, flat.size, CHUNK):
        part = state.to_host(flat[i : i + CHUNK])
        yield np.abs(part).astype(np.float64) if part.dtype.kind == "c" else part.astype(np.float64)
