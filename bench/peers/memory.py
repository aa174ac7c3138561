"""The memory of this process, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_of_process"]


def memory_of_process() -> dict[str, int]:
    """Resident bytes now and at the peak: {"resident": ..., "peak_resident": ...}. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return {"resident": int(kib["VmRSS"]) * 1024, "peak_resident": int(kib["VmHWM"]) * 1024}
