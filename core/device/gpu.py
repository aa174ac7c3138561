"""The GPU as a target: of the planner, and of the generators of `core.codegen`, for which it is a CPU of one lane."""

from __future__ import annotations

from dataclasses import replace

from core.codegen.cpu_target import CPU_TARGET
from core.codegen.cpus import Cpu
from core.plan.target import ProductRules, RowLimits

__all__ = ["DEVICE_TARGET", "GPU"]

GPU = Cpu(
    "nvptx64-nvidia-cuda",
    "sm_80",
    "",
    vector_bytes=4,
    registers=32,
    converts_float16=True,
    dots_bfloat16=False,
    scales=False,
)
"""A thread of a GPU. registers: those of one tile."""

LACKS = frozenset((
    "eigenvalues", "eigenvectors", "exponential", "orthogonalize", "singular_values",
    "CountRows", "CutRows", "Flatten", "JoinRows", "KeepArray", "MakeRuns", "OpenSpan",
))  # fmt: skip
"""Kernels for vector registers, or that call LAPACK; instructions on arrays of runs and of sections."""

DEVICE_TARGET = replace(
    CPU_TARGET,
    updates_in_place=False,
    interprets=False,
    expects=False,
    lacks=LACKS,
    alignment=256,
    rows=RowLimits(
        longest_row=4096,  # a warp sweeps over a row
        longest_total=4096,
        split_rows=(1024, 32, 32),
        instructions=1000,
        sums=1000,  # no limit besides that of instructions
        live=32,  # they stay in registers
        unrelated=100,
    ),
    products=ProductRules(
        takes_epilogue=lambda product: False,
        stores_result=lambda product: True,
        transposes=lambda rows, columns, terms: False,  # a product reads any strides through shared memory
        transposes_invariant=False,
        turns=lambda rows, columns, terms: False,
        pairs=lambda dtype, rows, columns, terms: True,
        takes_left=lambda a: True,
        takes_right=lambda b: True,
        in_passes=True,
        panel=lambda product: 0,
        terms=256,
        rounds=True,  # tensor cores multiply 16-bit numbers as they are
    ),
    convolutions=replace(CPU_TARGET.convolutions, patches=True),
    pools=replace(CPU_TARGET.pools, gathers=True),
    winograd=None,
    stripes=replace(
        CPU_TARGET.stripes,
        nbytes=2**26,  # smaller ones stay in the cache of the GPU, and products of the library use all of it
        least=16,  # rows of the results of tensor cores
        stripe=2**16,  # shared memory holds the arrays of a stripe
        repeated=2**20,  # computing scores again is cheaper than storing them
        halves=False,
    ),
    scatters_halves=False,
)
