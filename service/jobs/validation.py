"""The metrics of a validation: means over all its rows, computed in calls of some batches each."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from service.jobs.job import Spec
from service.jobs.sessions import Sessions
from service.sessions.session import Session

__all__ = ["validated"]

TARGET_S = 0.25
FIRST_BATCHES, MOST_BATCHES = 4, 10_000


async def validated(
    sessions: Sessions, session: Session, spec: Spec, deadline: float, between: Callable[[], Awaitable[None]]
) -> tuple[dict[str, float | None], float]:
    """(metric -> its mean over the rows of the validation, seconds of the worker). The session does not change.

    The mean of each metric weighs a batch by its rows, and is rounded once: it does not depend on the calls. None if a
    value is not finite.

    between: called between two calls of a worker; an error that it raises ends the validation.
    """
    assert spec.validation is not None
    names, start, count, seconds = spec.measured, 0, FIRST_BATCHES, 0.0
    values: list[list[float]] = []
    rows: list[int] = []
    while True:
        args: dict[str, Any] = {"data": spec.validation.data, "start": start, "batches": count, "metrics": names}
        began = time.monotonic()
        reply = await sessions.read(session, "session.evaluate_on", args, {}, deadline)
        took = time.monotonic() - began
        values += reply.result["values"]
        rows += reply.result["rows"]
        seconds += reply.timing_ms.get("compute", 0.0) / 1e3
        start += count
        if start >= reply.result["batches"]:
            break
        await between()
        count = int(max(1, min(MOST_BATCHES, count * 4, count * TARGET_S / max(took, 1e-6))))
    return {name: _mean([each[i] for each in values], rows) for i, name in enumerate(names)}, seconds


def _mean(values: list[float], rows: list[int]) -> float | None:
    if not rows or not all(map(math.isfinite, values)):
        return None
    return math.fsum(value * count for value, count in zip(values, rows, strict=True)) / sum(rows)
