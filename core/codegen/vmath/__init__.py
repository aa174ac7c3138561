"""Elementary functions in LLVM IR: each appends the instructions for one value of any lanes, float32 or float64.

Without branches (but for the angles too large to reduce in a few steps), without flags: NaN, infinities, the sign of
zero and denormals are what numpy makes of them, and the bits of a result do not depend on the lanes. Each docstring
says how far from the exact result the function may be, in units of the last place (ulp), as the tests have it.
"""

from collections.abc import Callable

from core.codegen.llvm import Value
from core.codegen.vmath.error import erf, erfc
from core.codegen.vmath.exponential import exp, sigmoid, tanh
from core.codegen.vmath.logarithm import log
from core.codegen.vmath.trigonometric import cos, sin, tan

__all__ = ["FUNCTIONS", "cos", "erf", "erfc", "exp", "log", "sigmoid", "sin", "tan", "tanh"]

FUNCTIONS: dict[str, Callable[..., Value]] = {
    each.__name__: each for each in (cos, erf, erfc, exp, log, sigmoid, sin, tan, tanh)
}
