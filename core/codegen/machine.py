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


PASSES = ("sroa", "new_gvn", "instruction_combine", "loop_rotate", "simplify_cfg")
"""What is left to do for the text of our generators, whose vectors, fusions and unrolling are explicit. LLVM's whole
list at -O2 takes five to ten times as long, and the workloads of the bench run no faster for it."""


def load(ir: str, symbols: Mapping[str, int] | None = None) -> Library:
    """Compile a module's text. symbols: addresses of the functions that it only declares.

    Raises RuntimeError with LLVM's words if the text is no valid module.
    """
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
    return _link(target.emit_object(module), symbols or {}, target)


def _target() -> Any:
    host = cpu()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=host.name, features=host.features, opt=2, jit=True
    )


def _link(code: bytes, symbols: Mapping[str, int], target: Any) -> Library:
    for name, address in symbols.items():
        llvm.add_symbol(name, address)
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Library(engine, code)
