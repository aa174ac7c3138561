"""Several columns as one: the features of a table become one tensor [rows, features]."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from service.datasets.exactness import inexact
from service.datasets.mistakes import Mistakes
from service.datasets.options import Limits, Options
from service.datasets.read import Read
from service.datasets.scratch import allocate, check_columns, row_blocks

__all__ = ["stacked"]


def stacked(read: Read, options: Options, scratch: Path, limits: Limits) -> Read:
    """The columns after the stacking that `options` asks for. Raises HttpProblem 422."""
    if not options.stack:
        return read
    mistakes = Mistakes()
    parts = {name: _parts(name, patterns, read, mistakes) for name, patterns in options.stack.items()}
    used = {part for each in parts.values() for part in each}
    kept = {name: array for name, array in read.columns.items() if name not in used}
    check_columns([*parts, *kept], limits, mistakes)
    kinds = {name: _dtype(name, each, read, mistakes) for name, each in parts.items()}
    mistakes.check()
    rows = len(next(iter(read.columns.values())))
    sizes = {name: sum(_width(read.columns[part]) for part in each) for name, each in parts.items()}
    made = allocate({name: (kinds[name], (sizes[name],)) for name in parts}, rows, scratch, limits)
    for name, each in parts.items():
        begin = 0
        for part in each:
            source = read.columns[part].reshape(rows, -1)
            target = made[name][:, begin : begin + source.shape[1]]
            begin += source.shape[1]
            for block in row_blocks(source):
                target[block] = source[block]
                if source.dtype.kind in "iu" and target.dtype.kind not in "iu":
                    wrong = inexact(source[block], target[block])
                    if wrong.any():
                        row = block.start + int(np.argmax(wrong.any(axis=1))) + 1
                        mistakes.add(f"the integer is not exact as {target.dtype.name}", part, row)
                        break
    mistakes.check()
    texts = {name: words for name, words in read.vocabularies.items() if name in kept}
    return Read({**made, **kept}, texts)


def _width(array: np.ndarray) -> int:
    return array[0].size


def _parts(name: str, patterns: list[str], read: Read, mistakes: Mistakes) -> list[str]:
    """The columns that become `name`, each once."""
    found: dict[str, int] = {}  # -> position of the first pattern that matches
    for i, pattern in enumerate(patterns):
        exact = [pattern] if pattern in read.columns else []
        matching = exact or [each for each in read.columns if fnmatchcase(each, pattern)]
        if not matching:
            mistakes.add(f"no column is called {pattern[:100]!r}", name, member=("stack", name, i))
        found |= {part: i for part in matching if part not in found}
    for part, i in found.items():
        if part in read.vocabularies:
            detail = f"the column {part!r} has texts, which cannot be parts of a tensor"
            mistakes.add(detail, name, member=("stack", name, i))
    return list(found)


def _dtype(name: str, parts: list[str], read: Read, mistakes: Mistakes) -> np.dtype:
    """One dtype for all parts: the widest float if there is one, else the widest integer."""
    kinds = {read.columns[part].dtype for part in parts}
    if len(kinds) == 1:
        return kinds.pop()
    floats = {kind for kind in kinds if kind.kind in "fV"}
    if not floats:
        return np.result_type(*kinds) if kinds else np.dtype(np.float32)
    if any(kind.kind == "V" for kind in floats):
        if len(floats) > 1:
            detail = "bfloat16 and other floats cannot be parts of one tensor"
            mistakes.add(detail, name, member=("stack", name))
        return floats.pop()
    return np.result_type(*floats)
