"""Elementary functions in LLVM IR: each appends the instructions for one value of any lanes, float32 or float64,
and is named as in numpy.

Without branches (but for the angles too large to reduce in a few steps), without flags: NaN, infinities, the sign of
zero and denormals are what numpy makes of them, and the bits of a result do not depend on the lanes. Each docstring
says how far from the exact result the function may be, in units of the last place (ulp), as the tests have it.
"""

from collections.abc import Callable

from core.codegen.llvm import Value
from core.codegen.vmath.arcs import arccos, arcsin, arctan, arctan2
from core.codegen.vmath.error import erf, erfc
from core.codegen.vmath.exponential import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from core.codegen.vmath.logarithm import arccosh, arcsinh, arctanh, log, log1p, log2, log10, logaddexp
from core.codegen.vmath.power import power
from core.codegen.vmath.trigonometric import cos, sin, sine_and_cosine, tan

__all__ = [
    "FUNCTIONS",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "power",
    "sigmoid",
    "sin",
    "sine_and_cosine",
    "sinh",
    "tan",
    "tanh",
]

_ALL = (
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    log,
    log10,
    log1p,
    log2,
    logaddexp,
    power,
    sigmoid,
    sin,
    sinh,
    tan,
    tanh,
)
FUNCTIONS: dict[str, Callable[..., Value]] = {each.__name__: each for each in _ALL}
