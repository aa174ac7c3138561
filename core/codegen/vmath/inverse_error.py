"""The inverse of the error function."""

from __future__ import annotations

import math

from core.codegen.llvm import Function, IRValue
from core.codegen.vmath.expression import Number, polynomial, sqrt, where
from core.codegen.vmath.logarithm import logarithm, split

__all__ = ["erfinv"]

MIDDLE = 0.5
# erfinv(x) / x as a ratio of polynomials in x^2 for |x| <= 0.5: 2^-39.3, and 2^-54.4 with rounded coefficients
NEAR = {
    "float32": (
        (
            0.8862269254540748,
            -1.2081001085636596,
            0.4111564525329104,
            -0.021888156799189266,
        ),
        (
            1.0,
            -1.6249943815575671,
            0.7454311500091344,
            -0.08362631797475256,
        ),
    ),
    "float64": (
        (
            0.886226925452758,
            -2.1284268328603733,
            1.7951540484238597,
            -0.6233654844358111,
            0.07749324615409509,
            -0.0016874168609999369,
        ),
        (
            1.0,
            -2.6634718846858596,
            2.5789780079489937,
            -1.0928729907761852,
            0.18918370045543384,
            -0.009147904073789688,
        ),
    ),
}
# erfinv(x) / s in s = sqrt(-log(1 - |x|)): 2^-40.0 for 0.83 <= s <= 4.1, 2^-55.9 for 0.83 <= s <= 6.1
TAIL = {
    "float32": (
        (
            0.001210172262725992,
            0.8727637200918729,
            1.7974647055976216,
            2.472672911136142,
            2.3388456700107585,
            0.429478013676502,
            0.004553376205126224,
        ),
        (
            1.0,
            1.9511574440925474,
            3.52238619061094,
            3.1656315240585675,
            2.361183894169059,
            0.4291752455392303,
            0.00456012162640961,
        ),
    ),
    "float64": (
        (
            1.6178202614883252e-05,
            0.8859676624878013,
            2.851354001151277,
            6.213933394710409,
            9.011614660059738,
            9.455151940406031,
            7.129242081272463,
            3.359193796905678,
            0.823520265343415,
            0.08175292595690042,
            0.002312140616265082,
        ),
        (
            1.0,
            3.21521946943647,
            7.521743197404577,
            11.74469102729644,
            14.070202086284512,
            12.435930217612496,
            8.12969709973153,
            3.4994371068568886,
            0.8293094956874794,
            0.08177081774080475,
            0.002312001488438078,
            8.41642475390335e-10,
        ),
    ),
}


def erfinv(f: Function, x: IRValue) -> IRValue:
    """The y with erf(y) = x; infinite at -1 and 1, NaN beyond. Within 0.6 ulp; float64 8."""
    a = Number(f, x).to("float64")
    size = a.abs()
    square = size * size
    near = size * _ratio(square, NEAR[x.dtype])
    e, m = split(1.0 - size)
    # at least a little below the middle, where the result is not used
    s = sqrt(where(size < MIDDLE / 2, 1.0, -logarithm(e, m - 1.0)))
    far = s * _ratio(s, TAIL[x.dtype])
    far = where(size < 1.0, far, where(size == 1.0, far.const(math.inf), math.nan))
    found = where(size <= MIDDLE, near, far).copysign(a)
    return where(a == a, found, a).to(x.dtype).value


def _ratio(x: Number, parts: tuple[tuple[float, ...], tuple[float, ...]]) -> Number:
    above, below = parts
    return polynomial(x, above) / polynomial(x, below)
