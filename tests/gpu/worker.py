"""Runs units for `tests.gpu.parallel`: ``python -m tests.gpu.worker [--emulated]``.

A line of its input is [kind, name]; the line of its output is that of the unit. It ends after a fault of the GPU, which
makes the GPU useless for a process.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from core.device.driver import DeviceFault
from tests.gpu.rig import emulated, real
from tests.gpu.units import UNITS, Wrong


def main() -> None:
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with lines
    rig = emulated() if "--emulated" in sys.argv else real()
    for line in sys.stdin:
        kind, name = json.loads(line)
        found: dict[str, Any]
        fault = False
        try:
            found = UNITS[kind].run(rig, name)
        except Wrong as wrong:
            found = {"ok": False, "error": str(wrong)[:300]}
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__}: {error}"[:400]
            found = {"ok": False, "error": told, "where": f"{where.filename.rpartition('/')[2]}:{where.lineno}"}
            fault = isinstance(error, DeviceFault) or "CUDA" in type(error).__name__
        pipe.write(json.dumps(found, default=float) + "\n")
        pipe.flush()
        if fault:
            return


if __name__ == "__main__":
    main()
