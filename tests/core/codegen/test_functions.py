"""Elementary functions, inlined and as calls."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen import machine, vmath
from core.codegen.functions import FUNCTIONS, INLINE, LONG
from core.codegen.llvm import I64, Function

SPREAD = (0.0, -0.0, 0.3, 0.9, 1.7, 30.0, 1e4, 1e7, -2.5, -1e30, np.inf, -np.inf, np.nan, 1e-40, 5.0, 0.5)


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(vmath.FUNCTIONS))
def test_a_called_function_gives_the_bits_of_the_inlined_function(name, dtype):
    lanes = 16 // np.dtype(dtype).itemsize
    f = Function("both", [("x", "ptr"), ("out", "ptr")], noalias=False)
    count = vmath.FUNCTIONS[name].__code__.co_argcount - 1
    with f.loop(I64(0), I64(len(SPREAD)), lanes) as i:
        for use in range(INLINE + 1):
            x = f.load(f.at(f.param("x"), i, dtype), dtype, lanes)  # loaded again: no result is available for reuse
            row = f.binary("add", i, I64(use * len(SPREAD)))
            write = vmath.FUNCTIONS[name] if name in LONG and not use else FUNCTIONS[name]
            f.store(write(f, *[x] * count), f.at(f.param("out"), row, dtype))
    own = "sine_and_cosine" if name in ("sin", "cos") else name
    assert sum("call" in line and f" @{own}_{dtype}_" in line for line in f.lines) == (INLINE if name in LONG else 1)
    text = "\n".join([*sorted(f.declarations), f.text(), "attributes #0 = { nounwind noinline }"])
    library = machine.load(text)
    with np.errstate(over="ignore"):
        given = np.array(SPREAD).astype(dtype)
    out = np.zeros((INLINE + 1, len(SPREAD)), dtype)

    library.function("both", ctypes.c_void_p, ctypes.c_void_p)(given.ctypes.data, out.ctypes.data)

    assert out[0].tobytes() == out[INLINE].tobytes()


def reductions(f: Function) -> int:
    """The number of angle reductions in the text of `f`."""
    return sum("fmul" not in line and "0x3FE45F306DC9C883" in line for line in f.lines)


def test_the_sine_and_the_cosine_of_one_angle_are_computed_together():
    f = Function("both", [("x", "float64")])

    FUNCTIONS["sin"](f, f.param("x"))
    once = reductions(f)
    FUNCTIONS["cos"](f, f.param("x"))

    assert once == reductions(f) == 1


def test_values_computed_in_a_loop_are_not_reused_after_it():
    f = Function("both", [("x", "ptr"), ("out", "ptr"), ("n", "int64")], noalias=False)
    x = f.load(f.param("x"), "float64")
    with f.loop(I64(0), f.param("n")) as i:
        f.store(FUNCTIONS["sin"](f, x), f.at(f.param("out"), i, "float64"))
    with f.when(f.compare("icmp eq", f.param("n"), I64(0))):
        f.store(FUNCTIONS["sin"](f, x), f.at(f.param("out"), I64(1), "float64"))
    f.store(FUNCTIONS["cos"](f, x), f.param("out"))
    library = machine.load("\n".join([*sorted(f.declarations), f.text(), "attributes #0 = { nounwind }"]))
    given, out = np.array([0.7]), np.zeros(2)

    library.function("both", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(given.ctypes.data, out.ctypes.data, 0)

    np.testing.assert_allclose(out, [np.cos(0.7), np.sin(0.7)], rtol=1e-15)
