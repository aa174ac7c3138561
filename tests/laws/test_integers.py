"""Machine code agrees with the reference executor on every op whose floats are integers or bools.

A case is an example of an op with all floats, or all integers, in another dtype. Inference refuses most of them; what
it takes must run on a CPU and on an emulated GPU as the reference executor runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import Block, StackType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.device.emulator import EmulatedBackend, compiler
from tests.laws.agreement import same
from tests.laws.examples import OPS, block_for, examples_of
from tests.laws.test_wrong_sizes import TAKEN

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64")
NAMES = sorted({name for name, _ in TAKEN})
QUICK = ("index_sample", "kthvalue", "max_unpool", "mode", "sum_to", "sum_to_like", "unpool_like")
"""Ops that add or pick; the others are slow."""


def in_dtypes(example: Example) -> Iterator[Example]:
    """The example with its floats, or its integers, in other dtypes."""
    seen = {tuple(np.asarray(x).dtype for x in example.inputs)}
    for dtype in DTYPES:
        attrs = {k: dtype if v == "float64" else v for k, v in example.attrs.items()}
        for kinds in ("f", "iu"):
            given = tuple(
                _cast(np.asarray(x), dtype) if np.asarray(x).dtype.kind in kinds else x for x in example.inputs
            )
            types = tuple(np.asarray(x).dtype for x in given)
            if types not in seen:
                seen.add(types)
                yield Example(given, (), attrs if kinds == "f" else example.attrs)


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """Small integers, many of them different."""
    with np.errstate(invalid="ignore"):
        return (np.round(x * 3) if x.dtype.kind == "f" else x).astype(dtype)


def accepted(name: str, example: Example) -> Block | None:
    """The block of the op; None if inference refuses it, or if a result is a list of arrays."""
    try:
        block = optimize(block_for(OPS[name], example))
    except ProgramError:
        return None
    return None if any(isinstance(block.types[n], StackType) for n in block.results) else block


def outcome(run: Any, args: Any) -> Any:
    """The results of a run, or the code of its error."""
    with np.errstate(all="ignore"):
        try:
            return run(Run(), *args)
        except ExecutionError as error:
            return error.code


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in NAMES])
def test_machine_code_agrees_on_integers_and_bools(name):
    backends: list[Any] = [CPU, *([EmulatedBackend(watches=False)] if compiler() else [])]
    for i in (i for each, i in TAKEN if each == name and i < 3):
        for example in in_dtypes(examples_of(OPS[name])[i]):
            block = accepted(name, example)
            if block is None:
                continue
            wanted = outcome(interpreter_of(block), example.inputs)
            for backend in backends:
                found = outcome(native_interpreter(block, backend), example.inputs)
                if isinstance(wanted, str):
                    assert found == wanted
                    continue
                for one, want in zip(found, wanted, strict=True):
                    same(one, want)
