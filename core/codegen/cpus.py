"""The CPU that code is generated for: the one of this process, or a named one (`generating_for`)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

__all__ = ["LEVEL", "NAMED", "OPTIONS", "Cpu", "cpu", "generating_for", "may_use_tiles", "prepare_targets"]

OPTIONS = ("--disable-lsr",)
"""LLVM's options for the process. Addresses in generated loops are a base and an index already; the pass that would
rewrite them takes a fifth of the time of code generation and gains no speed."""

LEVEL = 1
"""LLVM's level of code generation. Level 2 differs mainly in a second scheduling of instructions, which CPUs that
reorder them do not need, and whose time grows with the square of a block."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU that code is generated for.

    triple:           LLVM's name of its instruction set and system.
    name, features:   LLVM's names of the model, and of what it has or lacks beside that.
    vector_bytes:     width of one vector register.
    registers:        number of vector registers.
    converts_float16: whether it has instructions that convert float16 to float32 and back.
    dots_bfloat16:    whether it has an instruction that adds products of pairs of bfloat16 numbers to 16 sums, and
                      takes less time for it than for float32 numbers.
    adds_words:       whether it has an instruction that adds products of pairs of 16-bit integers to sums of 32 bits.
    scales:           whether it has an instruction that multiplies by powers of two at every width of vectors.
    has_tiles:        whether it multiplies tiles of bfloat16 numbers (`core.codegen.amx`), and the system allows it.
    """

    triple: str
    name: str
    features: str
    vector_bytes: int
    registers: int
    converts_float16: bool
    dots_bfloat16: bool
    scales: bool
    adds_words: bool = False
    has_tiles: bool = False

    @property
    def multiplies_pairs(self) -> bool:
        """Whether it multiplies pairs of bfloat16 numbers, one by one or in tiles, faster than float32 numbers."""
        return self.dots_bfloat16 or self.has_tiles

    def target_machine(self, level: int = LEVEL) -> llvm.TargetMachine:
        """LLVM's generator of code for this CPU. level: of its optimization, from 0 to 3."""
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(cpu=self.name, features=self.features, opt=level, jit=True)


X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"

NAMED = {
    "x86-64-v2": Cpu(X86, "x86-64-v2", "", 16, 16, False, False, False),
    "x86-64-v3": Cpu(X86, "x86-64-v3", "", 32, 16, True, False, False),
    "x86-64-v4": Cpu(X86, "x86-64-v4", "", 64, 32, True, False, True),
    "armv8": Cpu(ARM, "generic", "", 16, 32, True, False, False),
}
"""CPUs by name: the levels of the x86-64 ABI (SSE4.2, AVX2 and FMA, AVX-512), and any 64-bit ARM, with NEON."""


ARCH_PRCTL, REQUEST, TILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: the number of the system call, ARCH_REQ_XCOMP_PERM, and the component of the state of a thread."""


@cache
def prepare_targets() -> None:
    """Prepare LLVM's generators for all kinds of processors, once in a process."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for option in OPTIONS:
        llvm.set_option("", option)


def may_use_tiles() -> bool:
    """Whether Linux lets this process use the registers for tiles, whose contents take 8 KiB to save: a process asks.

    Its threads, and the processes that it forks, have the permission, too. Machine code runs in a process that has
    loaded it, which has asked for its CPU before.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return not libc.syscall(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(REQUEST), ctypes.c_long(TILE_DATA))


@cache
def _of_process() -> Cpu:
    prepare_targets()
    has = llvm.get_host_cpu_features()
    triple = llvm.get_default_triple()
    arm = triple.startswith(("aarch64", "arm64"))
    width = 64 if has.get("avx512f") else 32 if has.get("avx2") else 16
    tiles = bool(has.get("amx-bf16") and has.get("amx-tile"))  # such CPUs take long for pairs outside of tiles
    return Cpu(
        triple,
        llvm.get_host_cpu_name(),
        has.flatten(),
        width,
        registers=32 if arm or width == 64 else 16,
        converts_float16=arm or bool(has.get("f16c")),
        dots_bfloat16=width == 64 and bool(has.get("avx512bf16")) and not tiles,
        has_tiles=tiles and may_use_tiles(),
        adds_words=bool(has.get("avx512vnni") and has.get("avx512vl")),
        scales=bool(has.get("avx512vl")),
    )


_NAMED: ContextVar[Cpu | None] = ContextVar("_NAMED", default=None)


def cpu() -> Cpu:
    """The CPU that code is generated for in this context: without `generating_for`, the one this process runs on."""
    return _NAMED.get() or _of_process()


@contextmanager
def generating_for(named: Cpu) -> Iterator[None]:
    """Inside, code is generated for this CPU. The process can run it if its own CPU has all that this one has."""
    prepare_targets()
    token = _NAMED.set(named)
    try:
        yield
    finally:
        _NAMED.reset(token)
