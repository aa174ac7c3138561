"""The text of a step in parts that do not call each other, so that the assembler can begin before LLVM ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from core.device.launches import DeviceCode

__all__ = ["parted"]

PART = 60_000
"""Characters of a part: some hundred milliseconds of LLVM's time."""

COPIED = 5_000
"""Characters up to which a function that several parts call is in each of them."""


@dataclass(slots=True)
class _Function:
    """A function of the text. calls: names of others that it calls itself."""

    name: str
    text: str
    calls: frozenset[str]


def parted(code: DeviceCode, size: int = PART) -> list[DeviceCode]:
    """Parts of about `size` characters, each with the launches whose kernels it defines; a short step is one part.

    Kernels that call the same long function are in one part.
    """
    functions, rest = _read(code.text)
    groups = _groups([each.kernel for each in code.launches], functions)
    parts: list[set[str]] = []
    room = 0
    for kernels in groups:
        names = _reached(kernels, functions)
        if room <= 0:
            parts.append(set())
            room = size
        room -= sum(len(functions[n].text) for n in names - parts[-1])
        parts[-1] |= names
    if len(parts) < 2:
        return [code]
    return [
        replace(
            code,
            text=_text((f.text for n, f in functions.items() if n in names), rest),
            work=tuple(each for each in code.launches if each.kernel in names),
        )
        for names in parts
    ]


def _read(text: str) -> tuple[dict[str, _Function], list[str]]:
    """The functions of a text, and its other lines."""
    found: dict[str, _Function] = {}
    pattern = re.compile(r"^define [^\n]*?@([\w.]+)\(.*?^\}$", re.MULTILINE | re.DOTALL)
    for each in pattern.finditer(text):
        calls = frozenset(re.findall(r"\bcall [^@\n]*@([\w.]+)\(", each[0]))
        found[each[1]] = _Function(each[1], each[0], calls)
    for one in found.values():
        one.calls &= found.keys()
    return found, [line for line in pattern.sub("", text).split("\n") if line]


def _reached(names: Iterable[str], functions: dict[str, _Function]) -> set[str]:
    """Functions and all that they call."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += functions[name].calls
    return found


def _groups(kernels: Iterable[str], functions: dict[str, _Function]) -> Iterator[list[str]]:
    """The kernels, in their order, together with those that call the same long functions."""
    groups: list[tuple[set[str], list[str]]] = []
    for kernel in dict.fromkeys(kernels):
        long = {n for n in _reached([kernel], functions) - {kernel} if len(functions[n].text) > COPIED}
        alike = [each for each in groups if each[0] & long]
        merged = (long.union(*(each[0] for each in alike)), [*(k for each in alike for k in each[1]), kernel])
        if alike:
            groups[groups.index(alike[0])] = merged
            groups = [each for each in groups if not any(each is other for other in alike[1:])]
        else:
            groups.append(merged)
    return (names for _, names in groups)


def _text(functions: Iterable[str], rest: Iterable[str]) -> str:
    """A text of functions, with those definitions of data that they use and all declarations."""
    body = "\n".join(functions)
    used = set(re.findall(r"@[\w.]+", body))
    lines = [line for line in rest if not line.startswith("@") or line.split(" ", 1)[0] in used]
    return "\n".join([*lines, body])
