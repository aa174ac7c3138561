"""Workloads by class of work, written with the builder of `backpass_client`, each with its losses in other frameworks.

A class is three modules: its programs (`convolution`), its losses in PyTorch (`convolution_torch`) and in JAX
(`convolution_jax`). bench/peers imports the last two, so that no process imports a framework that it does not measure.
There are none in TensorFlow, and tables show a dash: on the older workloads it is the fastest peer in one measurement
of five (docs/performance.md).

recurrence     loops over an open number of steps
fusion         attention, large vocabularies, graphs, tables of words, many small updates
convolution    residual, depthwise, transposed and dilated convolutions, with batch norm
lattices       CTC and conditional random fields
tables         sparse updates of large tables
systems        factorisations and linear systems
second_order   gradients of gradients, and small nets
"""

from __future__ import annotations

from collections.abc import Callable

from bench.classes import convolution, fusion, lattices, recurrence, second_order, systems, tables
from bench.workload import Workload

__all__ = ["CLASSES"]

CLASSES: dict[str, Callable[[], Workload]] = {
    **recurrence.WORKLOADS,
    **fusion.WORKLOADS,
    **convolution.WORKLOADS,
    **lattices.WORKLOADS,
    **tables.WORKLOADS,
    **systems.WORKLOADS,
    **second_order.WORKLOADS,
}
"""Name -> a function that makes the workload."""
