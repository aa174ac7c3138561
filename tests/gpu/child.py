"""Runs steps until it is killed: ``python -m tests.gpu.child [--emulated]``. It says so after the first one."""

from __future__ import annotations

import sys

from tests.gpu.rig import emulated, real
from tests.gpu.steps import Step

if __name__ == "__main__":
    rig = emulated() if "--emulated" in sys.argv else real()
    step = Step.of(rig, next(iter(rig.workloads.values()))())
    step.run()
    print("running", flush=True)
    while True:
        step.run()
