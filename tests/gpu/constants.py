"""The costs that the choice of launches depends on: a launch, a node of a graph, a barrier of a block and of all."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from core.device.beside import Beside
from core.device.launches import DeviceCode, Launch
from core.device.ptx import ptx_of
from core.device.rules import cluster_of
from tests.gpu.rig import Rig, Say

__all__ = ["constants", "meeting"]

TEXT = """
declare void @dev_barrier(i32)
declare void @dev_block_barrier(i32)

define void @meet(ptr %given, ptr %arena, ptr %control, ptr %stacks) #0 {
entry:
  %count = load i64, ptr %given
  br label %head
head:
  %done = phi i64 [ 0, %entry ], [ %next, %trip ]
  %more = icmp slt i64 %done, %count
  br i1 %more, label %trip, label %end
trip:
  call void @BARRIER(i32 1)
  %next = add i64 %done, 1
  br label %head
end:
  ret void
}
attributes #0 = { nounwind }
"""


def meeting(barrier: str, blocks: int, block: int, cooperative: bool, cluster: int = 1) -> DeviceCode:
    """A launch whose threads call the function `barrier` as often as a word of memory says."""
    launch = Launch("meet", blocks, block, cooperative=cooperative, cluster=cluster)
    return DeviceCode(TEXT.replace("BARRIER", barrier), (launch,), 0)


class _Kernel:
    """A kernel that meets as often as its word says. blocks: of the launch; cluster: whether they are one."""

    def __init__(self, rig: Rig, barrier: str, blocks: int, cooperative: bool, cluster: int) -> None:
        driver = rig.driver
        code = meeting(barrier, blocks, rig.block, cooperative, cluster)
        (self.launch,) = code.launches
        architecture = driver.properties.architecture
        made = rig.make(code, architecture) if rig.make else ptx_of(code, architecture).encode() + b"\0"
        (self.function,) = driver.load(made, (self.launch,))
        self.stream, self.word, self.sent = driver.stream(), driver.allocate(8), driver.pinned(8)

    def run(self, barriers: int, times: int = 1) -> float:
        """Seconds of `times` launches one after the other."""
        self.set(barriers)
        self.stream.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            self.give()
        self.stream.synchronize()
        return time.perf_counter() - started

    def set(self, barriers: int) -> None:
        ctypes.c_int64.from_address(self.sent.address).value = barriers
        self.stream.copy(self.word.address, self.sent.address, 8)

    def give(self) -> None:
        self.stream.launch(self.function, self.launch, (self.word.address,) * 4)


def constants(rig: Rig) -> Say:
    """Each cost is the difference between twice the work and once the work, so that fixed costs are not in it."""
    n, processors = rig.launches, rig.blocks or rig.driver.properties.processors
    cluster = cluster_of(rig.driver.properties.architecture)
    kinds = [
        ("one block", 1, False, 1),
        *([("a cluster", cluster, False, cluster)] if cluster > 1 else []),
        ("all blocks", processors, False, 1),
        ("all blocks, cooperative", processors, True, 1),
    ]
    for name, blocks, cooperative, together in kinds:
        kernel = _Kernel(rig, "dev_barrier" if blocks > 1 else "dev_block_barrier", blocks, cooperative, together)
        yield _line(f"launch, {name}", lambda times, k=kernel: k.run(0, times), n)
        yield _line(f"barrier, {name}", lambda times, k=kernel: k.run(times), n)
        kernel.set(0)
        graphs = {times: _graph(kernel, times) for times in (n, 2 * n)}
        yield _line(f"graph node, {name}", lambda times, k=kernel, g=graphs: _launched(k, g[times]), n)
        if blocks == 1:
            other = rig.driver.stream()
            graphs = {times: _graph(kernel, times, other) for times in (n, 2 * n)}
            yield _line("two nodes beside each other", lambda times, k=kernel, g=graphs: _launched(k, g[times]), n)


def _graph(kernel: _Kernel, nodes: int, other: Any = None) -> Any:
    """A graph of nodes that follow each other. other: a stream for a second node beside each of them."""
    kernel.stream.begin_capture()
    try:
        for i in range(nodes):
            beside = Beside(kernel.stream, other)
            if other is not None:
                beside.launch(i, kernel.function, kernel.launch, (kernel.word.address,) * 4)
            kernel.give()
            beside.join(i + 1)
    finally:
        graph = kernel.stream.end_capture()
    return graph


def _launched(kernel: _Kernel, graph: Any) -> float:
    started = time.perf_counter()
    graph.launch(kernel.stream)
    kernel.stream.synchronize()
    return time.perf_counter() - started


def _line(name: str, measure: Callable[[int], float], n: int) -> dict[str, Any]:
    measure(n)
    once, twice = (min(measure(times) for _ in range(5)) for times in (n, 2 * n))
    return {"constant": name, "ok": True, "us": (twice - once) / n * 1e6}
