"""Division and shifts of integers, for any operands: LLVM leaves some of them undefined.

A division by 0 or a shift by a negative number of bits gives some number; the plan checks the operands.
"""

from __future__ import annotations

from core.codegen.llvm import Function, IRValue, itemsize

__all__ = ["floor_divide", "fmod", "mod", "shift_left", "shift_right"]


def floor_divide(f: Function, a: IRValue, b: IRValue) -> IRValue:
    """The quotient, rounded down."""
    quotient, rest = _divided(f, a, b)
    down = f.binary("sub", quotient, f.constant(1, quotient))
    return f.select(_apart(f, rest, b), down, quotient)


def mod(f: Function, a: IRValue, b: IRValue) -> IRValue:
    """The remainder with the sign of b."""
    _, rest = _divided(f, a, b)
    return f.select(_apart(f, rest, b), f.binary("add", rest, b), rest)


def fmod(f: Function, a: IRValue, b: IRValue) -> IRValue:
    """The remainder with the sign of a."""
    return _divided(f, a, b)[1]


def _divided(f: Function, a: IRValue, b: IRValue) -> tuple[IRValue, IRValue]:
    """The quotient, rounded to 0, and the remainder."""
    lanes = max(a.lanes, b.lanes)
    a, b = f.splat(a, lanes), f.splat(b, lanes)
    zero, one = f.constant(0, b), f.constant(1, b)
    safe = f.select(f.compare("icmp eq", b, zero), one, b)
    if not a.is_signed:
        return f.binary("udiv", a, safe), f.binary("urem", a, safe)
    negated = f.compare("icmp eq", b, f.constant(-1, b))  # the smallest number has no negative
    safe = f.select(negated, one, safe)
    quotient = f.binary("sdiv", a, safe)
    return f.select(negated, f.binary("sub", zero, a), quotient), f.binary("srem", a, safe)


def _apart(f: Function, rest: IRValue, b: IRValue) -> IRValue:
    """Whether a remainder other than 0 has another sign than the divisor."""
    nonzero = f.compare("icmp ne", rest, f.constant(0, rest))
    if not rest.is_signed:
        return f.splat(f.constant(False, IRValue("", "bool")), rest.lanes)
    return f.binary("and", nonzero, f.compare("icmp slt", f.binary("xor", rest, b), f.constant(0, rest)))


def shift_left(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """x times a power of 2; 0 from the width of the dtype on."""
    count, beyond = _count(f, y)
    return f.select(beyond, f.constant(0, x), f.binary("shl", x, count))


def shift_right(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """x divided by a power of 2, rounded down."""
    count, beyond = _count(f, y)
    if x.is_signed:
        return f.binary("ashr", x, count)
    return f.select(beyond, f.constant(0, x), f.binary("lshr", x, count))


def _count(f: Function, y: IRValue) -> tuple[IRValue, IRValue]:
    """The bits to shift by, below the width, and whether there were more. A negative number counts as large."""
    most = f.constant(8 * itemsize(y.dtype) - 1, y)
    beyond = f.compare("icmp ugt", y, most)
    return f.select(beyond, most, y), beyond
