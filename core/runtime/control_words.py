"""The words that machine code and its caller share while a step runs, and the codes in the error word.

The code generator and the runtime both read this file: it is their binary interface.
"""

from __future__ import annotations

__all__ = ["CALLBACK", "CONTROL", "ERROR", "MEMORY_LEFT", "OPS_LEFT", "RAISED", "STACK", "STOP", "STOPPED"]

CONTROL = ("error", "stop", "max_trips", "ops_left", "max_bytes", "callback", "memory_left")
"""The words of `control`, one int64 each, in this order.

error:     0, the number of the check that failed, or one of the negative codes below. Any other value than 0 ends all
           loops.
stop:      another thread writes 1 to ask the step to end.
max_trips: most trips of each loop.
ops_left:  how many ops inside loops may still run; the code counts it down.
max_bytes: most bytes that one loop may record of one value.
callback:  address of the function ``(number, addresses of arrays)`` that runs ops without machine code.
memory_left: bytes that the stacks of loops may still allocate; the code counts it down.
"""

ERROR, STOP, OPS_LEFT, CALLBACK, MEMORY_LEFT = (
    CONTROL.index(word) for word in ("error", "stop", "ops_left", "callback", "memory_left")
)

STOPPED = -1
"""Error word: the step ended because the stop word was set."""

RAISED = -3
"""Error word: an op that the callback ran raised an error."""

STACK = -4
"""Error word of stack number 0 that could not grow; the word of stack n is ``STACK - 2 * n`` if it wanted more than
`memory_left` or the system has no memory, and one less if it wanted more than `max_bytes`.
"""
