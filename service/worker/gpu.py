"""Machine code for the GPU of a worker, after a test: a small step whose results are known must give them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from core.codegen.cache import DiskCache
from core.compiler.backends import use_backend
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.device.backend import DeviceBackend
from core.device.bind import bind_device_step
from core.device.cupy_driver import CupyDriver
from core.device.driver import DeviceFault
from core.runtime.run import Run
from core.wire import read
from service import gpu_tests
from service.worker.gpu_deadline import TEST_S, gpu_test

__all__ = ["check_gpu", "open_gpu", "use_gpu"]

log = logging.getLogger("backpass.worker")

PART = "machine code"

ROWS, TERMS, COLUMNS = 70, 9, 3
RATE = 2.0**-9
RUNS = 3
"""The first run launches kernels, the second one captures a graph, the third one launches the graph."""

STEP = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [
                {"name": "x", "dtype": "float32", "shape": [ROWS, TERMS], "role": "feed"},
                {"name": "t", "dtype": "float32", "shape": [ROWS, COLUMNS], "role": "feed"},
                {"name": "w", "dtype": "float32", "shape": [TERMS, COLUMNS], "role": "parameter"},
            ],
            "ops": [
                {"type": "matmul", "inputs": {"x": ["x"], "y": ["w"]}, "outputs": {"out": ["y"]}, "attrs": {}},
                {"type": "sub", "inputs": {"x": ["y"], "y": ["t"]}, "outputs": {"out": ["r"]}, "attrs": {}},
                {"type": "square", "inputs": {"x": ["r"]}, "outputs": {"out": ["s"]}, "attrs": {}},
                {"type": "reduce_sum", "inputs": {"x": ["s"]}, "outputs": {"out": ["loss"]}, "attrs": {}},
            ],
        }
    ]
}
"""A step of linear regression. All its numbers are small whole ones, which are exact in any order and on tensor cores.
"""


def use_gpu(directory: Path, limit: int, tf32: bool = False, seconds: float = TEST_S) -> DeviceBackend | None:
    """Compile steps for the GPU from now on; None if it fails the test, and ops then run one by one.

    directory, limit: of the cache of machine code; see `DiskCache`. The directory has the record of the test, too.
    tf32: see `Settings.tf32`.
    seconds: ends the process after as many, if the test has not ended.
    Raises RuntimeError if the GPU is useless for this process after the test. After the second time in an hour the next
    process does not test it.
    """
    before = gpu_tests.last(directory, PART)
    if before is not None and before.has_failed:
        log.warning("this worker runs ops one by one, because %s", before.why)
        return None
    try:
        with gpu_test(directory, PART, seconds):
            backend = open_gpu(DiskCache(directory, limit), tf32)
            check_gpu(backend)
    except DeviceFault as error:
        message = f"machine code breaks this GPU, which BACKPASS_COMPILE=never avoids: {error}"
        raise RuntimeError(message) from error
    except Exception as error:
        log.warning("this worker runs ops one by one, because machine code for its GPU does not work: %s", error)
        return None
    use_backend(backend)
    return backend


def open_gpu(disk: DiskCache, tf32: bool) -> DeviceBackend:
    """The first GPU that this process sees. Raises ImportError, or any error of cupy."""
    return DeviceBackend(CupyDriver(), disk=disk, tf32=tf32)


def check_gpu(backend: DeviceBackend) -> None:
    """Run the step `STEP`. Raises RuntimeError for wrong results; ExecutionError, DeviceFull, DeviceFault."""
    x, t, w = (_whole_numbers(shape) for shape in ((ROWS, TERMS), (ROWS, COLUMNS), (TERMS, COLUMNS)))
    rest = x @ w - t
    wanted = {"loss": np.square(rest).sum(), "w": w - RATE * 2 * (x.T @ rest)}
    optimizer = Optimizer("sgd", {"learning_rate": RATE})
    executable = compile_training(read(STEP), GradientQuery(loss="loss"), optimizer).on(backend).compiled()
    xp = backend.driver.xp
    bound = bind_device_step(executable, {"w": xp.asarray(w.astype("float32"))})
    if bound is None:
        raise RuntimeError("a small step is not one piece of machine code there, or finds no memory")
    for number in range(RUNS):
        if not bound.takes({"x": x.astype("float32"), "t": t.astype("float32")}):
            raise RuntimeError("a small step does not take its feeds")
        out = bound.step(Run(xp), seed=0, step=0)
        found = bound.send({"loss": out.loss, "w": out.parameters["w"]}).arrays()
        for name, value in wanted.items():
            if not np.array_equal(found[name], value):
                raise RuntimeError(f"run {number + 1} of a small step gives wrong numbers for {name!r}")


def _whole_numbers(shape: tuple[int, int]) -> np.ndarray:
    """Whole numbers from -3 to 3, as int64."""
    count = shape[0] * shape[1]
    return (np.arange(count) * 5 + np.arange(count) // 7).reshape(shape) % 7 - 3
