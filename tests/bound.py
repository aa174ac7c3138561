"""A block as a function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.ir import Block
from core.passes.expand import expand_composites
from core.runtime.reference import interpreter_of
from core.runtime.run import Run

__all__ = ["bound"]


def bound(block: Block) -> Callable[..., tuple[Any, ...]]:
    """`block` as a function of its parameters. Unlike `execute`, it chooses the kernels once for all its calls."""
    interpreter = interpreter_of(expand_composites(block))

    def call(*args: Any) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            return interpreter(Run(), *args)

    return call
