"""Backpass as a library: read a JSON program, build its backward program, run training steps.

    import numpy as np
    import core

    leaf = {"name": "w", "dtype": "float64", "shape": [2], "role": "parameter"}
    ops = [
        {"type": "square", "inputs": {"x": ["w"]}, "outputs": {"out": ["squared"]}},
        {"type": "reduce_sum", "inputs": {"x": ["squared"]}, "outputs": {"out": ["loss"]}},
    ]
    program = core.read({"blocks": [{"idx": 0, "parent_idx": -1, "vars": [leaf], "ops": ops}]})
    step = core.compile_gradient(program, core.GradientQuery(loss="loss"))
    gradient = step.step({"w": np.array([3.0, -1.0])}).gradients["w"]

`gradient` is ``[6.0, -2.0]``. The names below are the public API; every other name may change.
docs/architecture.md shows the packages behind them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.compiler.compile import (
        Executable,
        GradientQuery,
        Optimizer,
        Options,
        append_backward,
        compile_forward,
        compile_gradient,
        compile_training,
        gradients,
    )
    from core.compiler.trainer import Trainer
    from core.ir import Program
    from core.ir.errors import (
        CoreError,
        ExecutionError,
        InvalidProgram,
        NotDifferentiable,
        ProgramError,
        TypeMismatch,
    )
    from core.wire import read, write

__all__ = [
    "CoreError",
    "Executable",
    "ExecutionError",
    "GradientQuery",
    "InvalidProgram",
    "NotDifferentiable",
    "Optimizer",
    "Options",
    "Program",
    "ProgramError",
    "Trainer",
    "TypeMismatch",
    "append_backward",
    "compile_forward",
    "compile_gradient",
    "compile_training",
    "gradients",
    "read",
    "write",
]

_PACKAGES = ("core.ir", "core.ir.errors", "core.wire", "core.compiler.trainer", "core.compiler.compile")


def __getattr__(name: str) -> Any:
    # Loaded at first use: the compiler's process and the API process import single packages, not the whole library.
    if name in __all__:
        for package in map(import_module, _PACKAGES):
            if hasattr(package, name):
                return getattr(package, name)
    raise AttributeError(f"module 'core' has no attribute {name!r}")
