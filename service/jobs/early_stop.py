"""Early stopping: end a job when a metric has not improved for some judgements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["EarlyStop", "Judged"]


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """The rule. It judges after each validation, or without one after each epoch.

    metric:    name of a validation metric (``validation/loss``), or of a training metric (``loss``), whose mean since
               the last judgement counts.
    patience:  number of judgements without an improvement after which the job ends.
    min_delta: least change that is an improvement.
    """

    metric: str
    patience: int
    min_delta: float = 0.0
    mode: Literal["min", "max"] = "min"

    def improves(self, value: float | None, best: float | None) -> bool:
        """Whether `value` is better than the best one by more than `min_delta`. None and NaN improve nothing."""
        if value is None or math.isnan(value):
            return False
        if best is None:
            return True
        return best - value > self.min_delta if self.mode == "min" else value - best > self.min_delta


@dataclass(slots=True)
class Judged:
    """The judgements so far. best: the best value, at the step best_step. since: number of judgements after it."""

    best: float | None = None
    best_step: int = 0
    since: int = 0

    def add(self, rule: EarlyStop, value: float | None, step: int) -> bool:
        """Judge `value`; returns whether the job ends now."""
        if rule.improves(value, self.best):
            self.best, self.best_step, self.since = value, step, 0
            return False
        self.since += 1
        return self.since >= rule.patience
