"""LLVM IR to machine code for the CPU at hand."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from core.codegen.cache import DiskCache
from core.codegen.compiler_process import Outside
from core.ir.lru import LRU

__all__ = [
    "KEPT",
    "Library",
    "abreast",
    "compile_outside",
    "compiled_here",
    "cpu",
    "keep_on_disk",
    "key_of",
    "lanes",
    "load",
]


@dataclass(frozen=True, slots=True)
class Cpu:
    """What the generated code may use. vector_bytes: width of one vector register."""

    name: str
    features: str
    vector_bytes: int


@cache
def cpu() -> Cpu:
    """The CPU this process runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    found = llvm.get_host_cpu_features()
    width = 64 if found.get("avx512f") else 32 if found.get("avx2") else 16
    return Cpu(llvm.get_host_cpu_name(), found.flatten(), width)


def lanes(dtype: str) -> int:
    """Elements of `dtype` in one vector register."""
    size = {"float64": 8, "int64": 8}.get(dtype, 4)
    return cpu().vector_bytes // size


@dataclass(frozen=True, slots=True)
class Library:
    """Compiled functions; they live as long as this object. nbytes: of object code."""

    engine: Any
    nbytes: int

    def address(self, name: str) -> int:
        return int(self.engine.get_function_address(name))

    def function(self, name: str, *argument_types: Any, returns: Any = None) -> Any:
        return ctypes.CFUNCTYPE(returns, *argument_types)(self.address(name))


PASSES = ("sroa", "new_gvn", "instruction_combine", "loop_rotate", "simplify_cfg")
"""What is left to do for the text of our generators, whose vectors, fusions and unrolling are explicit. LLVM's whole
list at -O2 takes five to ten times as long, and the workloads of the bench run no faster for it."""


GENERATOR = 1
"""Grows with what object code depends on and neither the text of a module nor `PASSES` tells."""

MEMORY_BYTES = 64 * 2**20
"""Of object code whose libraries are kept for modules of the same text."""


class _Kept:
    """The caches of this process. compilations: how often there was no way but to compile."""

    def __init__(self) -> None:
        self.memory: LRU[Library] = LRU(MEMORY_BYTES, lambda library: library.nbytes)
        self.disk: DiskCache | None = None
        self.outside: Outside | None = None
        self.compilations = 0


KEPT = _Kept()


def keep_on_disk(directory: Path, limit: int) -> None:
    """From now on object code is kept in `directory`, at most `limit` bytes; with 0 none is."""
    KEPT.disk = DiskCache(directory, limit) if limit else None


def compile_outside(abreast: int = 1) -> Outside:
    """From now on LLVM runs in a process of its own, which is returned, and so many modules are compiled at a time."""
    KEPT.outside = Outside(abreast)
    return KEPT.outside


def abreast() -> int:
    """How many modules are compiled at the same time."""
    return KEPT.outside.abreast if KEPT.outside else 1


def load(*texts: str, symbols: Mapping[str, int] | None = None) -> Library:
    """Compile a module's text, or those of several that call each other, if that has not been done before.

    symbols: addresses of the functions that they only declare.
    Raises RuntimeError with LLVM's words if a text is no valid module, ExecutionError (compiler_failed) if a compiler
    outside crashes.
    """
    keys = [key_of(text) for text in texts]
    here = "\n".join([*keys, *(f"{name} {at}" for name, at in sorted((symbols or {}).items()))])
    library = KEPT.memory.get(here)
    if library is None:
        library = _link(_object_codes(dict(zip(keys, texts, strict=True))), symbols or {}, _target())
        KEPT.memory.put(here, library)
    return library


def _object_codes(texts: Mapping[str, str]) -> list[bytes]:
    """The object code of each text, given by its key: from the disk, or compiled."""
    found = {key: KEPT.disk.get(key) if KEPT.disk else None for key in texts}
    missing = [key for key, code in found.items() if code is None]
    if missing:
        wanted = [texts[key] for key in missing]
        made = KEPT.outside.compiled(wanted) if KEPT.outside else [compiled_here(text) for text in wanted]
        KEPT.compilations += 1
        for key, code in zip(missing, made, strict=True):
            found[key] = code
            if KEPT.disk:
                KEPT.disk.put(key, code)
    return [code for code in found.values() if code is not None]


def key_of(ir: str) -> str:
    """A digest of all that the object code of a module depends on."""
    host = cpu()
    compiler = [GENERATOR, PASSES, llvmlite.__version__, llvm.llvm_version_info, llvm.get_default_triple()]
    return hashlib.sha256(repr([*compiler, host.name, host.features, ir]).encode()).hexdigest()


def compiled_here(ir: str) -> bytes:
    """The object code of a module's text, made in this process. Raises RuntimeError if it is no valid module."""
    target = _target()
    module = llvm.parse_assembly(ir)
    module.verify()
    module.triple, module.data_layout = target.triple, str(target.target_data)
    builder = llvm.create_pass_builder(target, llvm.PipelineTuningOptions())
    passes = llvm.create_new_function_pass_manager()
    for each in PASSES:
        getattr(passes, f"add_{each}_pass")()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return bytes(target.emit_object(module))


def _target() -> Any:
    host = cpu()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=host.name, features=host.features, opt=2, jit=True
    )


def _link(codes: Sequence[bytes], symbols: Mapping[str, int], target: Any) -> Library:
    for name, address in symbols.items():
        llvm.add_symbol(name, address)
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, target)
    for code in codes:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Library(engine, sum(map(len, codes)))
