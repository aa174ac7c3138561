"""A stack that cannot grow does not replace an earlier error of the run."""

from __future__ import annotations

import ctypes

import pytest

from core.codegen import machine
from core.codegen.module import Module
from core.codegen.stack_memory import grow_function
from core.runtime.control_words import CONTROL, ERROR, MEMORY_LEFT, STACK


@pytest.mark.parametrize(("earlier", "wanted"), [(0, STACK - 1), (7, 7), (STACK - 3, STACK - 3)])
def test_the_first_error_stays_when_a_stack_is_refused(earlier, wanted):
    library = machine.load(Module(functions=[grow_function(64)]).text())
    grow = library.function("grow", ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    stack, control = (ctypes.c_int64 * 2)(0, 0), (ctypes.c_int64 * len(CONTROL))()
    control[ERROR], control[MEMORY_LEFT], control[CONTROL.index("max_bytes")] = earlier, 1 << 20, 100

    grow(ctypes.addressof(stack), 200, ctypes.addressof(control), STACK)

    assert control[ERROR] == wanted
    assert list(stack) == [0, 0]
