"""From LLVM IR to machine code for the CPU of this process, and the state that the process keeps for it (`STATE`)."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from core.codegen.cache import DiskCache
from core.codegen.compilers import Compilers
from core.codegen.cpus import LEVEL, OPTIONS, cpu
from core.ir.lru import LRU

__all__ = [
    "STATE",
    "Library",
    "close_compiler_process",
    "compile_ir",
    "keep_on_disk",
    "key_of",
    "lanes",
    "load",
    "optimize",
    "parallel_modules",
    "use_compiler_process",
]


def lanes(dtype: str) -> int:
    """Elements of `dtype` in one vector register."""
    size = {"float64": 8, "int64": 8}.get(dtype, 4)
    return max(1, cpu().vector_bytes // size)


@dataclass(frozen=True, slots=True)
class Library:
    """Compiled functions; they live as long as this object. nbytes: of object code."""

    engine: Any
    nbytes: int

    def address(self, name: str) -> int:
        return int(self.engine.get_function_address(name))

    def function(self, name: str, *argument_types: Any, returns: Any = None) -> Any:
        return ctypes.CFUNCTYPE(returns, *argument_types)(self.address(name))


PASSES = ("sroa", "instruction_combine", "loop_rotate", "simplify_cfg")
"""LLVM's passes for generated text, whose vectors, fusions and unrolling are explicit. The passes of -O2 take five to
ten times as long, and no workload of the bench gains speed from them, nor from NewGVN, which
takes a fifth of LLVM's time. For some valid functions an assertion of NewGVN ends the process."""


GENERATOR = 1
"""Version of the object code. Increase it when object code changes but its text and the settings of LLVM do not."""

MEMORY_BYTES = 64 * 2**20
"""Bytes of object code whose libraries stay loaded for modules of the same text."""


class CompilerState:
    """The state of this process for compilation: the only mutable state of the process in `core.codegen`.

    memory:       libraries by the digest of their texts and symbols.
    disk:         object code by the digest of its text; None stores none. Set by `keep_on_disk`.
    process:      the compiler processes; None compiles in this process. Set by `use_compiler_process`.
    compilations: how often a library needed LLVM. Tests read it.
    """

    def __init__(self) -> None:
        self.memory: LRU[Library] = LRU(MEMORY_BYTES, lambda library: library.nbytes)
        self.disk: DiskCache | None = None
        self.process: Compilers | None = None
        self.compilations = 0


STATE = CompilerState()


def keep_on_disk(directory: Path, limit: int) -> None:
    """From now on store object code in `directory`, at most `limit` bytes; a limit of 0 turns this off."""
    STATE.disk = DiskCache(directory, limit) if limit else None


def use_compiler_process(parallel: int = 1, memory: int = 0) -> Compilers:
    """From now on compile in separate processes, `parallel` texts at a time. Returns them, not yet started.

    memory: limit of the memory of each process, in bytes; 0 sets none.
    """
    STATE.process = Compilers(parallel, memory)
    return STATE.process


def close_compiler_process() -> None:
    """End the compiler processes, if there are any. The next compilation starts one again."""
    if STATE.process is not None:
        STATE.process.close()


def parallel_modules() -> int:
    """How many texts are compiled at the same time."""
    return STATE.process.parallel if STATE.process else 1


def load(*texts: str, symbols: Mapping[str, int] | None = None) -> Library:
    """The library of a module's text, or of several texts that call each other: from a cache, or compiled.

    symbols: addresses of the functions that the texts only declare.

    Raises RuntimeError with LLVM's message if a text is no valid module, ExecutionError (compiler_failed) if the
    compiler process ends.
    """
    keys = [key_of(text) for text in texts]
    here = "\n".join([*keys, *(f"{name} {at}" for name, at in sorted((symbols or {}).items()))])
    library = STATE.memory.get(here)
    if library is None:
        library = _link(_object_codes(dict(zip(keys, texts, strict=True))), symbols or {}, cpu().target_machine())
        STATE.memory.put(here, library)
    return library


def _object_codes(texts: Mapping[str, str]) -> list[bytes]:
    """The object code of each text, from the disk or compiled. texts: by their keys."""
    found = {key: STATE.disk.get(key) if STATE.disk else None for key in texts}
    missing = [key for key, code in found.items() if code is None]
    if missing:
        wanted = [texts[key] for key in missing]
        made = STATE.process.compile(wanted) if STATE.process else [compile_ir(text) for text in wanted]
        STATE.compilations += 1
        for key, code in zip(missing, made, strict=True):
            found[key] = code
            if STATE.disk:
                STATE.disk.put(key, code)
    return [code for code in found.values() if code is not None]


def key_of(ir: str) -> str:
    """A digest of everything that the object code of a text depends on: text, passes, compiler and CPU."""
    host = cpu()
    compiler = [GENERATOR, PASSES, OPTIONS, LEVEL, llvmlite.__version__, llvm.llvm_version_info, host.triple]
    return hashlib.sha256(repr([*compiler, host.name, host.features, ir]).encode()).hexdigest()


def compile_ir(ir: str) -> bytes:
    """Compile a text in this process. Raises RuntimeError with LLVM's message if it is no valid module."""
    target = cpu().target_machine()
    module = llvm.parse_assembly(ir)
    module.verify()
    module.triple, module.data_layout = target.triple, str(target.target_data)
    optimize(module, target)
    return bytes(target.emit_object(module))


def optimize(module: Any, target: Any) -> None:
    """Run `PASSES` on each function of a module. target: LLVM's generator of code."""
    builder = llvm.create_pass_builder(target, llvm.PipelineTuningOptions())
    passes = llvm.create_new_function_pass_manager()
    for each in PASSES:
        getattr(passes, f"add_{each}_pass")()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _link(codes: Sequence[bytes], symbols: Mapping[str, int], target: Any) -> Library:
    for name, address in symbols.items():  # LLVM's table of symbols is one for the process: a name has one address
        llvm.add_symbol(name, address)
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, target)
    for code in codes:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Library(engine, sum(map(len, codes)))
