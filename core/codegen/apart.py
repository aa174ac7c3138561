"""Loops and branches as functions of their own: LLVM's time grows faster than linearly with the number and the depth of
loops in one function, and its stack with the depth of branches.
"""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.llvm import Function
from core.codegen.step_writer import StepWriter
from core.plan.flow import Branch, Loop, Recording, Span
from core.plan.growing import ArrayWork
from core.plan.instructions import Instructions
from core.plan.memory import Stack

__all__ = ["CROWDED", "NESTED", "write_apart"]

NESTED = 5
"""The most loops and branches in each other in one function."""

CROWDED = 32
"""The most loops and branches after each other in one function. 200 loops and their adjoints take LLVM 4 s in place of
10 s if each has its own function; below this number one function is as fast."""


def write_apart(step: StepWriter, each: Loop | Branch, write: Callable[[], None], finish: Callable[[], None]) -> None:
    """Append a call of a new function with the code that `write` appends for `each`.

    finish: ends the function behind the last of its values, at the place to which a stopped one jumps.

    The parameters of the function are those of the step; the addresses of roots, the recordings and the cursors that
    are known only here; and the addresses of two words for each recording of a loop: its first slot and its length.
    """
    f, roots, recordings, cursors = step.f, step.roots, step.recordings, step.cursors
    error = step.plan.error.root
    touched = dict.fromkeys(root for root in (*each.reads(), *each.writes()) if root in roots and root != error)
    read, stacks = _recordings_in(each)
    known = {recording: recordings[recording] for recording in read if recording in recordings}
    counted = {stack: step.cursor(stack) for stack in stacks}
    made = [r for r, _ in each.records if isinstance(r, Recording)] if isinstance(each, Loop) else []
    words = [f.slot("int64") for _ in range(2 * len(made))]

    own = [p.name.removeprefix("%") for p in f.params[: len(step.arguments)]]
    given = [
        *(roots[root] for root in touched),
        *(v for pair in known.values() for v in pair),
        *counted.values(),
        *words,
    ]
    apart = Function(
        f"nest{len(step.module.functions)}",
        [*((name, "ptr") for name in own), *((f"x{i}", v.dtype) for i, v in enumerate(given))],
        noalias=False,
    )
    values = iter(apart.params[len(own) :])
    step.module.functions.append(apart)
    step.f = apart
    step.roots = {root: next(values) for root in touched} | {error: apart.param("control")}
    step.recordings = {recording: (next(values), next(values)) for recording in known}
    step.cursors = {stack: next(values) for stack in counted}
    results = [(next(values), next(values)) for _ in made]
    write()
    for recording, (first, length) in zip(made, results, strict=True):
        for value, word in zip(step.recordings[recording], (first, length), strict=True):
            apart.write(value, word)
    finish()
    step.f, step.roots, step.recordings, step.cursors = f, roots, recordings, cursors
    f.do(f"call void @{apart.name}({', '.join(map(str, [*f.params[: len(own)], *given]))})")
    for i, recording in enumerate(made):
        recordings[recording] = (f.read(words[2 * i], "int64"), f.read(words[2 * i + 1], "int64"))


def _recordings_in(each: Loop | Branch) -> tuple[dict[Recording | Span, None], dict[Stack, None]]:
    """The recordings that `each` and the instructions inside read, and the stacks that they record to."""
    read: dict[Recording | Span, None] = {}
    stacks: dict[Stack, None] = {}
    left: list[Loop | Branch] = [each]
    for nested in left:  # the list grows during the loop
        bodies: tuple[Instructions, ...]
        if isinstance(nested, Loop):
            bodies = (nested.body,)
            touched = (*nested.over, *nested.records)
            read.update((_places(s), None) for pair in touched for s in pair if isinstance(s, Recording | Span))
            for recording, _ in nested.records:
                if isinstance(recording, Recording):
                    stacks.update((s, None) for s in (recording.stack, *recording.inside))
        else:
            bodies = (nested.yes, nested.no)
        for work in (i for body in bodies for i in body.instructions if isinstance(i, ArrayWork)):
            read.update((_places(s), None) for s in work.sources if isinstance(s, Recording | Span))
            appended = getattr(work, "recording", None)
            if appended is not None:
                stacks[appended.stack] = None
        left += [inner for body in bodies for inner in body.instructions if isinstance(inner, Loop | Branch)]
    return read, stacks


def _places(source: Recording | Span) -> Recording | Span:
    return source.places if isinstance(source, Span) else source
