"""Agreement of the machine code of single ops with the reference executor."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.registry import as_tuple
from core.plan import plan_block
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.laws.agreement import same


def with_ops(params: dict[str, TensorType], *ops) -> Block:
    """A block whose results are those of all ops. ops: (type, names of operands, attributes)."""
    b = BlockBuilder()
    given = {name: b.param(type, name) for name, type in params.items()}
    results = []
    for type, names, attrs in ops:
        results += as_tuple(b.emit(type, *(given.get(n) for n in names), **attrs))
    return b.build(results)


def agree(block: Block, *batches: list[np.ndarray]) -> None:
    """`block` is machine code alone, and gives what the reference executor gives, on each batch of arguments."""
    block = optimize(block)
    assert not plan_block(block, CPU_TARGET).interpreted
    native = native_interpreter(block, CPU)
    for given in batches:
        try:
            wanted = interpreter_of(block)(Run(), *given)
        except ExecutionError as error:
            with pytest.raises(ExecutionError) as caught:
                native(Run(), *given)
            assert caught.value.code == error.code
        else:
            for f, w in zip(native(Run(), *given), wanted, strict=True):
                same(f, w)
