"""Predicts the training steps of the bench on a GPU, from their plans: no GPU is needed, and nothing is measured.

    python -m bench.roofline [--workloads mlp_small,transformer] [--json FILE] [--to docs/performance.md]

Each instruction of a plan takes the longer of two times: its operations at the peak rate of the device, and its bytes
at the bandwidth of its memory. To these come the barriers between instructions that depend on each other, or the
launches. So the prediction is a lower bound for the work, and an assumption for the rest: what a device achieves is
found by `make test-gpu`. With --to, the section "Prediction for a GPU" of the page is replaced.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.workload import OPTIMIZERS, Workload
from bench.workloads import WORKLOADS
from core.compiler.compile import GradientQuery, Optimizer, compile_training
from core.device.gpu import DEVICE_TARGET
from core.plan.arena import ArenaMap, arrange
from core.plan.flow import Branch, Loop
from core.plan.instructions import Instruction, Instructions
from core.plan.memory import Root
from core.plan.partition import plan_parts
from core.plan.plan import Plan
from core.plan.work import Work, work_of
from core.wire import read

__all__ = ["H200", "Device", "Tally", "main", "predicted", "section", "tally_of", "with_section"]

TITLE = "## Prediction for a GPU"


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: published rates, and costs that are assumed until they are measured.

    flops:         dtype -> operations per second, of dense arithmetic. tf32: of products in that format.
    bandwidth:     bytes per second of its memory.
    processors:    multiprocessors; a block runs on one.
    node:          seconds between two kernels of a graph.
    grid_barrier:  seconds of a barrier of all blocks, block_barrier of one block.
    op:            seconds of the host for an op that runs through cupy.
    """

    name: str
    flops: Mapping[str, float]
    tf32: float
    bandwidth: float
    processors: int
    node: float
    grid_barrier: float
    block_barrier: float
    op: float

    def seconds(self, work: Work, tf32: bool = False) -> float:
        """The least time of one call on the whole device."""
        rate = self.flops.get(work.dtype, self.flops["float32"])
        if tf32 and work.kernel.startswith("product") and work.dtype == "float32":
            rate = self.tf32
        return max(work.flops / rate, work.nbytes / self.bandwidth)


H200 = Device(
    "H200 SXM",
    flops={"float64": 34e12, "float32": 67e12, "float16": 134e12, "bfloat16": 134e12},
    tf32=494e12,
    bandwidth=4.8e12,
    processors=132,
    node=1.3e-6,
    grid_barrier=1.25e-6,
    block_barrier=0.05e-6,
    op=15e-6,
)
"""Rates: NVIDIA H200 Tensor Core GPU datasheet (float64 and float32 without tensor cores; TF32 without sparsity, half
of the number there). 16-bit floats: twice float32, as in the NVIDIA H100 architecture white paper. Launches and
barriers: `make test-gpu` on an H100. The time of an op through cupy is assumed.
"""


@dataclass(slots=True)
class Tally:
    """What a step executes: each kind of work and how often, and barriers between dependent instructions."""

    work: list[tuple[Work, int]] = field(default_factory=list)
    barriers: int = 0
    ops: int = 0

    def add(self, other: Tally) -> None:
        self.work += other.work
        self.barriers += other.barriers
        self.ops += other.ops

    @property
    def instructions(self) -> int:
        return sum(times for _, times in self.work)

    def sum(self, of: Callable[[Work], float]) -> float:
        return sum(of(work) * times for work, times in self.work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--workloads", type=listed, default=list(WORKLOADS), help="some of " + ", ".join(WORKLOADS))
    parser.add_argument("--json", type=Path, help="a file for the predictions")
    parser.add_argument("--to", type=Path, help="a page whose section about the GPU is replaced")
    given = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "device": H200.name, "workloads": {}}
    print(f"{H200.name}, predicted; us per step")
    for name in given.workloads:
        report["workloads"][name] = row = predicted(tally_of(WORKLOADS[name]()), H200)
        print(f"{name:18}{row['step'] * 1e6:12.1f}  {row['as']}", flush=True)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    if given.to:
        given.to.write_text(with_section(given.to.read_text(), section(report)))


def tally_of(workload: Workload) -> Tally:
    """What a training step of a workload executes on a device, as it is planned for one."""
    executable = compile_training(
        read(workload.program),
        GradientQuery(loss="loss"),
        Optimizer(workload.optimizer, dict(OPTIMIZERS[workload.optimizer])),
        gives_gradients=False,
        shapes={name: value.shape for name, value in workload.feeds.items()},
    )
    block, total = executable.interpreter.block, Tally()
    trips = int(workload.feeds["n"]) if "n" in workload.feeds else 1
    for part in plan_parts(block, DEVICE_TARGET).parts:
        if isinstance(part, Plan):
            total.add(_Walk(part, arrange(part), trips).tally(part.body, 1))
        else:
            total.add(Tally(ops=1))
    return total


@dataclass(frozen=True, slots=True)
class _Walk:
    """trips: of a loop whose length only the run tells."""

    plan: Plan
    arena: ArenaMap
    trips: int

    def tally(self, body: Instructions, times: int) -> Tally:
        """The work of a list of instructions that runs so many times."""
        total, read_, written = Tally(), set[Place](), set[Place]()
        for each in body.instructions:
            reads, writes = set(self._places(each.reads())), set(self._places(each.writes()))
            if _meet(writes, read_ | written) or _meet(reads, written):
                total.barriers += times
                read_, written = set(), set()
            read_ |= reads
            written |= writes
            total.add(self._instruction(each, times))
        return total

    def _instruction(self, each: Instruction, times: int) -> Tally:
        if isinstance(each, Branch):
            sides = [self.tally(side, times) for side in (each.yes, each.no)]
            return max(sides, key=lambda side: predicted(side, H200)["step"])
        if not isinstance(each, Loop):
            return Tally([(work_of(each), times)])
        trips = each.length or self.trips
        total = self.tally(each.body, times * trips)
        total.barriers += times * (trips + 1)  # behind each trip, and before the first
        for product in each.joint:
            many, rest = divmod(trips, product.trips)
            total.add(Tally([(work_of(product.many), times * many), (work_of(product.one), times * rest)]))
            total.barriers += times * many
        return total

    def _places(self, roots: Iterator[Root]) -> Iterator[Place]:
        for root in roots:
            if root.place == "constant" or root is self.plan.error.root:
                continue
            start = self.arena.offsets.get(root)
            yield (id(root), 0, 1) if start is None else (0, start, start + root.nbytes)


Place = tuple[int, int, int]
"""Memory: 0 for the arena, else the array; its first byte and its end."""


def _meet(some: set[Place], others: set[Place]) -> bool:
    return any(one == other and a < d and c < b for one, a, b in some for other, c, d in others)


def predicted(tally: Tally, device: Device) -> dict[str, Any]:
    """The step in seconds: all instructions in one kernel of one block or of all blocks, or each as a launch of its
    own, whichever is fastest.
    """

    def step(tf32: bool) -> tuple[float, str]:
        work = tally.sum(lambda each: device.seconds(each, tf32))
        rest = tally.ops * device.op
        return min(
            (work + tally.barriers * device.grid_barrier + device.node + rest, "one kernel"),
            (work * device.processors + tally.barriers * device.block_barrier + device.node + rest, "one block"),
            (work + tally.instructions * device.node + rest, "a launch each"),
        )

    seconds, form = step(False)
    return {
        "instructions": tally.instructions,
        "barriers": tally.barriers,
        "ops": tally.ops,
        "flops": tally.sum(lambda each: each.flops),
        "bytes": tally.sum(lambda each: each.nbytes),
        "work": tally.sum(device.seconds),
        "step": seconds,
        "as": form,
        "tf32": step(True)[0],
    }


HEAD = """\
{title}

These numbers are predictions; the section "Steps on a GPU" has measurements. Written by `python -m bench.roofline` from
the plans that Backpass makes for a device, for one {name}: {fp32:.0f} TFLOP/s in float32 and {tf32:.0f} TFLOP/s in TF32
(dense), {bandwidth} TB/s, {processors} multiprocessors (NVIDIA H200 Tensor Core GPU datasheet). Measured on an H100:
{node} us from one kernel of a graph to the next, {grid} us for a barrier of all blocks, {block} us for one of a block.
Assumed: {op:.0f} us for an op that runs through cupy.

Each instruction takes the longer of its operations at the peak rate and its bytes at the bandwidth of the memory, so
`work` is a lower bound; an elementary function counts as one operation. `step` adds the barriers between dependent
instructions or the launches, for the fastest of three forms: one kernel of all blocks, one kernel of one block, or a
launch for each instruction. `TF32` is the step with products in that format. Times are microseconds. `ops` are left to
cupy. Loops run as many trips as their feed says, and of a branch the longer side counts.
"""


def section(report: Mapping[str, Any]) -> str:
    """The section of the page about performance."""
    head = HEAD.format(
        title=TITLE, name=H200.name, fp32=H200.flops["float32"] / 1e12, tf32=H200.tf32 / 1e12,
        bandwidth=H200.bandwidth / 1e12, processors=H200.processors, node=H200.node * 1e6,
        grid=H200.grid_barrier * 1e6, block=f"{H200.block_barrier * 1e6:g}", op=H200.op * 1e6,
    )  # fmt: skip
    lines = [
        "| | instructions | barriers | ops | GFLOP | MB | work | step | as | TF32 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for name, row in report["workloads"].items():
        amounts = f"{row['instructions']} | {row['barriers']} | {row['ops']} | "
        amounts += f"{row['flops'] / 1e9:.3g} | {row['bytes'] / 1e6:.3g}"
        times = f"{row['work'] * 1e6:.3g} | {row['step'] * 1e6:.3g} | {row['as']} | {row['tf32'] * 1e6:.3g}"
        lines.append(f"| {name} | {amounts} | {times} |")
    return head + "\n" + "\n".join(lines) + "\n"


def with_section(page: str, section: str) -> str:
    """The page with this section in the place of the one with its title, or at the end. Its first line is its title."""
    title = section.partition("\n")[0]
    own = re.compile(rf"\n{re.escape(title)}\n.*?(?=\n## |\Z)", re.DOTALL)
    if not own.search(page):
        return f"{page.rstrip()}\n\n{section}"
    return own.sub(lambda _: f"\n{section}", page, count=1).rstrip() + "\n"


if __name__ == "__main__":
    main()
