"""Elementary functions in LLVM IR, under numpy's names: each appends the instructions for a float32 or float64 value
with any number of lanes.

They have no branches (except for angles too large to reduce in a few steps) and no fast-math flags. NaN, infinities,
signed zeros and denormals give the same as in numpy, and the bits of a result do not depend on the lanes. Each
docstring states the largest error in units of the last place (ulp), which the tests check.
"""

from collections.abc import Callable

from core.codegen.llvm import IRValue
from core.codegen.vmath.arcs import arccos, arcsin, arctan, arctan2
from core.codegen.vmath.error import erf, erfc
from core.codegen.vmath.exponential import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from core.codegen.vmath.gamma import digamma, lgamma, polygamma
from core.codegen.vmath.inverse_error import erfinv
from core.codegen.vmath.logarithm import arccosh, arcsinh, arctanh, log, log1p, log2, log10, logaddexp
from core.codegen.vmath.power import power
from core.codegen.vmath.remainder import floor_divide, fmod, hypot, mod
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
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor_divide",
    "fmod",
    "hypot",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "mod",
    "polygamma",
    "power",
    "sigmoid",
    "sin",
    "sine_and_cosine",
    "sinh",
    "tan",
    "tanh",
]

FUNCTIONS: dict[str, Callable[..., IRValue]] = {
    name: globals()[name] for name in __all__ if name not in ("FUNCTIONS", "polygamma", "sine_and_cosine")
}
"""Name -> function of one or two values. `polygamma` makes functions, and `sine_and_cosine` has two results."""
