"""Workloads by class of work, written with the builder of `backpass_client`, each with its losses in other frameworks.

A class is four modules: its programs (`convolution`), and its losses in PyTorch (`convolution_torch`), JAX
(`convolution_jax`) and TensorFlow (`convolution_tf`). bench/peers imports the last three, so that no process imports a
framework that it does not measure.

recurrence     loops over an open number of steps, and large weights in them
fusion         attention, large vocabularies, graphs, tables of words, many small updates, small batches
convolution    residual, depthwise, transposed and dilated convolutions, with batch norm
lattices       CTC and conditional random fields
tables         sparse updates of large tables
spectra        nets and losses on frequencies
systems        factorisations and linear systems
second_order   gradients of gradients, and small nets
"""

from __future__ import annotations

from collections.abc import Callable

from bench.classes import convolution, fusion, lattices, recurrence, second_order, spectra, systems, tables
from bench.workload import Workload

__all__ = ["CLASSES"]

CLASSES: dict[str, Callable[[], Workload]] = {
    **recurrence.WORKLOADS,
    **fusion.WORKLOADS,
    **convolution.WORKLOADS,
    **lattices.WORKLOADS,
    **tables.WORKLOADS,
    **spectra.WORKLOADS,
    **systems.WORKLOADS,
    **second_order.WORKLOADS,
}
"""Name -> a function that makes the workload."""
