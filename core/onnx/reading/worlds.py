"""Sample sizes. A world gives each open size of a model a number.

The types of all values are inferred for each world as well as for the open sizes. Each sample number is the value of
an exact formula of sizes: a sum, a difference, a product or a quotient without remainder. The result of
a case distinction, such as ``min(size, 64)`` or ``size // 2``, is a size of its own: see `cases.py`. So two numbers
that are equal in all worlds are equal in every run: the numbers of the sizes have no pattern that two different
formulas could share.

A world in which a type does not fit, for example because a matrix has another number of rows than the sample asks for,
says nothing about the values that follow: the program itself would fail there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from core.ir import TensorType

__all__ = ["SIZE", "WORLDS", "Column", "Fact", "Sample", "Sizes", "number_of", "same"]

_UNIT = (1, 1, 1, 840, 256, 1)
"""Divisors of all numbers of a world. So a division by a small number leaves no remainder in some worlds."""
_FIRST = (211, 307, 1009, 1680, 2048, 5003)
_STEP = (701, 1103, 1511, 3, 5, 2503)
"""Most units from one number to the next one."""
WORLDS = len(_FIRST)

Column = tuple[int | float | None, ...]
"""A size or an element in each world, None where it is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A tensor in one world: its type, which is static, and its elements if they follow from sizes alone."""

    type: TensorType
    value: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """Bounds of a number in every run, and a number that divides it. None if they are not known."""

    least: Fraction | int | None = None
    most: Fraction | int | None = None
    factor: Fraction | None = None


SIZE = Fact(0, 2**48, Fraction(1))
"""Facts that hold for each size of a tensor."""
_UNKNOWN = Fact()


class Sizes:
    """The open sizes of a model, by name, and facts about the numbers that a model computes from them."""

    def __init__(self) -> None:
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._random = [random.Random(w) for w in range(WORLDS)]
        self._last = list(_FIRST)
        self._cases: dict[Hashable, Column] = {}
        self._facts: dict[Column, Fact] = {}
        self._by_number: dict[tuple[int, int | float], Column] = {}
        self._bounded: dict[Column, Column] = {}
        self._remainders: dict[Column, Column] = {}

    def of(self, name: str) -> tuple[int, ...]:
        """The sample of the size `name` in each world."""
        if name not in self._numbers:
            self._numbers[name] = tuple(self._last)
            self.learn(self._numbers[name], SIZE)
            self._last = [
                last + unit * draw.randint(1, step)
                for last, unit, step, draw in zip(self._last, _UNIT, _STEP, self._random, strict=True)
            ]
        return self._numbers[name]

    def name_of(self, numbers: Sequence[int | None]) -> str | None:
        """The name of the size that is `numbers` in the worlds where these are known; None if it has none."""
        known = [(w, n) for w, n in enumerate(numbers) if n is not None]
        for name, found in self._numbers.items():
            if len(known) > 1 and not name.startswith("\0") and all(found[w] == n for w, n in known):
                return name
        return None

    def fresh(self) -> tuple[int, ...]:
        """Samples of a size that has no name."""
        return self.of(f"\0{len(self._numbers)}")

    def fresh_number(self) -> Column:
        """A number without facts."""
        return self.case(("number", len(self._cases)))

    # --- facts about numbers -----------------------------------------------------------------------------------

    def case(self, key: Hashable, fact: Fact = _UNKNOWN) -> Column:
        """A number that a case distinction gives: the same one for the same `key`."""
        if key not in self._cases:
            found = self._cases[key] = self.fresh()
            self._facts[found] = fact
        return self._cases[key]

    def fact(self, column: Column) -> Fact:
        """The facts about a number; an empty `Fact` without any."""
        constant = number_of(column)
        if constant is not None:
            return Fact(constant, constant, abs(Fraction(constant)))
        if column not in self._facts and None in column:
            column = self._whole(column)
        return self._facts.get(column, _UNKNOWN)

    def _whole(self, part: Column) -> Column:
        """The number that is known in all worlds and that is `part` in at least three; `part` if there is none."""
        known = [(w, n) for w, n in enumerate(part) if n is not None]
        whole = self._by_number.get(known[0]) if len(known) > 2 else None
        return whole if whole is not None and all(whole[w] == n for w, n in known) else part

    def learn(self, column: Column, fact: Fact) -> None:
        """Remember facts about a number, unless the model has some already."""
        if column not in self._facts:
            self._facts[column] = fact
            if None not in column:
                self._by_number.update(((w, n), column) for w, n in enumerate(column) if n is not None)

    def bound(self, column: Column, a: Column, b: Column) -> None:
        """Remember that `column` is the smaller one of two numbers.

        Where one is a constant above 1 and the other a size, `column` and that size fit together only if they are
        equal: the smaller one is 1 only if the size is 1.
        """
        for constant, size in ((a, b), (b, a)):
            number = number_of(constant)
            if number is not None and number > 1 and number_of(size) is None and self.at_least(size, 0):
                self._bounded.setdefault(column, size)

    def unbounded(self, column: Column) -> Column:
        """The size of which `column` is the smaller part; `column` itself if there is none."""
        while column in self._bounded:
            column = self._bounded[column]
        return column

    def remainder(self, column: Column, of: Column) -> None:
        """Remember that `column` is what a division of `of`, which is not negative, leaves."""
        self._remainders.setdefault(column, of)

    def leaves(self, column: Column) -> Column | None:
        """The number of which `column` is a remainder."""
        return self._remainders.get(column)

    def at_least(self, column: Column, bound: int) -> bool:
        """Whether a number is `bound` or above in every run."""
        least = self.fact(column).least
        return least is not None and least >= bound


def number_of(column: Column) -> Fraction | int | None:
    """The constant that a number is in all known worlds, at least two; None if it depends on sizes."""
    known = [n for n in column if n is not None]
    if len(known) < 2 or any(n != known[0] for n in known) or not math.isfinite(known[0]):
        return None
    return int(known[0]) if known[0] == int(known[0]) else Fraction(known[0])


def same(a: Column, b: Column) -> bool:
    """Whether two numbers are equal in all worlds that know both, at least two."""
    pairs = [(m, n) for m, n in zip(a, b, strict=True) if m is not None and n is not None]
    return len(pairs) > 1 and all(m == n for m, n in pairs)
