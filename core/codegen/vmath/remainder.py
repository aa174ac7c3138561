"""Remainders and whole quotients, exact as in C, and the length of the hypotenuse."""

from __future__ import annotations

import math
from functools import cache

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.vmath.expression import Number, fma, mantissa_bits, sqrt, where

__all__ = ["floor_divide", "fmod", "hypot", "mod"]

SHIFT = 11
"""Bits that one step of the exact division moves: a remainder of 53 bits then still fits 64."""


def fmod(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """The remainder with the sign of x, exact. Within 0 ulp."""
    return _fmod(Number(f, x), Number(f, y)).value


def mod(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """The remainder with the sign of y, rounded once. Within 0.5 ulp."""
    a, b = Number(f, x), Number(f, y)
    rest = _fmod(a, b)
    return where(rest == 0.0, rest.abs().copysign(b), where(_apart(rest, b), rest + b, rest)).value


def floor_divide(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """The quotient, rounded down, by the steps of numpy. Within 0 ulp."""
    a, b = Number(f, x), Number(f, y)
    rest = _fmod(a, b)
    quotient = a / b
    whole = (a - rest) / b
    whole = where(_apart(rest, b), where(rest == 0.0, whole, whole - 1.0), whole)
    down = whole.call("floor")
    down = where(whole - down > 0.5, down + 1.0, down)
    down = where(whole == 0.0, whole.const(0.0).copysign(quotient), down)
    return where(b == 0.0, quotient, down).value


def _apart(rest: Number, b: Number) -> Number:
    """Whether a remainder has another sign than the divisor."""
    return (rest.bits() ^ b.bits()) < 0


def _fmod(x: Number, y: Number) -> Number:
    a, b = x.abs(), y.abs()
    quotient = a / b
    whole = quotient.call("trunc")
    rest = fma(-whole, b, a)  # exact; the quotient may have been rounded up to a whole number
    rest = where(rest < 0.0, rest + b, rest)
    rest = where(a < b, a, rest)  # an infinite divisor included
    return _with_far(rest, quotient, a, b).copysign(x)


def _with_far(rest: Number, quotient: Number, a: Number, b: Number) -> Number:
    """`rest`, with the lanes whose quotient has too many digits divided one after the other."""
    f, dtype, lanes = rest.function, rest.dtype, rest.value.lanes
    far = (quotient > 2.0 ** (mantissa_bits(dtype) - 1)).value
    if lanes > 1:
        f.declarations.add(f"declare i1 @llvm.vector.reduce.or.v{lanes}i1({far.type})")
        far = f.op(f"call i1 @llvm.vector.reduce.or.v{lanes}i1({far})", "bool")
    slow, after, before = f.label("far"), f.label("near"), f.block
    f.branch(far, slow, after)
    f.begin(slow)
    name = f"far_remainders_{dtype}_{lanes}"
    f.declarations |= {_far_remainder(), _lane_by_lane(name, dtype, lanes)}
    found = f.op(f"call {rest.value.type} @{name}({rest.value}, {quotient.value}, {a.value}, {b.value})", dtype, lanes)
    f.jump(after)
    f.begin(after)
    text = f"phi {found.type} [ {rest.value.name}, %{before} ], [ {found.name}, %{slow} ]"
    return Number(f, f.op(text, dtype, lanes))


@cache
def _lane_by_lane(name: str, dtype: str, lanes: int) -> str:
    """The text of a function that replaces the lanes of its first argument whose quotient is large."""
    params = [(n, dtype, lanes) for n in ("rest", "quotient", "a", "b")]
    f = Function(name, params, IRValue("", dtype, lanes).type, internal=True)
    slots = [f.slot(dtype, lanes) for _ in params]
    for value, slot in zip(f.params, slots, strict=True):
        f.write(value, slot)
    with f.loop(I64(0), I64(lanes)) as lane:
        places = [f.at(slot, lane, dtype) for slot in slots]
        quotient, a, b = (Number(f, f.load(place, dtype)) for place in places[1:])
        finite = f.binary("and", (a < math.inf).value, (b > 0.0).value)
        with f.when(f.binary("and", (quotient > 2.0 ** (mantissa_bits(dtype) - 1)).value, finite)):
            wide = [f.convert(v.value, "float64") for v in (a, b)]
            found = f.op(f"call double @far_remainder({wide[0]}, {wide[1]})", "float64")
            f.store(f.convert(found, dtype), places[0])
    f.do(f"ret {f.read(slots[0], dtype, lanes)}")
    return f.text()


@cache
def _far_remainder() -> str:
    """The text of ``far_remainder(a, b)`` for finite doubles a > b > 0: long division of the mantissas."""
    f = Function("far_remainder", [("a", "float64"), ("b", "float64")], "double", internal=True)

    def parts(x: IRValue) -> tuple[IRValue, IRValue]:
        """The mantissa, and the exponent as it is stored, at least 1."""
        bits = f.bitcast(x, "int64")
        exponent = f.op(f"lshr {bits}, 52", "int64")
        fraction = f.binary("and", bits, I64(2**52 - 1))
        normal = f.compare("icmp ne", exponent, I64(0))
        mantissa = f.select(normal, f.binary("or", fraction, I64(2**52)), fraction)
        return mantissa, f.select(normal, exponent, I64(1))

    (m, e), (n, low) = parts(f.param("a")), parts(f.param("b"))
    digits = f.binary("sub", e, low)
    rest = f.slot("int64")

    def divide(by: IRValue) -> None:
        f.write(f.binary("urem", f.binary("shl", f.read(rest, "int64"), by), n), rest)

    f.write(m, rest)
    divide(I64(0))
    with f.loop(I64(0), f.op(f"udiv {digits}, {SHIFT}", "int64")):
        divide(I64(SHIFT))
    divide(f.op(f"urem {digits}, {SHIFT}", "int64"))
    small = f.binary("fmul", f.convert(f.read(rest, "int64"), "float64"), f.constant(2.0**-52, f.param("a")))
    scale = f.bitcast(f.binary("shl", low, I64(52)), "float64")
    f.do(f"ret {f.binary('fmul', small, scale)}")
    return f.text()


# 2^600 keeps squares of doubles in range; float32 is computed in float64
BIG, FACTOR = 2.0**500, 2.0**600


def hypot(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """``sqrt(x^2 + y^2)`` without overflow in between; infinite if x or y is. Within 0.6 ulp; float64 1.3."""
    a, b = (Number(f, v).abs() for v in (x, y))
    infinite = where(a == math.inf, a, b)
    if x.dtype == "float32":
        wide, other = a.to("float64"), b.to("float64")
        length = sqrt(fma(wide, wide, other * other)).to("float32")
    else:
        first = a > b
        most, least = where(first, a, b), where(first, b, a)
        large, small = most > BIG, most < 1.0 / BIG
        down = where(large, most.const(1.0 / FACTOR), where(small, most.const(FACTOR), 1.0))
        up = where(large, most.const(FACTOR), where(small, most.const(1.0 / FACTOR), 1.0))
        most, least = most * down, least * down
        length = sqrt(fma(most, most, least * least)) * up
    return where(infinite == math.inf, infinite, length).value
