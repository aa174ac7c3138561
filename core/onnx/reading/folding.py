"""Compute an op on known arrays at import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.ir import Type
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError
from core.ir.registry import OpSpec, as_tuple
from core.runtime.reference import execute

__all__ = ["computed"]


def computed(
    spec: OpSpec, types: Sequence[Type | None], values: Sequence[np.ndarray | None], attrs: Mapping[str, Any]
) -> tuple[np.ndarray, ...] | None:
    """The results of the op on `values`; None if the op fails on them. An empty optional slot is None."""
    try:
        with np.errstate(all="ignore"):
            if spec.kind == "primitive":
                results = as_tuple(spec.body(np, *values, **attrs))
            else:
                b = BlockBuilder()
                operands = [None if t is None else b.param(t) for t in types]
                results = execute(
                    b.build(as_tuple(b.emit(spec.name, *operands, **attrs))), [v for v in values if v is not None]
                )
    except (CoreError, ArithmeticError, LookupError, TypeError, ValueError, MemoryError):
        return None
    return tuple(np.asarray(each) for each in results)
