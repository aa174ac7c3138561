"""`backpass doctor` names the GPU, its driver and its libraries, and the remedy for each that is missing."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from service import gpu_tests
from service.doctor import gpu
from service.doctor.finding import Finding
from service.settings import Settings

CARD = gpu.Card("NVIDIA H200", (9, 0), 141 * gpu.GIB)
EVERY = {"cuda_nvrtc", "cublas", "nvjitlink"}


def found(
    monkeypatch: pytest.MonkeyPatch, driver: gpu.Driver | str, packages: set[str], device: str = "auto"
) -> list[Finding]:
    monkeypatch.setattr(gpu, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(gpu, "read_driver", lambda: driver)
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(gpu, "library", lambda package, files: files[0] if package in packages else "")
    return list(gpu.gpu(Settings(device=device)))  # type: ignore[arg-type]


def test_a_whole_installation_has_a_line_for_the_gpu_and_one_for_the_libraries(monkeypatch):
    device, libraries = found(monkeypatch, gpu.Driver(12040, (CARD,)), EVERY)

    assert device.state == libraries.state == "ok"
    assert device.found == "GPU 0 is NVIDIA H200, compute capability 9.0, 141 GiB, driver for CUDA 12.4"
    for name in ("NVRTC", "cuBLASLt", "nvJitLink"):
        assert name in libraries.found


@pytest.mark.parametrize(
    ("missing", "name", "state"),
    [("cuda_nvrtc", "NVRTC", "wrong"), ("cublas", "cuBLASLt", "wrong"), ("nvjitlink", "nvJitLink", "warning")],
)
def test_a_missing_library_has_a_line_with_its_effect_and_remedy(monkeypatch, missing, name, state):
    lines = found(monkeypatch, gpu.Driver(12040, (CARD,)), EVERY - {missing})

    (line,) = [each for each in lines if each.found.startswith(f"{name} is not found")]
    assert (line.state, line.do) == (state, gpu.INSTALL)


def test_an_old_driver_and_an_old_gpu_are_wrong(monkeypatch):
    old = gpu.Card("Tesla T4", (7, 5), 15 * gpu.GIB)

    lines = found(monkeypatch, gpu.Driver(11080, (old, CARD)), EVERY)

    assert [each.state for each in lines] == ["wrong", "wrong", "ok", "ok"]
    assert "CUDA 11.8" in lines[0].found
    assert "GPU 0 is Tesla T4, compute capability 7.5" in lines[1].found


def test_a_driver_that_does_not_start_is_wrong(monkeypatch):
    (line,) = found(monkeypatch, "the driver does not start: cuInit gave 999", EVERY)

    assert line.state == "wrong" and "cuInit gave 999" in line.found and line.do


def test_a_library_is_found_in_its_package_and_in_the_system(monkeypatch, tmp_path: Path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnvrtc.so.12").touch()

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: Spec() if name == "nvidia.cuda_nvrtc" else None)
    monkeypatch.setattr(gpu.ctypes, "CDLL", opens("libcublas.so.13"))

    assert gpu.library("cuda_nvrtc", ("libnvrtc.so.12", "libnvrtc.so.13")).endswith("lib/libnvrtc.so.12")
    assert gpu.library("cublas", ("libcublas.so.12", "libcublas.so.13")) == "libcublas.so.13"
    assert gpu.library("nvjitlink", ("libnvJitLink.so.12",)) == ""


def opens(only: str) -> Any:
    def load(name: str) -> object:
        if name != only:
            raise OSError(name)
        return object()

    return load


class FakeCuda:
    """The functions of libcuda that `read_driver` calls, for one H200."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDriverGetVersion(self, version: Any) -> int:
        ctypes.cast(version, ctypes.POINTER(ctypes.c_int))[0] = 12080
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = 1
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:
        ctypes.cast(memory, ctypes.POINTER(ctypes.c_size_t))[0] = 141 * gpu.GIB
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = {75: 9, 76: 0}[attribute]
        return 0


def test_the_driver_is_read_through_its_library(monkeypatch):
    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda name: FakeCuda())
    assert gpu.read_driver() == gpu.Driver(12080, (CARD,))

    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda name: FakeCuda(status=100))
    assert gpu.read_driver() == "the driver does not start: cuInit gave 100"


def test_a_failed_test_at_the_start_of_a_worker_is_named_with_its_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for _ in range(2):
        gpu_tests.begin(tmp_path, "machine code")
    gpu_tests.failed(tmp_path, "machine code", "the test of machine code did not end within 60 s")
    monkeypatch.setattr(gpu, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(gpu, "read_driver", lambda: gpu.Driver(12040, (CARD,)))
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(gpu, "library", lambda package, files: files[0])

    *_, last = gpu.gpu(Settings(cache_dir=tmp_path))

    assert last.state == "wrong"
    assert last.found.startswith(
        "machine code is not used on GPU 0: the test of machine code did not end within 60 s ("
    )
    assert str(tmp_path) in last.do
