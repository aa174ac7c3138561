"""A GPU as a backend of the runtime: from a plan to a region, and machine code of GPUs on disk."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import llvmlite
import llvmlite.binding as llvm

from core.codegen.cache import DiskCache
from core.codegen.machine import PASSES
from core.device.arena import SharedArena
from core.device.driver import Driver, Stream
from core.device.gpu import DEVICE_TARGET
from core.device.launches import PARAMETERS, DeviceCode
from core.device.ptx import has_linker, linker_version, ptx_of
from core.device.ptx import machine_code_of as assembled
from core.device.region import DeviceRegion, WordCopier
from core.device.row_writer import row_updater_code, row_writer_code, width_of
from core.device.rules import Rules, rules_of
from core.device.spread import SPREAD
from core.device.step import write_device_step, write_timed_step
from core.device.table_updates import RowUpdater
from core.device.threads import BLOCK
from core.device.words import reports, rounded, word_copier_code, word_count, word_gatherer_code
from core.ir.errors import ExecutionError
from core.plan.plan import Plan
from core.plan.target import Target

__all__ = ["DeviceBackend", "key_of", "machine_code_of"]

GENERATOR = 6
"""Version of the machine code. Increase it when the code changes but the text of its step does not: the functions
`dev_*`, the entry, or the way to PTX.
"""

WHOLE_ARRAY = 256
"""An address as aligned as those of arrays are."""


class DeviceBackend:
    """See `core.runtime.backend.Backend`.

    make:   machine code for an architecture, or PTX, which the driver compiles itself.
    blocks: blocks of a step of much work; None takes one for each processor of the GPU.
    disk:   keeps machine code; None keeps none.
    rules:  what it assumes about the speed of the GPU; by default that of its architecture, and `tf32`.
    """

    target: Target = DEVICE_TARGET

    def __init__(
        self,
        driver: Driver,
        make: Callable[[DeviceCode, str], bytes] | None = None,
        blocks: int | None = None,
        block: int = BLOCK,
        disk: DiskCache | None = None,
        rules: Rules | None = None,
        tf32: bool = False,
    ) -> None:
        self.driver, self.disk = driver, disk
        found = driver.properties
        own = replace(rules_of(found.architecture), shared_bytes=found.shared_bytes, tf32=tf32)
        self.rules = rules or replace(own, library=driver.multiplies)
        self.arena = SharedArena(driver)
        self._row_writers: dict[int, Callable[[int, int, int, int], None]] = {}
        self._row_updaters: dict[tuple[int, int], RowUpdater] = {}
        self._word_copiers: dict[int, WordCopier] = {}
        self._word_gatherers: dict[int, Callable[[Stream, int], None]] = {}
        self._regions: weakref.WeakSet[DeviceRegion] = weakref.WeakSet()
        self._make = make or machine_code_of
        self._blocks, self._block = blocks or driver.properties.processors, block

    def runs_on(self, xp: ModuleType) -> bool:
        """See `Backend.runs_on`."""
        return xp is self.driver.xp

    def row_writer(self, row_bytes: int) -> Callable[[int, int, int, int], None]:
        """See `Backend.row_writer`. Raises ExecutionError (compiler_failed), DeviceFault."""
        if row_bytes not in self._row_writers:
            launched = self._launched(row_writer_code(row_bytes, self._blocks * SPREAD, self._block))
            self._row_writers[row_bytes] = lambda *addresses: launched(self.driver.current(), addresses)
        return self._row_writers[row_bytes]

    def row_updater(self, row_bytes: int, nbytes: int) -> RowUpdater:
        """See `core.device.row_writer.row_updater_code`. nbytes: of all rows that may be new.

        Raises ExecutionError (compiler_failed), DeviceFault.
        """
        blocks = min(self._blocks * SPREAD, max(1, -(-nbytes // (width_of(row_bytes) * self._block))))
        if (row_bytes, blocks) not in self._row_updaters:
            launched = self._launched(row_updater_code(row_bytes, blocks, self._block))
            update = lambda stream, words, follows: launched(stream, [words] * len(PARAMETERS), follows)
            self._row_updaters[row_bytes, blocks] = update
        return self._row_updaters[row_bytes, blocks]

    def word_copier(self, count: int) -> WordCopier:
        """A kernel that copies `count` words, or some more. Raises ExecutionError (compiler_failed), DeviceFault."""
        count = rounded(count)
        if count not in self._word_copiers:
            launched = self._launched(word_copier_code(count))
            self._word_copiers[count] = lambda stream, to, of, follows: launched(stream, (to, of) * 2, follows)
        return self._word_copiers[count]

    def word_gatherer(self, count: int) -> Callable[[Stream, int], None]:
        """See `core.device.words.word_gatherer_code`. Raises ExecutionError (compiler_failed), DeviceFault."""
        if count not in self._word_gatherers:
            launched = self._launched(word_gatherer_code(count))
            self._word_gatherers[count] = lambda stream, pairs: launched(stream, [pairs] * len(PARAMETERS))
        return self._word_gatherers[count]

    def _launched(self, code: DeviceCode) -> Callable[..., None]:
        """``(stream, addresses, follows)``: launches the one kernel of `code`; see `Stream.launch`.

        Raises as `compile`.
        """
        (function,), (launch,) = self.driver.load(self._machine_code(code), code.launches), code.launches
        return lambda stream, addresses, follows=False: stream.launch(function, launch, addresses, follows)

    def arena_bytes(self, plan: Plan) -> int:
        """See `Backend.arena_bytes`."""
        return self._code(plan).arena_bytes

    def compile(self, plan: Plan, timed: bool = False) -> DeviceRegion:
        """The compiled plan. timed: each instruction has a launch of its own, as far as that is possible.

        Raises ExecutionError (compiler_failed), DeviceFault.
        """
        code, parts = write_timed_step(*self._how(plan)) if timed else (self._code(plan), ())
        for each in code.products:
            self.driver.prepare(each, [WHOLE_ARRAY + place.offset for place in each.places])
        functions = self.driver.load(self._machine_code(code), code.launches)
        for launch, function in zip(code.launches, functions, strict=True):
            if launch.cooperative and function.most_blocks < launch.grid:
                raise ExecutionError(
                    f"{launch.kernel} needs {launch.grid} blocks at once, but this GPU runs {function.most_blocks}",
                    "compiler_failed",
                )
        copier = self.word_copier(word_count(plan)) if reports(plan) else None
        region = DeviceRegion(plan, code, functions, self.driver, self.arena, copier, parts)
        self._regions.add(region)
        return region

    @property
    def idle_bytes(self) -> int:
        """Bytes of the arena and of the stacks that wait for later runs."""
        return self.arena.idle_bytes + sum(each.idle_bytes for each in list(self._regions))

    def free_idle(self) -> None:
        """Free the memory that `idle_bytes` counts. Later runs allocate it again."""
        self.arena.free_idle()
        for each in list(self._regions):
            each.free_idle()

    def _code(self, plan: Plan) -> DeviceCode:
        return write_device_step(*self._how(plan))

    def _how(self, plan: Plan) -> tuple[Plan, int, int, Rules]:
        """The arguments of `write_device_step`."""
        return plan, self._blocks, self._block, self.rules

    def _machine_code(self, code: DeviceCode) -> bytes:
        architecture = self.driver.properties.architecture
        if self.disk is None:
            return self._make(code, architecture)
        key = key_of(code, architecture, self.driver.properties.driver)
        found = self.disk.get(key)
        if found is None:
            found = self._make(code, architecture)
            self.disk.put(key, found)
        return found


def machine_code_of(code: DeviceCode, architecture: str) -> bytes:
    """A cubin, or PTX where nvJitLink is not installed. Raises ExecutionError (compiler_failed)."""
    if has_linker():
        return assembled(code, architecture).code
    return ptx_of(code, architecture).encode() + b"\0"


def key_of(code: DeviceCode, architecture: str, driver: int) -> str:
    """A digest of everything that machine code depends on: text, launches, architecture and versions.

    driver: its version, since some of it is PTX that only certain drivers take.
    """
    entries = [(each.kernel, each.block, each.cluster, each.resident) for each in code.launches]
    compiler = [GENERATOR, PASSES, llvmlite.__version__, llvm.llvm_version_info, linker_version(), driver]
    return hashlib.sha256(repr([*compiler, architecture, entries, code.text]).encode()).hexdigest()
