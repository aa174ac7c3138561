"""Values with operators, so that code reads like the formula that it computes.

Operations have no fast-math flags, not even `contract`: a fused operation is written `fma`. So error-free
transformations hold, and a result has the same bits for any number of lanes and in any surrounding code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.codegen.cpus import cpu
from core.codegen.llvm import Function, IRValue

__all__ = [
    "Number",
    "by_pairs",
    "fma",
    "mantissa_bits",
    "maximum",
    "minimum",
    "polynomial",
    "power_of_two",
    "scale_by_power",
    "sqrt",
    "two_sum",
    "where",
]

_INTEGER = {"float32": "int32", "float64": "int64"}
_FLOAT = {"int32": "float32", "int64": "float64"}


class Number:
    """A value of a function under construction. Python numbers in the same expression become literals of its dtype."""

    __slots__ = ("function", "value")
    __hash__ = None  # type: ignore[assignment]  # == writes a comparison

    def __init__(self, function: Function, value: IRValue) -> None:
        self.function = function
        self.value = value

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def const(self, number: float | int) -> Number:
        """A literal with the dtype and the lanes of this value."""
        return Number(self.function, self.function.constant(number, self.value))

    def _like(self, other: Number | float | int) -> Number:
        return other if isinstance(other, Number) else self.const(other)

    def _op(self, floats: str, integers: str, other: Number | float | int, swap: bool = False) -> Number:
        a, b = self, self._like(other)
        if swap:
            a, b = b, a
        opcode = floats if self.value.is_float else integers
        return Number(
            self.function, self.function.op(f"{opcode} {a.value}, {b.value.name}", self.dtype, self.value.lanes)
        )

    def __add__(self, other: Number | float | int) -> Number:
        return self._op("fadd", "add", other)

    def __sub__(self, other: Number | float | int) -> Number:
        return self._op("fsub", "sub", other)

    def __mul__(self, other: Number | float | int) -> Number:
        return self._op("fmul", "mul", other)

    def __truediv__(self, other: Number | float | int) -> Number:
        return self._op("fdiv", "sdiv", other)

    def __radd__(self, other: float | int) -> Number:
        return self._op("fadd", "add", other, swap=True)

    def __rsub__(self, other: float | int) -> Number:
        return self._op("fsub", "sub", other, swap=True)

    def __rmul__(self, other: float | int) -> Number:
        return self._op("fmul", "mul", other, swap=True)

    def __rtruediv__(self, other: float | int) -> Number:
        return self._op("fdiv", "sdiv", other, swap=True)

    def __neg__(self) -> Number:
        return Number(self.function, self.function.op(f"fneg {self.value}", self.dtype, self.value.lanes))

    def __and__(self, other: Number | int) -> Number:
        return self._op("", "and", other)

    def __or__(self, other: Number | int) -> Number:
        return self._op("", "or", other)

    def __xor__(self, other: Number | int) -> Number:
        return self._op("", "xor", other)

    def __lshift__(self, other: int) -> Number:
        return self._op("", "shl", other)

    def __rshift__(self, other: int) -> Number:
        """Shift right with sign extension, as in Python."""
        return self._op("", "ashr", other)

    def _compare(self, predicate: str, other: Number | float | int) -> Number:
        kind, predicate = ("fcmp", f"o{predicate}") if self.value.is_float else ("icmp", predicate)
        if kind == "icmp" and predicate not in ("eq", "ne"):
            predicate = f"s{predicate}"
        if predicate == "one":
            predicate = "une"
        return Number(self.function, self.function.compare(f"{kind} {predicate}", self.value, self._like(other).value))

    def __lt__(self, other: Number | float | int) -> Number:
        return self._compare("lt", other)

    def __le__(self, other: Number | float | int) -> Number:
        return self._compare("le", other)

    def __gt__(self, other: Number | float | int) -> Number:
        return self._compare("gt", other)

    def __ge__(self, other: Number | float | int) -> Number:
        return self._compare("ge", other)

    def __eq__(self, other: object) -> Number:  # type: ignore[override]
        assert isinstance(other, (Number, int, float))
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Number:  # type: ignore[override]
        assert isinstance(other, (Number, int, float))
        return self._compare("ne", other)

    def bits(self) -> Number:
        """The bits of a float as an integer of the same size."""
        return Number(self.function, self.function.bitcast(self.value, _INTEGER[self.dtype]))

    def as_float(self) -> Number:
        """The float that has these bits."""
        return Number(self.function, self.function.bitcast(self.value, _FLOAT[self.dtype]))

    def to(self, dtype: str) -> Number:
        """Convert as numpy's astype does."""
        return Number(self.function, self.function.convert(self.value, dtype))

    def call(self, intrinsic: str, *others: Number | float) -> Number:
        """Call `llvm.<intrinsic>` with this value and the others."""
        values = [self._like(other).value for other in others]
        return Number(self.function, self.function.intrinsic(intrinsic, self.value, *values))

    def abs(self) -> Number:
        return self.call("fabs")

    def nearest(self) -> Number:
        """The nearest integer, as an integer of the same size."""
        f, lanes, dtype = self.function, self.value.lanes, _INTEGER[self.dtype]
        size = f"{np.dtype(self.dtype).itemsize * 8}"
        suffix = f"i{size}.f{size}" if lanes == 1 else f"v{lanes}i{size}.v{lanes}f{size}"
        returned = IRValue("", dtype, lanes).type
        f.declarations.add(f"declare {returned} @llvm.lrint.{suffix}({self.value.type})")
        return Number(f, f.op(f"call {returned} @llvm.lrint.{suffix}({self.value})", dtype, lanes))

    def copysign(self, sign: Number) -> Number:
        """This magnitude with the sign of `sign`."""
        return self.call("copysign", sign)


def fma(a: Number | float, b: Number | float, c: Number | float) -> Number:
    """``a * b + c``, rounded once; at least one is a Number."""
    like = next(x for x in (a, b, c) if isinstance(x, Number))
    return like._like(a).call("fma", b, c)


def sqrt(x: Number) -> Number:
    return x.call("sqrt")


def where(condition: Number, a: Number | float, b: Number | float) -> Number:
    like = a if isinstance(a, Number) else b
    assert isinstance(like, Number)
    f = like.function
    return Number(f, f.select(condition.value, like._like(a).value, like._like(b).value))


def minimum(x: Number, bound: Number | float) -> Number:
    """The smaller of the two; NaN if x is NaN."""
    return where(x > bound, bound, x)


def maximum(x: Number, bound: Number | float) -> Number:
    """The larger of the two; NaN if x is NaN."""
    return where(x < bound, bound, x)


def polynomial(x: Number, coefficients: Sequence[float]) -> Number:
    """``coefficients[0] + coefficients[1] x + ...`` by Horner's rule."""
    total: Number | float = coefficients[-1]
    for each in reversed(coefficients[:-1]):
        total = fma(total, x, each)
    assert isinstance(total, Number)
    return total


def by_pairs(x: Number, square: Number, coefficients: Sequence[float]) -> Number:
    """The same polynomial in pairs of terms, given x^2: half the latency of Horner's rule."""
    total: Number | float | None = None
    for i in reversed(range(0, len(coefficients), 2)):
        pair = coefficients[i : i + 2]
        low = fma(x, pair[1], pair[0]) if len(pair) == 2 else pair[0]
        total = low if total is None else fma(square, total, low)
    assert isinstance(total, Number)
    return total


def two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """a + b rounded, and the rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def mantissa_bits(dtype: str) -> int:
    """Stored bits of the mantissa: 23 or 52."""
    return int(np.finfo(dtype).nmant)


def _bias(dtype: str) -> int:
    """The bias of the stored exponent."""
    return int(np.finfo(dtype).maxexp) - 1


def power_of_two(k: Number) -> Number:
    """``2 ** k`` for an integer k, if that is a normal number; else an arbitrary float."""
    dtype = _FLOAT[k.dtype]
    return ((k + _bias(dtype)) << mantissa_bits(dtype)).as_float()


def scale_by_power(x: Number, n: Number, k: Number) -> Number:
    """``x * 2 ** n`` rounded once, also to infinity and to denormals. |n| must be below twice the largest exponent.

    x:    below 2.
    n, k: the same integer, as a float and as an integer.

    An x86 CPU takes a hundred times as long for a product that is denormal or rounds to 0. So the product is then taken
    in units of the smallest number, and rounded to an integer, whose bits are those of the result.
    """
    if not cpu().triple.startswith("x86_64"):
        return _scaled(x, n, k)
    width, least = mantissa_bits(x.dtype), 1 - _bias(x.dtype)  # numbers below 2^least are denormal
    if cpu().scales:
        below = n <= float(least)
    else:
        below = n < float(least)
    units = width - least
    y = _scaled(x, where(below, n + float(units), n), where(below, k + units, k))
    if cpu().scales:
        whole = y.nearest()
    else:
        one = y.const(2.0**width)  # above y, so a sum of both is an integer
        whole = (y + one).bits() - one.bits()
    return where(below, whole.as_float(), y)


def _scaled(x: Number, n: Number, k: Number) -> Number:
    """``x * 2 ** n``, rounded once unless it is denormal."""
    f, dtype, lanes = x.function, x.dtype, x.value.lanes
    size = np.dtype(dtype).itemsize * 8
    if not cpu().scales:
        half = k >> 1
        return x * power_of_two(half) * power_of_two(k - half)
    if lanes * size in (128, 256, 512):
        return _scaled_lanes(x, n)
    suffix = f"f{size}.i{size}" if lanes == 1 else f"v{lanes}f{size}.v{lanes}i{size}"
    f.declarations.add(f"declare {x.value.type} @llvm.ldexp.{suffix}({x.value.type}, {k.value.type})")
    return Number(f, f.op(f"call {x.value.type} @llvm.ldexp.{suffix}({x.value}, {k.value})", dtype, lanes))


def _scaled_lanes(x: Number, n: Number) -> Number:
    """``x * 2 ** n`` in a vector register of AVX-512."""
    f, dtype, lanes = x.function, x.dtype, x.value.lanes
    bits, places = lanes * np.dtype(dtype).itemsize * 8, max(lanes, 8)
    name = f"@llvm.x86.avx512.mask.scalef.p{'s' if dtype == 'float32' else 'd'}.{bits}"
    rounding, current = (", i32", ", i32 4") if bits == 512 else ("", "")
    f.declarations.add(f"declare {x.value.type} {name}({', '.join([x.value.type] * 3)}, i{places}{rounding})")
    given = f"{x.value}, {n.value}, {x.value}, i{places} -1{current}"
    return Number(f, f.op(f"call {x.value.type} {name}({given})", dtype, lanes))
