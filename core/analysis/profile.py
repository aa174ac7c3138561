"""The time of each kernel of a step, with its place in the client's program, its work, and its share of machine
peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from core.analysis.place import place
from core.codegen.machine_peak import MachinePeak, machine_peak
from core.codegen.threads import thread_count
from core.cost import count_work
from core.ir import Block, TensorType
from core.plan.flow import Branch, Loop
from core.plan.instructions import Instruction
from core.plan.work import Work, work_of
from core.runtime.times import Spent, Times

__all__ = ["as_text", "profile_of"]

FLOW: dict[str, type] = {"loop": Loop, "branch": Branch}


def profile_of(times: Times, on_cpu: bool = True) -> dict[str, Any]:
    """The profile of the runs recorded in `times`, as JSON-ready values. The slowest kernels come first.

    share_of_peak: the shortest time in which the machine could do the work of a kernel (arithmetic or moving bytes,
    whichever takes longer), divided by its time, at most 1; null on a GPU. A larger share shows that the peak was
    measured while the machine was busy: it is measured again.
    outside_ms:    time outside kernels: loops, checks, and calls.
    """
    seconds, best = times.seconds, None
    measured = [*_measured(times)]
    if on_cpu:
        best = machine_peak(thread_count())
        reached = max((_share(work, spent, best) for work, spent, _ in measured), default=0.0)
        best = machine_peak(thread_count(), reached)
    found = [_row(work, spent, best) | about for work, spent, about in measured]
    found.sort(key=lambda each: -each["ms"])
    inside = sum(each["ms"] for each in found)
    for each in found:
        each["share_of_time"] = round(each["ms"] / max(seconds * 1e3, inside, 1e-9), 4)
    return {
        "ms": round(seconds * 1e3, 6),
        "outside_ms": round(max(0.0, seconds * 1e3 - inside), 6),
        "peak": None if best is None else _shown(best),
        "kernels": found,
    }


def _measured(times: Times) -> Iterator[tuple[Work, Spent, dict[str, Any]]]:
    """All that ran: its work, its time, and its place in the program."""
    for each, spent in times.kernels.items():
        if spent.calls:
            yield work_of(each), spent, {"of": place(each.location), "compiled": True}
    for parts, spent in times.together.items():
        at = next((each.location for each in parts if each.location is not None), None)
        yield _work_together(parts), spent, {"of": place(at), "compiled": True}
    for op, block, spent in times.ops.values():
        flops = sum(count_work(Block((), (op,), (), block.types), 1).values())
        types = (block.types[name] for name in op.outputs)
        dtype = next((type.dtype for type in types if isinstance(type, TensorType)), "float32")
        work = Work(op.type, flops, spent.nbytes // spent.calls, dtype, (op.type,))
        yield work, spent, {"of": place(op.location), "compiled": False}


def _work_together(parts: Sequence[Instruction]) -> Work:
    """The work of instructions that ran as one. Only the run tells how much loops and branches do: they count 0."""
    if len(parts) == 1 and not isinstance(parts[0], Loop | Branch):
        return work_of(parts[0])
    works = [work_of(each) for each in _flat(parts)]
    ops = tuple(dict.fromkeys(op for each in works for op in each.ops))
    kind = next((name for name, flow in FLOW.items() if any(isinstance(each, flow) for each in parts)), "")
    text = f"{kind} of {len(works)} kernels" if kind else f"{len(works)} kernels"
    dtype = works[0].dtype if works else "float32"
    if kind:
        return Work(text, 0, 0, dtype, ops)
    return Work(text, sum(each.flops for each in works), sum(each.nbytes for each in works), dtype, ops)


def _flat(parts: Iterable[Instruction]) -> Iterator[Instruction]:
    """All instructions that compute, those inside of loops and branches too."""
    for each in parts:
        if isinstance(each, Loop):
            yield from _flat(each.body.instructions)
        elif isinstance(each, Branch):
            yield from _flat((*each.yes.instructions, *each.no.instructions))
        else:
            yield each


def _row(work: Work, spent: Spent, best: MachinePeak | None) -> dict[str, Any]:
    share = None if best is None or spent.seconds <= 0 else round(min(1.0, _share(work, spent, best)), 4)
    return {
        "kernel": work.kernel,
        "ops": list(work.ops),
        "calls": spent.calls,
        "ms": round(spent.seconds * 1e3, 6),
        "flops": work.flops * spent.calls,
        "bytes": work.nbytes * spent.calls,
        "share_of_peak": share,
    }


def _share(work: Work, spent: Spent, best: MachinePeak) -> float:
    """The shortest time in which the machine could have done the work, divided by its time; 0 without a time."""
    least = best.seconds(work.flops, work.nbytes, work.dtype) * spent.calls
    return least / spent.seconds if spent.seconds > 0 else 0.0


def _shown(best: MachinePeak) -> dict[str, Any]:
    return {
        "threads": best.threads,
        "flops_per_s": {dtype: round(rate) for dtype, rate in best.flops.items()},
        "bytes_per_s": [{"up_to_bytes": size, "rate": round(rate)} for size, rate in best.bandwidth],
    }


def as_text(profile: Mapping[str, Any], steps: int = 1) -> str:
    """The profile of `steps` steps as a text table. Times are means per step."""
    head = ("us", "time", "calls", "GFLOP/s", "GB/s", "of peak", "kernel", "block:op of the program")
    lines = [head]
    for each in profile["kernels"]:
        seconds = each["ms"] / 1e3
        share = each["share_of_peak"]
        lines.append(
            (
                _us(each["ms"], steps),
                f"{each['share_of_time']:.1%}",
                f"{each['calls'] / steps:g}",
                f"{each['flops'] / seconds / 1e9:.1f}" if seconds and each["flops"] else "",
                f"{each['bytes'] / seconds / 1e9:.1f}" if seconds else "",
                "" if share is None else f"{share:.0%}",
                f"{each['kernel']}{'' if each['compiled'] else ' (interpreted)'}",
                _where(each),
            )
        )
    outside = profile["outside_ms"]
    share = f"{outside / max(profile['ms'], 1e-9):.1%}"
    lines.append((_us(outside, steps), share, "", "", "", "", "outside kernels", ""))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    shown = []
    for line in lines:
        cells = zip(line, widths, strict=True)
        shown.append("  ".join(c.rjust(w) if i < 6 else c.ljust(w) for i, (c, w) in enumerate(cells)))
    mean = f", the mean of {steps}" if steps > 1 else ""
    peak = profile["peak"]
    where = "" if peak is None else f", on {peak['threads']} thread{'s' * (peak['threads'] > 1)}"
    return "\n".join([*(line.rstrip() for line in shown), f"{_us(profile['ms'], steps)} us per step{mean}{where}"])


def _us(ms: float, steps: int) -> str:
    """Microseconds per step, for `steps` steps that took `ms` milliseconds together."""
    us = ms * 1e3 / steps
    return f"{us:.2f}" if us < 1000 else f"{us:.0f}"


def _where(each: Mapping[str, Any]) -> str:
    fused = list(dict.fromkeys(each["ops"]))
    of = each["of"]
    if of is None:
        return f"optimizer [{', '.join(fused)}]" if fused else ""
    backward = "backward of " if of["backward"] else ""
    inside = f" [{', '.join(fused)}]" if fused and fused != [of["type"]] else ""
    return f"{backward}{of['block']}:{of['op']} {of['type']}{inside}"
