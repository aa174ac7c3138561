"""A masked store writes the lanes of its mask and no other bytes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen.llvm import Function
from core.codegen.machine import load
from core.codegen.module import Module
from core.codegen.vector_slices import mask
from core.ops.common.types import as_dtype

LANES = 8
OTHER = 77

NARROWING = [
    ("int32", "uint8"),
    ("int64", "int32"),
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("int64", "int64"),
]


@pytest.mark.parametrize(("source", "target"), NARROWING)
def test_a_masked_store_writes_no_other_lane(source, target):
    """LLVM 20 writes too many bytes if a truncation is stored with a mask of one lane."""
    f = Function("prefixes", [("x", "ptr"), *((f"out{n}", "ptr") for n in range(1, LANES))])
    value = f.convert(f.load(f.param("x"), source, LANES), target)
    for n in range(1, LANES):
        f.store(value, f.param(f"out{n}"), mask(n, LANES))
    module = Module()
    module.functions.append(f)
    library = load(module.text())
    x = np.arange(1, LANES + 1).astype(source)
    outs = [np.full(LANES, OTHER).astype(as_dtype(target)) for _ in range(1, LANES)]

    library.function("prefixes", *[ctypes.c_void_p] * LANES)(x.ctypes.data, *(out.ctypes.data for out in outs))

    for n, out in enumerate(outs, start=1):
        assert out.tolist() == [*range(1, n + 1), *[OTHER] * (LANES - n)]
