"""The GPUs: devices, driver, and the libraries that workers load."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from service.doctor.finding import Finding, ok, warning, wrong
from service.engine.devices import visible_gpus
from service.gpu_tests import unfinished
from service.settings import Settings

__all__ = ["Card", "Driver", "gpu", "library", "read_driver"]

OLDEST_DRIVER = 12000
"""The version of CUDA that cupy-cuda12x needs, as 1000 * major + 10 * minor."""

OLDEST_CARD = (8, 0)
INSTALL = "Install backpass[gpu]."
GIB = 1 << 30
MAJOR, MINOR = 75, 76
"""Numbers of the attributes of a device for its compute capability (cuda.h)."""

LIBRARIES = (
    ("NVRTC", "cuda_nvrtc", ("libnvrtc.so.12", "libnvrtc.so.13"), True, "cupy cannot compile its kernels"),
    ("cuBLAS", "cublas", ("libcublas.so.12", "libcublas.so.13"), True, "cupy cannot multiply matrices"),
    ("cuBLASLt", "cublas", ("libcublasLt.so.12", "libcublasLt.so.13"), True, "large products cannot run"),
    ("nvJitLink", "nvjitlink", ("libnvJitLink.so.12", "libnvJitLink.so.13"), False, "the driver compiles each step"),
)
"""Name, package below `nvidia`, files, whether steps fail without it, and the effect of its absence."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU. capability: its compute capability. memory: in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver. version: of CUDA that it supports, as 1000 * major + 10 * minor."""

    version: int
    cards: tuple[Card, ...]


def gpu(settings: Settings) -> Iterator[Finding]:
    """Devices, the driver, cupy and the libraries; their absence is wrong only if BACKPASS_DEVICE asks for CUDA."""
    if settings.device == "cpu":
        yield ok("gpu", "not used: BACKPASS_DEVICE is cpu")
        return
    asked, gpus = settings.device == "cuda", visible_gpus()
    state, cupy = wrong if asked else warning, importlib.util.find_spec("cupy") is not None
    if not gpus and asked:
        do = "Install the driver; a container needs the device passed in."
        yield wrong("gpu", "BACKPASS_DEVICE is cuda, but no GPU is visible", do)
    elif not gpus:
        yield ok("gpu", "none; the service computes on the processor")
    elif not cupy:
        text = "BACKPASS_DEVICE is cuda, but cupy" if asked else f"{len(gpus)} GPUs are not used: cupy"
        yield state("gpu", f"{text} is not installed", INSTALL)
    else:
        driver = read_driver()
        if isinstance(driver, str):
            yield wrong("gpu", f"{len(gpus)} GPUs are visible, but {driver}", "Repair or update the NVIDIA driver.")
            return
        yield from _of_driver(driver)
        yield from _of_libraries()
        yield from _of_tests(Path(settings.cache_dir or Path(settings.data_dir) / "code"))


def _of_driver(driver: Driver) -> Iterator[Finding]:
    version = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
    if driver.version < OLDEST_DRIVER:
        yield wrong("gpu", f"the driver supports CUDA {version}, cupy needs 12.0", "Update the NVIDIA driver.")
    for number, card in enumerate(driver.cards):
        major, minor = card.capability
        text = f"GPU {number} is {card.name}, compute capability {major}.{minor}, {card.memory // GIB} GiB"
        if card.capability < OLDEST_CARD:
            do = "Use a newer GPU, or set BACKPASS_DEVICE to cpu."
            yield wrong("gpu", f"{text}: steps need compute capability 8.0", do)
        else:
            yield ok("gpu", f"{text}, driver for CUDA {version}")


def _of_tests(directory: Path) -> Iterator[Finding]:
    """A finding for each test at the start of a worker that failed or did not end. directory: of machine code."""
    for path, each in unfinished(directory):
        at = datetime.fromtimestamp(each.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
        do = f"Update the driver, or restart the machine. Remove {path} to test again at the next start of the worker."
        yield wrong("gpu", f"{each.part} is not used on GPU {each.gpu}: {each.why} ({at})", do)


def _of_libraries() -> Iterator[Finding]:
    """One finding for the libraries that are there, and one for each that is missing."""
    found = {name: library(package, files) for name, package, files, _, _ in LIBRARIES}
    there = [f"{name} ({path})" for name, path in found.items() if path]
    if there:
        yield ok("gpu", f"found {', '.join(there)}")
    for name, _, _, needed, effect in LIBRARIES:
        if not found[name]:
            yield (wrong if needed else warning)("gpu", f"{name} is not found: {effect}", INSTALL)


def library(package: str, files: tuple[str, ...]) -> str:
    """The path or the name of a library of CUDA, from NVIDIA's package or from the system; empty if there is none."""
    try:
        spec = importlib.util.find_spec(f"nvidia.{package}")
    except ModuleNotFoundError:
        spec = None
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for file in files:
            if (path := Path(folder) / "lib" / file).exists():
                return str(path)
    for file in files:
        try:
            ctypes.CDLL(file)
        except OSError:
            continue
        return file
    return ""


def read_driver() -> Driver | str:
    """The driver and its cards, or the reason why they cannot be read."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"the driver cannot be loaded: {error}"
    if status := cuda.cuInit(0):
        return f"the driver does not start: cuInit gave {status}"
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return Driver(version.value, tuple(_card(cuda, i) for i in range(count.value)))


def _card(cuda: ctypes.CDLL, number: int) -> Card:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    values = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        values.append(value.value)
    return Card(name.value.decode(), (values[0], values[1]), memory.value)
