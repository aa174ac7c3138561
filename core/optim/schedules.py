"""Learning-rate schedules: the rate as a function of the number of completed steps, written in ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError
from core.ir.registry import Example, Family, OpSpec, composite
from core.ir.suggest import near
from core.ops.common.ranges import Count, Positive
from core.ops.elementwise.arithmetic import cast, maximum, minimum, pow_
from core.ops.elementwise.logic import greater_equal, less_equal, less_than, where
from core.ops.elementwise.math import clip, cos, exp, rsqrt
from core.ops.elementwise.rounding import ceil, floor
from core.ops.shape.creation import fill_zeros_like, full_like

__all__ = ["SCHEDULES", "Schedule"]

FAMILY = Family("schedules", "Learning rates as functions of the number of updates")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule with its attributes, checked and completed with defaults.

    Raises ProgramError (unknown_schedule, bad_attr).
    """

    type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.type not in SCHEDULES:
            hint = near(self.type, SCHEDULES) or f"one of {', '.join(SCHEDULES)}"
            raise ProgramError(
                f"unknown schedule {self.type!r}", "unknown_schedule", suggestion=hint, pointer="/schedule"
            )
        object.__setattr__(self, "attrs", SCHEDULES[self.type].complete(self.attrs))
        self.rate(BlockBuilder().param(TensorType((), "int64"), "step"))  # some values contradict each other

    def rate(self, step: Value) -> Value:
        """The rate, a float64 scalar. step: the int64 number of completed steps."""
        return step.builder.emit(self.type, step, **self.attrs)


SCHEDULES: dict[str, OpSpec] = {}
"""Every schedule, by name."""


def schedule(function: Callable[..., Any]) -> OpSpec:
    """Declare a schedule: a composite op of the step, an int64 count."""
    spec: OpSpec = composite(no_gradient="it depends on an integer only")(function)
    SCHEDULES[spec.name] = spec
    return spec


def _count(step: Value) -> Value:
    return cast(step, dtype="float64")


def _full(x: Value, value: float) -> Value:
    return full_like(x, value=value)


def _periods(step: Value, decay_steps: int, staircase: bool) -> Value:
    periods = _count(step) / float(decay_steps)
    return floor(periods) if staircase else periods


@schedule
def exponential_decay(step, *, learning_rate: float, decay_steps: Count, decay_rate: Positive, staircase: bool = False):
    """``learning_rate * decay_rate ** (step / decay_steps)``. `staircase` rounds the exponent down."""
    return exp(_periods(step, decay_steps, staircase) * math.log(decay_rate)) * learning_rate


@schedule
def natural_exp_decay(step, *, learning_rate: float, decay_steps: Count, decay_rate: float, staircase: bool = False):
    """``learning_rate * exp(-decay_rate * step / decay_steps)``."""
    return exp(_periods(step, decay_steps, staircase) * -decay_rate) * learning_rate


@schedule
def inverse_time_decay(step, *, learning_rate: float, decay_steps: Count, decay_rate: float, staircase: bool = False):
    """``learning_rate / (1 + decay_rate * step / decay_steps)``."""
    return learning_rate / (_periods(step, decay_steps, staircase) * decay_rate + 1.0)


@schedule
def polynomial_decay(
    step,
    *,
    learning_rate: float,
    decay_steps: Count,
    end_learning_rate: float = 0.0001,
    power: Positive = 1.0,
    cycle: bool = False,
):
    """``(learning_rate - end) * (1 - step / decay_steps) ** power + end``, with end = `end_learning_rate`.

    From step `decay_steps` on the rate is `end_learning_rate`. With `cycle`, decay_steps is replaced by its smallest
    positive multiple that is at least the step.
    """
    done = _periods(step, decay_steps, False)
    if cycle:
        done = done / clip(ceil(done), min=1.0)
    left = clip(1.0 - done, min=0.0)
    return pow_(left, _full(left, power)) * (learning_rate - end_learning_rate) + end_learning_rate


@schedule
def piecewise_decay(step, *, boundaries: tuple[int, ...], values: tuple[float, ...]):
    """``values[i]``, where i is the number of `boundaries` less than or equal to the step."""
    if len(values) != len(boundaries) + 1 or list(boundaries) != sorted(boundaries):
        raise ProgramError(
            f"piecewise_decay needs ascending boundaries and one value more than boundaries, not {len(values)} values "
            f"for the boundaries {list(boundaries)}",
            "bad_attr",
        )
    rate = full_like(_count(step), value=values[0])
    for boundary, value in zip(boundaries, values[1:], strict=True):
        reached = greater_equal(step, _full(step, boundary))
        rate = where(reached, _full(rate, value), rate)
    return rate


@schedule
def noam_decay(step, *, d_model: Count, warmup_steps: Count, learning_rate: float = 1.0):
    """``learning_rate * d_model ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5)``, where n = step + 1.

    Vaswani et al. 2017.
    """
    n = _count(step) + 1.0
    return minimum(rsqrt(n), n * warmup_steps**-1.5) * (learning_rate * d_model**-0.5)


@schedule
def cosine_decay(step, *, learning_rate: float, decay_steps: Count, end_learning_rate: float = 0.0):
    """``end + (start - end) * (1 + cos(pi * step / decay_steps)) / 2`` (Loshchilov and Hutter 2017).

    start is `learning_rate` and end is `end_learning_rate`, at which the rate stays.
    """
    done = clip(_periods(step, decay_steps, False), max=1.0)
    share = (cos(done * math.pi) + 1.0) * 0.5
    return share * (learning_rate - end_learning_rate) + end_learning_rate


@schedule
def linear_lr_warmup(step, *, learning_rate: float, warmup_steps: Count, start_learning_rate: float = 0.0):
    """``start + (rate - start) * min(step / warmup_steps, 1)``: from `start_learning_rate` to `learning_rate`."""
    done = clip(_periods(step, warmup_steps, False), max=1.0)
    return done * (learning_rate - start_learning_rate) + start_learning_rate


@schedule
def warmup_cosine_decay(
    step, *, learning_rate: float, warmup_steps: Count, decay_steps: Count, end_learning_rate: float = 0.0
):
    """`linear_lr_warmup` for `warmup_steps` steps, then `cosine_decay` for `decay_steps` steps."""
    up = linear_lr_warmup(step, learning_rate=learning_rate, warmup_steps=warmup_steps)
    later = maximum(step - _full(step, warmup_steps), fill_zeros_like(step))
    down = cosine_decay(
        later, learning_rate=learning_rate, decay_steps=decay_steps, end_learning_rate=end_learning_rate
    )
    return where(less_than(step, _full(step, warmup_steps)), up, down)


@schedule
def one_cycle(
    step,
    *,
    learning_rate: float,
    total_steps: Count,
    warmup: float = 0.3,
    start_factor: float = 0.04,
    end_factor: float = 4e-6,
):
    """Half a cosine up to `learning_rate` during the fraction `warmup` of `total_steps` steps, then half a cosine down.

    The rate starts at ``start_factor * learning_rate``. From step ``total_steps - 1`` on it is ``end_factor *
    learning_rate`` (Smith and Topin 2019).
    """
    last = total_steps - 1.0
    top = warmup * total_steps - 1.0
    if not 0 < top < last:
        raise ProgramError(
            f"a warmup of {warmup} of {total_steps} steps leaves no step to rise or no step to fall", "bad_attr"
        )
    n = _count(step)
    up = (1.0 - cos(n * (math.pi / top))) * 0.5
    down = (1.0 + cos(clip((n - top) / (last - top), max=1.0) * math.pi)) * 0.5
    rising = less_equal(n, _full(n, top))
    share = where(rising, up * (1.0 - start_factor) + start_factor, down * (1.0 - end_factor) + end_factor)
    return share * learning_rate


def _at(spec: OpSpec, wanted: Callable[[int], float], **attrs: Any) -> None:
    spec.example(lambda: [Example((np.array(n),), (np.array(wanted(n)),), attrs) for n in (0, 7, 40)])


_at(exponential_decay, lambda n: 0.1 * 0.5 ** (n / 10), learning_rate=0.1, decay_steps=10, decay_rate=0.5)
_at(
    natural_exp_decay,
    lambda n: 0.1 * math.exp(-0.5 * (n // 10)),
    learning_rate=0.1,
    decay_steps=10,
    decay_rate=0.5,
    staircase=True,
)
_at(inverse_time_decay, lambda n: 0.1 / (1 + 0.05 * n), learning_rate=0.1, decay_steps=10, decay_rate=0.5)
_at(piecewise_decay, lambda n: (0.1, 0.01, 0.001)[(n >= 7) + (n >= 20)], boundaries=(7, 20), values=(0.1, 0.01, 0.001))
_at(
    noam_decay,
    lambda n: 2 * 16**-0.5 * min((n + 1) ** -0.5, (n + 1) * 10**-1.5),
    d_model=16,
    warmup_steps=10,
    learning_rate=2.0,
)
_at(cosine_decay, lambda n: 0.05 * (1 + math.cos(math.pi * min(n / 20, 1))), learning_rate=0.1, decay_steps=20)
_at(
    linear_lr_warmup,
    lambda n: 0.01 + 0.09 * min(n / 20, 1),
    learning_rate=0.1,
    warmup_steps=20,
    start_learning_rate=0.01,
)
_at(
    warmup_cosine_decay,
    lambda n: 0.1 * n / 10 if n < 10 else 0.05 * (1 + math.cos(math.pi * min((n - 10) / 20, 1))),
    learning_rate=0.1,
    warmup_steps=10,
    decay_steps=20,
)


def _cycled(n):
    decay_steps = 15 * max(math.ceil(n / 15), 1)
    return 0.09 * (1 - n / decay_steps) + 0.01


polynomial_decay.example(
    lambda: [
        Example((np.array(n),), (np.array(wanted),), {"learning_rate": 0.1, **attrs})
        for n in (0, 7, 15, 40)
        for wanted, attrs in (
            (0.099 * max(1 - n / 20, 0) ** 2 + 0.001, {"decay_steps": 20, "power": 2.0, "end_learning_rate": 0.001}),
            (_cycled(n), {"decay_steps": 15, "end_learning_rate": 0.01, "cycle": True}),
        )
    ]
)


def _one_cycle(n):
    if n <= 8:
        return 0.1 * (0.04 + 0.96 * (1 - math.cos(math.pi * n / 8)) / 2)
    return 0.1 * (4e-6 + (1 - 4e-6) * (1 + math.cos(math.pi * min((n - 8) / 21, 1))) / 2)


_at(one_cycle, _one_cycle, learning_rate=0.1, total_steps=30)
