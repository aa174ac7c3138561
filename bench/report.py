"""Writes docs/performance.md from the measurements of the other modules.

    python -m bench.report [--from build/bench] [--to docs/performance.md]

A section of the page stays as it is until its module is measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.roofline import section, with_section

__all__ = ["main", "page", "sections"]

OWN = "backpass"

NAMES = {
    "backpass": "Backpass",
    "torch_eager": "torch eager",
    "torch_compile": "torch.compile",
    "jax_jit": "jax.jit",
    "tf_function": "tf.function",
    "tf_function_jit": "tf.function, XLA",
}

HEAD = """\
# Performance

Written by `make performance` from the measurements of `make bench`.
The numbers of a section are of the machine that it names, and no test checks them.
"""

BUSY = """
  The machine was busy. Threads of a library that spins and cannot hand over its work then wait long for each other:
  numbers for more than one thread describe the behaviour on a busy machine.\
"""

STEPS = """\
## Training steps

Loss, gradients of all parameters and an update, in float32, on the same numbers: the workloads of
[bench/workloads.py](../bench/workloads.py) and [bench/classes](../bench/classes), each in the idiom of its framework
([bench/peers](../bench/peers)). A `-` means that a workload is not written for a framework, refused by its compiler, or
left out because torch.compile takes more than a minute for it.
The update is SGD, in `adam_small` and `small_batch` Adam. All agreed about the loss and the update of every
parameter before the measurement. Each runs in a separate process. They took turns: {rounds} rounds of as many steps
as fit in some milliseconds, after as many steps that were not timed. Numbers are milliseconds per step, medians over
the rounds. The ratio is the time of Backpass to that of the fastest peer: below 1, Backpass is faster.

Some peers know more in advance than Backpass: the number of trips of `rnn_while` and `branch` is a feed. Backpass,
torch eager and tf.function run any number of trips with one compilation. torch.compile, jax.jit and XLA take the number
as a constant, and compile again for another one.
"""

FIRST_STEP = """\
### First step

Seconds from the description of the workload to the end of its first step: tracing, compiling, running; not the import
of the framework, nor its first computation.
"""

FIRST_GRADIENT = """\
## First gradient

Seconds until the client has the gradients of a new program. Backpass: one POST with the program and its values, to a
service with one worker that has computed another program before. jax: one call of `jit(value_and_grad)` in the process
itself. Medians of {rounds} rounds, each with new processes. Short calls run op by op, without a compilation; those
that are repeated can [request machine code](start/python.md#a-gradient).
"""

HTTP = """\
## Training through HTTP

Steps per second over one connection, batches as safetensors: sessions of Backpass, and a plain service of FastAPI and
torch eager with the same networks ([bench/peers/torch_service.py](../bench/peers/torch_service.py)). Both train
with Adam on the same batches, on the same cores, in turns; medians of {rounds} rounds. Above 1, Backpass is faster.
"""

RESIDENT = """\
## Memory

Peak resident memory of a fresh process that prepares a workload and runs some steps, in MiB. In brackets: the part of
it after the framework was loaded and had computed something. The ratio divides the peak
of Backpass by the smallest peak of the other frameworks.
"""

PREDICTED = """\
The peak of a gradient that the analysis of a program predicts for its machine code, before anything runs, and the bytes
that a run allocates: arena, records of loops and results, in MiB; and the increase of resident memory during the first
run of a second copy of it. For ops without machine code only the arrays are predicted: {partial}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, default=Path("build/bench"))
    parser.add_argument("--to", type=Path, default=Path("docs/performance.md"))
    given = parser.parse_args()
    found = {path.stem: json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))}
    if not found:
        raise SystemExit(f"nothing in {given.folder}: run `make bench` first")
    before = given.to.read_text() if given.to.exists() else HEAD
    given.to.write_text(page(found, before))


def page(found: Mapping[str, Any], before: str = HEAD) -> str:
    """The page with a section for each report. found: module of the bench -> its report. before: the page until now."""
    for text in sections(found):
        before = with_section(before, text)
    return before


def sections(found: Mapping[str, Any]) -> Iterator[str]:
    """The section of each report, with its title in the first line."""
    writers = {"steps": _steps, "first_gradient": _first_gradient, "http_sessions": _http, "memory": _memory}
    for name, write in writers.items():
        if name in found:
            intro, *tables = write(found[name])
            yield "\n".join([intro, _machine(found[name]), *tables])
    if "roofline" in found:
        yield section(found["roofline"])


def _first_gradient(report: Mapping[str, Any]) -> list[str]:
    rows = [
        [name, f"{t[OWN]:.3f}", *([f"{t['jax_jit']:.3f}", f"{t[OWN] / t['jax_jit']:.2f}"] if "jax_jit" in t else [])]
        for name, t in report["workloads"].items()
    ]
    return [FIRST_GRADIENT.format(**report), _table(["", "Backpass", "jax.jit", "ratio"], rows)]


def _http(report: Mapping[str, Any]) -> list[str]:
    parts = [HTTP.format(**report)]
    for threads, jobs in report["threads"].items():
        rows = [
            [name, f"{t[OWN]:.1f}", f"{t['torch_service']:.1f}", f"{t[OWN] / t['torch_service']:.2f}"]
            for name, t in jobs.items()
        ]
        parts.append(_table([_threads(threads), "Backpass", "FastAPI + torch", "ratio"], rows))
    return parts


def _machine(report: Mapping[str, Any]) -> str:
    """The machine of a measurement, and the other work on it."""
    machine, versions = report["machine"], report.get("versions", {})
    lines = [
        f"* Processor: {machine['processor']}, {machine['vector'] or 'no wide vectors'}, {machine['cores']} cores.",
        f"* Other work on the machine: a load average of {machine['load']} when the measurement began."
        + (BUSY if machine["load"] > machine["cores"] / 2 else ""),
        f"* Python {machine['python']}" + "".join(f", {name} {version}" for name, version in versions.items()) + ".",
    ]
    return "\n".join(lines) + "\n"


def _steps(report: Mapping[str, Any]) -> list[str]:
    parts = [STEPS.format(**report)]
    for threads, workloads in report["threads"].items():
        peers = _peers(workloads)
        rows, ratios = [], []
        for workload, times in workloads.items():
            others = [times[name]["median"] for name in peers if name in times and name != OWN]
            cells = [_milliseconds(times.get(name, {}).get("median")) for name in peers]
            ratio = times[OWN]["median"] / min(others) if others and OWN in times else None
            ratios += [ratio] if ratio else []
            rows.append([workload, *cells, f"{ratio:.2f}" if ratio else "-"])
        if ratios:
            mean = math.exp(statistics.mean(map(math.log, ratios)))
            rows.append(["geometric mean", *[""] * len(peers), f"{mean:.2f}"])
        parts.append(_table([_threads(threads), *(NAMES[name] for name in peers), "ratio"], rows))
    parts.append(FIRST_STEP)
    for threads, workloads in report["threads"].items():
        peers = _peers(workloads)
        rows = [
            [workload, *(f"{times[name]['first']:.2f}" if name in times else "-" for name in peers)]
            for workload, times in workloads.items()
        ]
        parts.append(_table([_threads(threads), *(NAMES[name] for name in peers)], rows))
    return parts


def _memory(report: Mapping[str, Any]) -> list[str]:
    mib = 2**20
    resident = report["resident"]
    peers = _peers(resident)
    size = lambda t: f"{t['peak'] / mib:.0f} ({t['rise'] / mib:+.0f})"
    rows = []
    for workload, each in resident.items():
        least = min((t["peak"] for name, t in each.items() if name != OWN), default=None)
        ratio = f"{each[OWN]['peak'] / least:.2f}" if least and OWN in each else "-"
        rows.append([workload, *(size(each[name]) if name in each else "-" for name in peers), ratio])
    predicted = report["predicted"]
    partial = ", ".join(name for name, each in predicted.items() if each["elsewhere"]) or "nowhere here"
    sizes = ("predicted", "used", "touched")
    compared = [
        [name, *(f"{each[key] / mib:.3f}" for key in sizes), f"{each['predicted'] / each['used']:.2f}"]
        for name, each in predicted.items()
    ]
    return [
        RESIDENT,
        _table(["", *(NAMES[name] for name in peers), "ratio"], rows),
        PREDICTED.format(partial=partial),
        _table(["", *sizes, "predicted / used"], compared),
    ]


def _peers(workloads: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The peers that ran at least one workload, in the order of NAMES."""
    return [name for name in NAMES if any(name in times for times in workloads.values())]


def _threads(threads: str) -> str:
    return {"1": "1 thread", "all": "all cores"}.get(threads, f"{threads} threads")


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with numbers aligned to the right."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows)) + "\n"


if __name__ == "__main__":
    main()
