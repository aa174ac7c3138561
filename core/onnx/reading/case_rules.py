"""Rules for single elements: whether bounds or divisors decide the case of an op.

A rule gives the element in each world, or None if its case is open. It remembers the facts about the result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction

from core.onnx.reading.worlds import WORLDS, Column, Fact, Sizes, number_of

__all__ = ["RULES", "Rule", "difference", "exactly", "fact_of_case", "joined_fact"]

Rule = Callable[[Sizes, Column, Sequence[Column]], Column | None]
"""From the sizes, the result as it is computed in each world, and the operands."""
_Bound = Fraction | int | None


# --- facts about results -----------------------------------------------------------------------------------------


def difference(a: Column, b: Column) -> Column:
    """``a - b`` in each world."""
    return tuple(None if m is None or n is None else m - n for m, n in zip(a, b, strict=True))


def joined_fact(op: str, a: Fact, b: Fact) -> Fact:
    """The facts about a sum, a difference or a product."""
    if op == "mul":
        return _product(a, b)
    if op == "sub":
        b = Fact(_negative(b.most), _negative(b.least), b.factor)
    return Fact(_plus(a.least, b.least), _plus(a.most, b.most), _common(a.factor, b.factor))


def _product(a: Fact, b: Fact) -> Fact:
    factor = None if a.factor is None or b.factor is None else a.factor * b.factor
    ends = [None if x is None or y is None else x * y for x in (a.least, a.most) for y in (b.least, b.most)]
    known = [each for each in ends if each is not None]
    if len(known) == len(ends):
        return Fact(min(known), max(known), factor)
    positive = a.least is not None and b.least is not None and a.least >= 0 and b.least >= 0
    return Fact(ends[0] if positive else None, None, factor)


def _negative(n: _Bound) -> _Bound:
    return None if n is None else -n


def _plus(m: _Bound, n: _Bound) -> _Bound:
    return None if m is None or n is None else m + n


def _common(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    """The largest number that divides both."""
    if a is None or b is None:
        return None
    return Fraction(math.gcd(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)


def fact_of_case(op: str, facts: Sequence[Fact]) -> Fact:
    """The facts about the result of an op whose case is open."""
    leasts = [each.least for each in facts if each.least is not None]
    mosts = [each.most for each in facts if each.most is not None]
    if op in ("abs", "relu"):
        return Fact(0)
    if op == "minimum":
        return Fact(min(leasts) if len(leasts) == 2 else None, min(mosts, default=None))
    if op == "maximum":
        return Fact(max(leasts, default=None), max(mosts) if len(mosts) == 2 else None)
    if op in ("mod", "fmod", "floor_div") and len(facts) == 2:
        positive = all(each.least is not None and each.least >= 0 for each in facts)
        return Fact(0 if positive or (op == "mod" and _is_positive(facts[1])) else None)
    if op in ("floor", "ceil", "round", "trunc", "cast") and leasts:
        return Fact(math.floor(leasts[0]))
    return Fact()


def _is_positive(fact: Fact) -> bool:
    return fact.least is not None and fact.least > 0


# --- formulas ----------------------------------------------------------------------------------------------------


def exactly(op: str, a: Column, b: Column) -> Column | None:
    """A sum, difference, product or quotient without rounding and overflow; None if a number is not finite."""
    try:
        return tuple(
            None if m is None or n is None else _EXACT[op](Fraction(m), Fraction(n)) for m, n in zip(a, b, strict=True)
        )
    except (OverflowError, ValueError, ZeroDivisionError):
        return None


_EXACT = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


def _formula(op: str) -> Rule:
    def rule(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
        a, b = given
        if column != exactly(op, a, b):
            return None
        fact = joined_fact(op, sizes.fact(a), sizes.fact(b))
        if op == "sub" and sizes.leaves(b) == a:
            fact = Fact(0, fact.most, fact.factor)
        sizes.learn(column, fact)
        return column

    return rule


def _kept(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
    """The same number, perhaps with another dtype that holds it."""
    if column != given[0]:
        return None
    sizes.learn(column, sizes.fact(given[0]))
    return column


def _negated(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column:
    sizes.learn(column, joined_fact("sub", Fact(0, 0, Fraction(0)), sizes.fact(given[0])))
    return column


# --- cases -------------------------------------------------------------------------------------------------------


def _whole(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
    """A number that is rounded: exact if it is a whole one in every run."""
    factor = sizes.fact(given[0]).factor
    return None if factor is None or factor.denominator != 1 else _kept(sizes, column, given)


def _positive(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
    return _kept(sizes, column, given) if sizes.at_least(given[0], 0) else None


def _ends(sizes: Sizes, a: Column, b: Column) -> tuple[_Bound, _Bound]:
    """Bounds of ``b - a`` in every run."""
    direct, apart = sizes.fact(difference(b, a)), joined_fact("sub", sizes.fact(b), sizes.fact(a))
    leasts = [each.least for each in (direct, apart) if each.least is not None]
    mosts = [each.most for each in (direct, apart) if each.most is not None]
    return max(leasts, default=None), min(mosts, default=None)


def _compared(decide: Callable[[_Bound, _Bound], bool | None]) -> Rule:
    def rule(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
        found = decide(*_ends(sizes, *given))
        return None if found is None else (found,) * WORLDS

    return rule


def _less(least: _Bound, most: _Bound) -> bool | None:
    """Whether ``b - a`` is above 0."""
    if least is not None and least > 0:
        return True
    return False if most is not None and most <= 0 else None


def _less_equal(least: _Bound, most: _Bound) -> bool | None:
    if least is not None and least >= 0:
        return True
    return False if most is not None and most < 0 else None


def _equal(least: _Bound, most: _Bound) -> bool | None:
    if least == 0 and most == 0:
        return True
    return False if _less(least, most) or _less_equal(least, most) is False else None


def _not(decide: Callable[[_Bound, _Bound], bool | None]) -> Callable[[_Bound, _Bound], bool | None]:
    def opposite(least: _Bound, most: _Bound) -> bool | None:
        found = decide(least, most)
        return None if found is None else not found

    return opposite


def _truth(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
    """A number as a bool."""
    found = _not(_equal)(*_ends(sizes, (0,) * WORLDS, given[0]))
    return None if found is None else (found,) * WORLDS


def _extreme(smaller: bool) -> Rule:
    def rule(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
        a, b = given
        least, most = _ends(sizes, a, b)
        if least is not None and least >= 0:
            return a if smaller else b
        if most is not None and most <= 0:
            return b if smaller else a
        return None

    return rule


def _divided(op: str) -> Rule:
    """A remainder or a rounded quotient: exact if the division leaves no remainder in any run."""

    def rule(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
        a, b = given
        fact, by = sizes.fact(a), number_of(b)
        if by is None:
            pairs = list(zip(a, b, strict=True))
            return column if all(m is not None and n and m % n == 0 for m, n in pairs) else None
        if by == 0 or (number_of(a) is None and (fact.factor is None or (fact.factor / by).denominator != 1)):
            return None
        if op == "floor_div":
            sizes.learn(column, _product(fact, Fact(Fraction(1) / by, Fraction(1) / by, abs(Fraction(1) / by))))
        return column

    return rule


def _quotient(sizes: Sizes, column: Column, given: Sequence[Column]) -> Column | None:
    """A quotient of floats."""
    if column != exactly("div", *given):
        return None
    by = number_of(given[1])
    if by:
        part = Fraction(1) / Fraction(by)
        sizes.learn(column, _product(sizes.fact(given[0]), Fact(part, part, abs(part))))
    return column


RULES: dict[str, Rule] = {
    "add": _formula("add"), "sub": _formula("sub"), "mul": _formula("mul"), "neg": _negated, "div": _quotient,
    "kept": _kept, "truth": _truth, "floor": _whole, "ceil": _whole, "round": _whole, "trunc": _whole,
    "abs": _positive, "relu": _positive, "minimum": _extreme(True), "maximum": _extreme(False),
    "mod": _divided("mod"), "fmod": _divided("fmod"), "floor_div": _divided("floor_div"),
    "less_than": _compared(_less), "less_equal": _compared(_less_equal),
    "greater_than": _compared(_not(_less_equal)), "greater_equal": _compared(_not(_less)),
    "equal": _compared(_equal), "not_equal": _compared(_not(_equal)),
}  # fmt: skip
