"""Emulated steps without one of their barriers: a barrier is needed if the emulator then finds a race."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.ir import Block
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.device.emulator import Emulated, EmulatedBackend, EmulatorFault

__all__ = ["races_without"]


def races_without(barrier: str, block: Block, values: Sequence[Any], backend: EmulatedBackend) -> list[bool]:
    """For each barrier of the step of `block`, whether a run without it is a race.

    barrier: a pattern of the names of functions, such as "block_barrier".
    """
    native = native_interpreter(block, backend)
    (region,) = backend.compiled
    code, found = region.emulated.code, []
    for call in re.finditer(rf"  call void @dev_{barrier}\(i32 \d+\)", code.text):
        text = code.text[: call.start()] + code.text[call.end() :]
        region.emulated = Emulated(replace(code, text=text), watches=True)
        try:
            native(Run(), *values)
        except EmulatorFault as fault:
            assert "a race" in str(fault)
            found.append(True)
        else:
            found.append(False)
    return found
