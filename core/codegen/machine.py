"""LLVM IR to machine code for the CPU at hand."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

__all__ = ["Library", "cpu", "lanes", "load"]


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
    """Compiled functions; they live as long as this object."""

    engine: Any
    object_code: bytes

    def address(self, name: str) -> int:
        return int(self.engine.get_function_address(name))

    def function(self, name: str, *argument_types: Any, returns: Any = None) -> Any:
        return ctypes.CFUNCTYPE(returns, *argument_types)(self.address(name))


def load(ir: str, symbols: Mapping[str, int] | None = None, optimize: int = 2) -> Library:
    """Compile a module's text. symbols: addresses of the functions that it only declares.

    Raises RuntimeError with LLVM's words if the text is no valid module.
    """
    host = cpu()
    module = llvm.parse_assembly(ir)
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=host.name, features=host.features, opt=optimize, jit=True
    )
    module.data_layout = str(target.target_data)
    options = llvm.PipelineTuningOptions(speed_level=optimize)
    options.loop_vectorization = options.slp_vectorization = False  # the vectors are explicit
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    code = target.emit_object(module)
    return _link(code, symbols or {}, target)


def _link(code: bytes, symbols: Mapping[str, int], target: Any) -> Library:
    for name, address in symbols.items():
        llvm.add_symbol(name, address)
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Library(engine, code)
