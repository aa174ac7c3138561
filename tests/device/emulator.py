"""Steps for a GPU, run on this CPU: the emulator (`emulator.c`) and a backend of the runtime that uses it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from core.codegen.cpus import cpu
from core.device.flow import CONTROL_WORDS, STOP_AT, TOO_SMALL
from core.device.gpu import DEVICE_TARGET
from core.device.launches import PARAMETERS, DeviceCode, Launch
from core.device.rules import RULES, Rules
from core.device.step import write_device_step
from core.ir.errors import ExecutionError
from core.ops.common.types import as_dtype
from core.plan.plan import Plan
from core.plan.target import Target
from core.runtime.control_words import CONTROL, OPS_LEFT, STOPPED
from core.runtime.run import Run

__all__ = ["Emulated", "EmulatedBackend", "EmulatorFault", "compiler"]

FUNCTIONS = (
    "thread", "barrier", "block_barrier", "warp_barrier", "exchange", "shared", "adds", "reads", "writes",
    "mma_tf32", "mma_f16", "mma_bf16",
)  # fmt: skip
FLOATS = {"float": 4, "double": 8, "half": 2, "ptr": 8}
ACCESS = re.compile(
    r"^  (?:%\S+ = )?(load|store) (?!volatile)(?:atomic )?(\w+|<\d+ x \w+>)(?: \S+)?, (ptr %[\w.]+), align (\d+)$"
)
ADDITION = re.compile(r"^  %\S+ = atomicrmw add (ptr %[\w.]+), i32 \S+ ")
ALIGNMENT = 256


class EmulatorFault(AssertionError):
    """The emulator saw a race, a deadlock or threads that meet at different places."""


def compiler() -> list[str] | None:
    """A C compiler: the one of the system, or that of the package ziglang; None if there is neither."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found:
        return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


@cache
def _emulator() -> ctypes.CDLL:
    source = Path(__file__).with_name("emulator.c")
    flags = ["-O2", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-w"]
    command = compiler()
    assert command, "a C compiler"
    with tempfile.TemporaryDirectory() as folder:  # a library that is loaded needs its file no longer
        made = str(Path(folder) / "emulator.so")
        subprocess.run([*command, *flags, str(source), "-o", made, "-lm"], check=True)
        library = ctypes.CDLL(made)
    library.gpu_report.restype = ctypes.c_char_p
    library.gpu_run.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int
    ]  # fmt: skip
    for name in FUNCTIONS:
        function = getattr(library, f"dev_{name}")
        llvm.add_symbol(f"dev_{name}", ctypes.cast(function, ctypes.c_void_p).value)
    return library


def _start(number: int, launch: Launch) -> str:
    """A function that calls the kernel of a launch with its numbers."""
    params = ", ".join(f"ptr %{p}" for p in PARAMETERS)
    given = ", ".join([params, *(f"i64 {n}" for n in launch.numbers)])
    return f"\ndefine void @start{number}({params}) {{\n  call void @{launch.kernel}({given})\n  ret void\n}}\n"


def watched(text: str) -> str:
    """The text with a call before each access of memory that threads may share, for the detection of races."""
    return "\n".join(line for i, each in enumerate(text.split("\n"), 1) for line in _watched(each, i))


def _watched(line: str, number: int) -> Iterator[str]:
    found = ACCESS.match(line)
    if found:
        kind, type, address, alignment = found.groups()
        if "slot" not in address:
            one = type.strip("<>").split(" x ")
            nbytes = (FLOATS.get(one[-1]) or int(one[-1][1:]) // 8) * (int(one[0]) if len(one) == 2 else 1)
            name = "reads" if kind == "load" else "writes"
            yield f"  call void @dev_{name}({address}, i32 {nbytes}, i32 {alignment}, i32 {number})"
    added = ADDITION.match(line)
    if added:
        yield f"  call void @dev_adds({added[1]}, i32 4, i32 4, i32 {number})"
    yield line


class Emulated:
    """The code of a step, compiled for this CPU."""

    def __init__(self, code: DeviceCode, watches: bool) -> None:
        self.code, self.watches = code, watches
        _emulator()
        text = code.text
        if watches:
            text = watched(text) + "".join(
                f"\ndeclare void @dev_{n}(ptr, i32, i32, i32)\n" for n in ("adds", "reads", "writes")
            )
        text += "".join(_start(i, each) for i, each in enumerate(code.launches))
        module = llvm.parse_assembly(text)
        module.verify()
        machine = cpu().target_machine(level=0)  # most tests run their code once: compilation takes longer
        self.engine = llvm.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()
        self.entries = [self.engine.get_function_address(f"start{i}") for i in range(len(code.launches))]

    def run(self, addresses: Sequence[int], seed: int) -> None:
        """Run the launches. Raises EmulatorFault."""
        for number in range(len(self.entries)):
            self.launch(number, addresses, seed)

    def launch(self, number: int, addresses: Sequence[int], seed: int) -> None:
        """Run one launch. Raises EmulatorFault."""
        given = (ctypes.c_void_p * 4)(*addresses)
        each, library = self.code.launches[number], _emulator()
        if library.gpu_run(self.entries[number], given, each.grid, each.block, each.shared, seed, self.watches):
            raise EmulatorFault(library.gpu_report().decode())


@dataclass
class EmulatedRegion:
    """A plan whose step runs on the emulator; the host's part of a launch."""

    plan: Plan
    emulated: Emulated
    seed: int
    stack_sizes: list[int] = field(default_factory=list)
    launches: int = 0

    def __post_init__(self) -> None:
        self.stack_sizes = [DEVICE_TARGET.stack_bytes(s.slot_bytes) for s in self.plan.stacks]

    @property
    def arena_bytes(self) -> int:
        return self.emulated.code.arena_bytes

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        arrays = [np.array(a, copy=True, order="C") for a in args]
        results = [np.full(v.shape, 77, as_dtype(v.dtype)) for v in self.plan.results]
        while True:
            error, wanted = self._launch([*arrays, *results], run)
            if error != TOO_SMALL:
                break
            self.stack_sizes = [
                DEVICE_TARGET.stack_bytes(max(have, need)) for have, need in zip(self.stack_sizes, wanted, strict=True)
            ]
        if error == STOPPED:
            raise ExecutionError("the run was canceled", "canceled")
        if error:
            check = self.plan.checks[error]
            raise ExecutionError(check.message, check.code, location=check.location)
        return self.plan.cut(results)

    def _launch(self, arrays: list[np.ndarray], run: Run) -> tuple[int, list[int]]:
        """One launch: the error word, and the bytes that each stack wanted."""
        self.launches += 1
        given = np.array([a.ctypes.data for a in arrays] or [0], np.uint64)
        arena = _aligned(self.emulated.code.arena_bytes)
        stacks = [_aligned(size) for size in self.stack_sizes]
        table = np.array([(s.ctypes.data, s.nbytes, 0) for s in stacks] or [(0, 0, 0)], np.int64)
        control = np.zeros(CONTROL_WORDS, np.int64)
        stop = np.zeros(1, np.int64)
        control[STOP_AT] = stop.ctypes.data
        control[CONTROL.index("max_trips")] = run.limits.max_trips
        control[OPS_LEFT] = run.ops_left
        self.emulated.run([x.ctypes.data for x in (given, arena, control, table)], self.seed + self.launches)
        run.ops_left = int(control[OPS_LEFT])
        return int(control[0]), [int(row[2]) for row in table][: len(stacks)]


def _aligned(nbytes: int) -> np.ndarray:
    """Memory of `nbytes` bytes that starts at a multiple of ALIGNMENT and holds no zeros."""
    room = np.full(nbytes + ALIGNMENT, 0x7F, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + nbytes]


@dataclass
class EmulatedBackend:
    """A backend of the runtime whose regions run on the emulator."""

    blocks: int = 2
    block: int = 64
    watches: bool = True
    seed: int = 1
    target: Target = DEVICE_TARGET
    rules: Rules = RULES
    compiled: list[EmulatedRegion] = field(default_factory=list)

    def arena_bytes(self, plan: Plan) -> int:
        return write_device_step(plan, self.blocks, self.block, self.rules).arena_bytes

    def compile(self, plan: Plan, timed: bool = False) -> EmulatedRegion:
        code = write_device_step(plan, self.blocks, self.block, self.rules)
        self.compiled.append(EmulatedRegion(plan, Emulated(code, self.watches), self.seed))
        return self.compiled[-1]
