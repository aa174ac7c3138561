"""Learning-rate schedules: the rate of a step as a function of the number of steps done, written in ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.ir.builder import Value
from core.ir.errors import ProgramError
from core.ir.registry import Example, OpSpec, composite, lookup

__all__ = ["SCHEDULES", "Schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A choice of schedule and its attributes, checked and completed with defaults.

    Raises ProgramError (unknown_schedule, bad_attr).
    """

    type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.type not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise ProgramError(f"unknown schedule {self.type!r}", "unknown_schedule", suggestion=f"one of {known}")
        object.__setattr__(self, "attrs", SCHEDULES[self.type].complete(self.attrs))

    def rate(self, step: Value) -> Value:
        """The rate, float64 and 0-d, for the int64 number of steps done."""
        return step.builder.emit(self.type, step, **self.attrs)


SCHEDULES: dict[str, OpSpec] = {}


def schedule(function: Callable[..., Any]) -> OpSpec:
    """Declare a schedule: a composite of the step, an int64 count."""
    spec: OpSpec = composite(no_gradient="it depends on an integer only")(function)
    SCHEDULES[spec.name] = spec
    return spec


def _count(step: Value) -> Value:
    return lookup("cast")(step, dtype="float64")


def _full(x: Value, value: float) -> Value:
    return lookup("full_like")(x, value=value)


def _power(base: float, exponent: Value) -> Value:
    return lookup("exp")(exponent * math.log(base)) if base > 0 else _full(exponent, 0.0)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ProgramError(f"{name} must be above 0, not {value}", "bad_attr")


def _periods(step: Value, decay_steps: int, staircase: bool) -> Value:
    _positive(decay_steps=decay_steps)
    periods = _count(step) / float(decay_steps)
    return lookup("floor")(periods) if staircase else periods


@schedule
def exponential_decay(step, *, learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False):
    """``learning_rate * decay_rate ** (step / decay_steps)``, with whole periods only if `staircase`."""
    return _power(decay_rate, _periods(step, decay_steps, staircase)) * learning_rate


@schedule
def natural_exp_decay(step, *, learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False):
    """``learning_rate * exp(-decay_rate * step / decay_steps)``."""
    return lookup("exp")(_periods(step, decay_steps, staircase) * -decay_rate) * learning_rate


@schedule
def inverse_time_decay(step, *, learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False):
    """``learning_rate / (1 + decay_rate * step / decay_steps)``."""
    return learning_rate / (_periods(step, decay_steps, staircase) * decay_rate + 1.0)


@schedule
def polynomial_decay(
    step,
    *,
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
):
    """From `learning_rate` to `end_learning_rate`; ``(1 - step / decay_steps) ** power`` of the way is left.

    Afterwards it stays there. With `cycle`, decay_steps is doubled, tripled, ... as soon as the step is beyond it.
    """
    done = _periods(step, decay_steps, False)
    if cycle:
        done = done / lookup("clip")(lookup("ceil")(done), min=1.0)
    left = lookup("clip")(1.0 - done, min=0.0)
    return lookup("pow")(left, _full(left, power)) * (learning_rate - end_learning_rate) + end_learning_rate


@schedule
def piecewise_decay(step, *, boundaries: tuple[int, ...], values: tuple[float, ...]):
    """``values[i]``, i being the number of `boundaries` that the step has reached."""
    if len(values) != len(boundaries) + 1 or list(boundaries) != sorted(boundaries):
        raise ProgramError("piecewise_decay needs ascending boundaries, and one more value than boundaries", "bad_attr")
    rate = lookup("full_like")(_count(step), value=values[0])
    for boundary, value in zip(boundaries, values[1:], strict=True):
        reached = lookup("greater_equal")(step, _full(step, boundary))
        rate = lookup("where")(reached, _full(rate, value), rate)
    return rate


@schedule
def noam_decay(step, *, d_model: int, warmup_steps: int, learning_rate: float = 1.0):
    """``learning_rate * d_model ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5)``, n = step + 1.

    Vaswani et al. 2017.
    """
    _positive(d_model=d_model, warmup_steps=warmup_steps)
    n = _count(step) + 1.0
    return lookup("minimum")(lookup("rsqrt")(n), n * warmup_steps**-1.5) * (learning_rate * d_model**-0.5)


@schedule
def cosine_decay(step, *, learning_rate: float, decay_steps: int, end_learning_rate: float = 0.0):
    """``end + (start - end) * (1 + cos(pi * step / decay_steps)) / 2`` from `learning_rate` to `end_learning_rate`
    (Loshchilov and Hutter 2017).
    """
    done = lookup("clip")(_periods(step, decay_steps, False), max=1.0)
    share = (lookup("cos")(done * math.pi) + 1.0) * 0.5
    return share * (learning_rate - end_learning_rate) + end_learning_rate


@schedule
def linear_lr_warmup(step, *, learning_rate: float, warmup_steps: int, start_learning_rate: float = 0.0):
    """``start + (rate - start) * min(step / warmup_steps, 1)`` from `start_learning_rate` to `learning_rate`."""
    done = lookup("clip")(_periods(step, warmup_steps, False), max=1.0)
    return done * (learning_rate - start_learning_rate) + start_learning_rate


@schedule
def warmup_cosine_decay(
    step, *, learning_rate: float, warmup_steps: int, decay_steps: int, end_learning_rate: float = 0.0
):
    """`linear_lr_warmup` for `warmup_steps` steps, then `cosine_decay` over `decay_steps` more."""
    _positive(warmup_steps=warmup_steps, decay_steps=decay_steps)
    up = lookup("linear_lr_warmup")(step, learning_rate=learning_rate, warmup_steps=warmup_steps)
    later = lookup("maximum")(step - _full(step, warmup_steps), lookup("fill_zeros_like")(step))
    down = lookup("cosine_decay")(
        later, learning_rate=learning_rate, decay_steps=decay_steps, end_learning_rate=end_learning_rate
    )
    return lookup("where")(lookup("less_than")(step, _full(step, warmup_steps)), up, down)


@schedule
def one_cycle(
    step,
    *,
    learning_rate: float,
    total_steps: int,
    warmup: float = 0.3,
    start_factor: float = 0.04,
    end_factor: float = 4e-6,
):
    """Half a cosine up to `learning_rate` in a share `warmup` of `total_steps` steps, then half a cosine down.

    It starts at ``start_factor * learning_rate`` and ends, in step ``total_steps - 1``, at ``end_factor *
    learning_rate``, where it stays (Smith and Topin 2019).
    """
    last = total_steps - 1.0
    top = warmup * total_steps - 1.0
    if not 0 < top < last:
        raise ProgramError(
            f"a warm-up of {warmup} of {total_steps} steps leaves no steps to increase or decrease the rate", "bad_attr"
        )
    n = _count(step)
    up = (1.0 - lookup("cos")(n * (math.pi / top))) * 0.5
    down = (1.0 + lookup("cos")(lookup("clip")((n - top) / (last - top), max=1.0) * math.pi)) * 0.5
    rising = lookup("less_equal")(n, _full(n, top))
    share = lookup("where")(rising, up * (1.0 - start_factor) + start_factor, down * (1.0 - end_factor) + end_factor)
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
    whole = 15 * max(math.ceil(n / 15), 1)
    return 0.09 * (1 - n / whole) + 0.01


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
