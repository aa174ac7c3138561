"""Sine, cosine and tangent.

``|x| = n pi/2 + r``, where |r| is at most a little above pi/4. Usually the product n pi/2 is subtracted in three parts.
A vector that holds a larger angle takes a branch: a scalar function multiplies by as many bits of 2/pi as the angle
needs (Payne and Hanek 1983).
"""

from __future__ import annotations

import math
from functools import cache

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.vmath.expression import Number, by_pairs, fma, mantissa_bits, where

__all__ = ["cos", "sin", "sine_and_cosine", "tan"]

# pi/2 in three parts, each rounded to the dtype. n * first is exact to a multiple of the last bit of x - n pi/2, and
# n * third is below the smallest distance of any x from a multiple of pi/2, so r is right to its last bit
PI_2 = {
    "float32": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    "float64": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
}
LIMIT = {"float32": 2.0**17, "float64": 2.0**30}  # of |x|; larger angles take the branch
# (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2, |r| <= 0.8: 2^-27.7 and 2^-32.6; 2^-63.2 and 2^-63.5
SIN = {
    "float32": (-1.6666654e-01, 8.332095e-03, -1.950554e-04),
    "float64": (
        -0.16666666666666666,
        0.00833333333333305,
        -0.0001984126984098033,
        2.7557319086656483e-06,
        -2.505207496396944e-08,
        1.6054905808078692e-10,
        -7.422265376697687e-13,
    ),
}
COS = {
    "float32": (4.166664e-02, -1.388713e-03, 2.4412086e-05),
    "float64": (
        0.041666666666666574,
        -0.0013888888888869768,
        2.480158728677984e-05,
        -2.7557313576473926e-07,
        2.087561844037236e-09,
        -1.1354251666373761e-11,
    ),
}


def sin(f: Function, x: IRValue) -> IRValue:
    """The sine of x radians, for every finite x. Within 1.6 ulp."""
    return sine_and_cosine(f, x)[0]


def cos(f: Function, x: IRValue) -> IRValue:
    """The cosine of x radians, for every finite x. Within 1.6 ulp."""
    return sine_and_cosine(f, x)[1]


def sine_and_cosine(f: Function, x: IRValue) -> tuple[IRValue, IRValue]:
    """The sine and the cosine, in little more time than one of them."""
    a = Number(f, x)
    n, s, c = _sine_and_cosine_of_rest(a.abs())
    even = (n & 1) == 0
    return _signed(where(even, s, c), n, a).value, _signed(where(even, c, s), n + 1).value


def tan(f: Function, x: IRValue) -> IRValue:
    """The tangent of x radians, for every finite x. Within 3.7 ulp; float64 3."""
    a = Number(f, x)
    n, s, c = _sine_and_cosine_of_rest(a.abs())
    even = (n & 1) == 0
    return _signed(where(even, s, c) / where(even, c, s), n << 1, a).value


def _signed(y: Number, n: Number, *signs: Number) -> Number:
    """y, negated if bit 1 of n is set, and once more for each negative value of `signs`."""
    top = mantissa_bits(y.dtype) + (8 if y.dtype == "float32" else 11)
    flip = n << (top - 1)
    for each in signs:
        flip = flip ^ each.bits()
    return (y.bits() ^ (flip & (-1 << top))).as_float()


def _sine_and_cosine_of_rest(x: Number) -> tuple[Number, Number, Number]:
    """n as in `reduce`, and the sine and the cosine of ``x - n pi/2``, for x >= 0."""
    r, nearly, n = reduce(x)
    # the last part of pi/2 matters only for small r, and there only in the first term of the sine
    z = nearly * nearly
    square = z * z
    s = fma(nearly * z, by_pairs(z, square, SIN[x.dtype]), r)
    return n, s, fma(z, by_pairs(z, square, (-0.5, *COS[x.dtype])), 1.0)


def reduce(x: Number) -> tuple[Number, Number, Number]:
    """r, r without the last part of pi/2, and an integer that equals n in its last two bits.

    ``x = n pi/2 + r``, for x >= 0; NaN for infinity.
    """
    f, value = x.function, x.value
    magic = 1.5 * 2.0 ** mantissa_bits(x.dtype)
    shifted = fma(x, 2.0 / math.pi, magic)
    n = shifted - magic
    first, second, third = PI_2[x.dtype]
    nearly = fma(n, -second, fma(n, -first, x))
    r = fma(n, -third, nearly)
    k = shifted.bits()

    far = (x > LIMIT[x.dtype]).value
    if value.lanes > 1:
        f.declarations.add(f"declare i1 @llvm.vector.reduce.or.v{value.lanes}i1({far.type})")
        far = f.op(f"call i1 @llvm.vector.reduce.or.v{value.lanes}i1({far})", "bool")
    slow, after = f.label("far"), f.label("near")
    before = f.block
    f.branch(far, slow, after)
    f.begin(slow)
    far_r, far_k = _reduce_lanes(x, r, k)
    end = f.block
    f.jump(after)
    f.begin(after)

    def joined(near: Number, far: IRValue) -> Number:
        text = f"phi {far.type} [ {near.value.name}, %{before} ], [ {far.name}, %{end} ]"
        return Number(f, f.op(text, far.dtype, far.lanes))

    return joined(r, far_r), joined(nearly, far_r), joined(k, far_k)


def _reduce_lanes(x: Number, r: Number, k: Number) -> tuple[IRValue, IRValue]:
    """r and n, with the lanes above the limit reduced one after the other. A call, because it rarely runs."""
    f, lanes = x.function, x.value.lanes
    name = f"reduce_far_{x.dtype}_{lanes}"
    pair = f"{{ {r.value.type}, {k.value.type} }}"
    f.declarations.update((_FAR_REDUCTION, *_FAR_DECLARATIONS, _lane_by_lane(name, x.dtype, k.dtype, lanes)))
    both = f.op(f"call {pair} @{name}({x.value}, {r.value}, {k.value})", "ptr").name
    far_r = f.op(f"extractvalue {pair} {both}, 0", r.dtype, lanes)
    return far_r, f.op(f"extractvalue {pair} {both}, 1", k.dtype, lanes)


@cache
def _lane_by_lane(name: str, dtype: str, quadrants: str, lanes: int) -> str:
    """The text of a function that reduces the lanes of its first argument that are above the limit."""
    pair = f"{{ {IRValue('', dtype, lanes).type}, {IRValue('', quadrants, lanes).type} }}"
    f = Function(name, [("x", dtype, lanes), ("r", dtype, lanes), ("k", quadrants, lanes)], pair, internal=True)
    slots = [f.slot(v.dtype, lanes) for v in f.params]
    for v, slot in zip(f.params, slots, strict=True):
        f.write(v, slot)
    quadrant = f.slot("int64")
    with f.loop(I64(0), I64(lanes)) as lane:
        x_at, r_at, k_at = (f.at(slot, lane, v.dtype) for v, slot in zip(f.params, slots, strict=True))
        one = f.load(x_at, dtype)
        with f.when(f.compare("fcmp ogt", one, f.constant(LIMIT[dtype], one))):
            wide = f.convert(one, "float64")
            rest = f.op(f"call double @reduce_far_angle({wide}, {quadrant})", "float64")
            f.store(f.convert(rest, dtype), r_at)
            f.store(f.convert(f.read(quadrant, "int64"), quadrants), k_at)
    first = f.op(f"insertvalue {pair} poison, {f.read(slots[1], dtype, lanes)}, 0", "ptr").name
    whole = f.op(f"insertvalue {pair} {first}, {f.read(slots[2], quadrants, lanes)}, 1", "ptr").name
    f.do(f"ret {pair} {whole}")
    return f.text()


def _two_over_pi(bits: int) -> int:
    """``floor(2/pi * 2^bits)``, by Machin's formula for pi in integers."""
    one = 1 << (bits + 64)

    def arctangent_of_one_over(n: int) -> int:
        total, term, k = 0, one // n, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    pi = 4 * (4 * arctangent_of_one_over(5) - arctangent_of_one_over(239))
    return (2 * one << bits) // pi


# enough for the largest double: its last bit is worth 2^971, so the first 969 bits of 2/pi give multiples of 4 (whole
# turns), and the next 192 bits are used
_BITS = 1168
_TABLE = _two_over_pi(_BITS).to_bytes(_BITS // 8 + 32, "little")
_BYTES = "".join(f"\\{byte:02X}" for byte in _TABLE)
_FAR_REDUCTION = f"""
@two_over_pi = internal unnamed_addr constant [{len(_TABLE)} x i8] c"{_BYTES}"
define internal double @reduce_far_angle(double %x, ptr %quadrant) noinline cold nounwind {{
  ; x = m 2^(e - 1075) with m of 53 bits; e - 1077 bits of 2/pi give multiples of 4
  %bits = bitcast double %x to i64
  %exponent = lshr i64 %bits, 52
  %e = and i64 %exponent, 2047
  %low = and i64 %bits, {2**52 - 1}
  %m = or i64 %low, {2**52}
  ; the 192 bits after those, from a table with the last bit first
  %skip = sub i64 {_BITS + 1077 - 192}, %e
  %byte = lshr i64 %skip, 3
  %odd = and i64 %skip, 7
  %at = getelementptr i8, ptr @two_over_pi, i64 %byte
  %window = load i256, ptr %at, align 1
  %shift = zext i64 %odd to i256
  %aligned = lshr i256 %window, %shift
  %w = trunc i256 %aligned to i192
  ; m w mod 2^192 = (x 2/pi mod 4) 2^190
  %wide = zext i64 %m to i192
  %product = mul i192 %wide, %w
  %half = add i192 %product, {1 << 189}
  %top = lshr i192 %half, 190
  %n = trunc i192 %top to i64
  store i64 %n, ptr %quadrant
  ; the fraction, nearest to 0, in 64 bits without leading zeros
  %fraction = shl i192 %product, 2
  %size = call i192 @llvm.abs.i192(i192 %fraction, i1 false)
  %zeros = call i192 @llvm.ctlz.i192(i192 %size, i1 false)
  %normal = shl i192 %size, %zeros
  %leading = lshr i192 %normal, 128
  %digits = trunc i192 %leading to i64
  ; times pi/2, as a sum of two doubles so that the end is rounded once
  %upper = and i64 %digits, -4294967296
  %lower = and i64 %digits, 4294967295
  %a = uitofp i64 %upper to double
  %b = uitofp i64 %lower to double
  %s = fadd double %a, %b
  %back = fsub double %s, %a
  %t = fsub double %b, %back
  %p = fmul double %s, 0x3FF921FB54442D18
  %minus = fneg double %p
  %p1 = call double @llvm.fma.f64(double %s, double 0x3FF921FB54442D18, double %minus)
  %p2 = call double @llvm.fma.f64(double %s, double 0x3C91A62633145C07, double %p1)
  %p3 = call double @llvm.fma.f64(double %t, double 0x3FF921FB54442D18, double %p2)
  %sum = fadd double %p, %p3
  %places = trunc i192 %zeros to i64
  %power = sub i64 {1023 - 64}, %places
  %scale.bits = shl i64 %power, 52
  %scale = bitcast i64 %scale.bits to double
  %r = fmul double %sum, %scale
  %sign = ashr i192 %fraction, 191
  %sign.word = trunc i192 %sign to i64
  %sign.double = sitofp i64 %sign.word to double
  %signed = call double @llvm.copysign.f64(double %r, double %sign.double)
  %nothing = fsub double %x, %x ; 0, but NaN for infinity
  %result = fadd double %signed, %nothing
  ret double %result
}}"""
_FAR_DECLARATIONS = (
    "declare i192 @llvm.ctlz.i192(i192, i1)",
    "declare i192 @llvm.abs.i192(i192, i1)",
    "declare double @llvm.copysign.f64(double, double)",
    "declare double @llvm.fma.f64(double, double, double)",
)
