"""Elementary functions written out, and as calls."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen import machine, vmath
from core.codegen.llvm import I64, Function
from core.codegen.scalar import FUNCTIONS, INLINE

SPREAD = (0.0, -0.0, 0.3, 0.9, 1.7, 30.0, 1e4, 1e7, -2.5, -1e30, np.inf, -np.inf, np.nan, 1e-40, 5.0, 0.5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(vmath.FUNCTIONS))
def test_a_function_called_has_the_bits_of_the_function_written_out(name, dtype):
    lanes = 16 // np.dtype(dtype).itemsize
    f = Function("both", [("x", "ptr"), ("out", "ptr")], noalias=False)
    count = vmath.FUNCTIONS[name].__code__.co_argcount - 1
    with f.loop(I64(0), I64(len(SPREAD)), lanes) as i:
        x = f.load(f.at(f.param("x"), i, dtype), dtype, lanes)
        for use in range(INLINE + 1):
            row = f.binary("add", i, I64(use * len(SPREAD)))
            f.store(FUNCTIONS[name](f, *[x] * count), f.at(f.param("out"), row, dtype))
    assert sum(f"call {x.type} @{name}_" in line for line in f.lines) == 1
    text = "\n".join([*sorted(f.declarations), f.text(), "attributes #0 = { nounwind noinline }"])
    library = machine.load(text)
    with np.errstate(over="ignore"):
        given = np.array(SPREAD).astype(dtype)
    out = np.zeros((INLINE + 1, len(SPREAD)), dtype)

    library.function("both", ctypes.c_void_p, ctypes.c_void_p)(given.ctypes.data, out.ctypes.data)

    assert out[0].tobytes() == out[INLINE].tobytes()
