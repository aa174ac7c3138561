"""The machine: processor, memory, limits, clock, kernel."""

from __future__ import annotations

import fcntl
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from service.doctor.finding import Finding, ok, warning, wrong
from service.engine.memory import UnusableSettings, worker_memory
from service.machine import available_cores, available_memory, available_processes
from service.settings import MIB, Settings

__all__ = ["clock", "kernel", "limits", "memory", "processor"]

FILES, PROCESSES = 4096, 512
SKEW_S = 0.02
EARLIEST = 1_700_000_000
"""No clock is before this second of 2023: a machine without a battery may begin in 1970."""

PROC = Path("/proc")


def processor(settings: Settings) -> Iterator[Finding]:
    """Vector instructions for machine code, and cores."""
    cores, features = available_cores(), cpu_features()
    others = len(os.sched_getaffinity(0)) - cores
    text = f"{cores} cores" + (f" (the limit of the container; {others} more are here)" if others > 0 else "")
    if not features:
        yield warning("processor", f"{text}; its instructions are unknown", "Check that llvmlite is installed.")
    elif not features & {"avx2", "neon", "asimd", "sve"}:
        yield warning("processor", f"{text} without AVX2", "Machine code is much slower: use a newer processor.")
    else:
        known = ("amx-bf16", "avx512bf16", "avx512f", "avx2", "fma", "neon", "sve")
        yield ok("processor", f"{text} with {', '.join(name for name in known if name in features)}")
    if "amx-bf16" in features and not may_use_tiles():
        yield warning(
            "processor",
            "Linux refuses the registers of AMX, so that bfloat16 products take as long as those of float32",
            "Use Linux 5.16 or newer, and a container that allows the system call arch_prctl.",
        )
    if settings.device != "cuda" and settings.workers > 2 * cores:
        text = f"{settings.workers} workers share {cores} cores"
        yield warning("processor", text, "Lower BACKPASS_WORKERS to the number of cores.")
    elif settings.device != "cuda" and settings.workers * settings.threads_per_worker(settings.workers) > 2 * cores:
        text = f"{settings.workers} workers with {settings.threads} threads each share {cores} cores"
        yield warning("processor", text, "Lower BACKPASS_THREADS, or remove it: threads that wait make steps slower.")


def cpu_features() -> set[str]:
    """The names of the instruction sets of this processor; empty if they cannot be found."""
    try:
        from llvmlite import binding

        return {name for name, present in binding.get_host_cpu_features().items() if present}
    except (ImportError, OSError, RuntimeError):
        return set()


def may_use_tiles() -> bool:
    """Whether Linux lets processes use the registers of AMX."""
    from core.codegen import cpus  # needs llvmlite

    return cpus.may_use_tiles()


def memory(settings: Settings) -> Iterator[Finding]:
    """The memory of the machine or container, and the share of each worker."""
    total = available_memory()
    try:
        each = worker_memory(settings)
    except UnusableSettings as error:
        yield wrong("memory", str(error), "Give the container more memory, or set fewer workers.")
        return
    text = f"{total // MIB} MiB; {settings.workers} workers may use {each // MIB} MiB each"
    if each < 1024 * MIB:
        yield warning("memory", text, "Large programs will be refused: set fewer workers or give more memory.")
    else:
        yield ok("memory", text)
    if _text(PROC / "sys/vm/overcommit_memory") == "2":
        yield warning("memory", "vm.overcommit_memory is 2", "Set it to 0 or 1: workers reserve more than they use.")


def limits(settings: Settings) -> Iterator[Finding]:
    """Open files and processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 512 + 16 * settings.workers
    if soft < needed:
        yield wrong("limits", f"only {soft} files may be open", f"Raise the limit to {FILES}: ulimit -n, or nofile.")
    elif soft < FILES:
        text = f"{soft} files may be open (hard limit {hard}), so at most as many connections"
        yield warning("limits", text, f"Raise the limit to {FILES} or more: ulimit -n, or nofile of the container.")
    else:
        yield ok("limits", f"{soft} files may be open")
    processes = available_processes()
    if processes is not None:
        text = f"the container may have {processes} processes and threads"
        if processes >= PROCESSES:
            yield ok("limits", text)
        else:
            yield warning("limits", text, f"Raise pids_limit to {PROCESSES}.")


def clock(settings: Settings) -> Iterator[Finding]:
    """The two clocks against each other. Deadlines use the monotonic one; the other one dates files and logs."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.05)
    passed, passed_wall = time.monotonic() - steady, time.time() - wall
    zone = time.strftime("%Z%z", time.localtime())
    if passed <= 0:
        yield wrong("clock", "the monotonic clock stands still", "Deadlines cannot work: check the virtual machine.")
    elif wall < EARLIEST:
        text = f"the clock shows {time.strftime('%Y-%m-%d', time.gmtime(wall))}"
        yield wrong("clock", text, "Set the clock: keys and stored data expire by it.")
    elif abs(passed - passed_wall) > SKEW_S:
        text = f"the clock of the day moved by {passed_wall - passed:+.3f} s within {passed:.3f} s"
        yield warning("clock", text, "Check its synchronisation: leases of stored data follow it.")
    else:
        yield ok("clock", f"both clocks run alike; the time zone is {zone}, logs are in UTC")


def kernel(settings: Settings) -> Iterator[Finding]:
    """The calls of the kernel that workers and the data directory need."""
    missing = []
    try:
        os.close(os.memfd_create("backpass-doctor", os.MFD_CLOEXEC))
    except (OSError, AttributeError) as error:
        missing.append(f"memfd_create fails: {error}")
    try:
        with tempfile.TemporaryFile(dir=settings.data_dir if settings.data_dir.is_dir() else None) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        missing.append(f"flock fails: {error}")
    if missing:
        yield wrong("kernel", "; ".join(missing), "Allow the call in the seccomp profile, or use another file system.")
    else:
        yield ok("kernel", f"Linux {os.uname().release} has memfd_create and flock")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
