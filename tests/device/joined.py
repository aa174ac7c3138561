"""Many steps as one, so that LLVM and the assembler begin once and compile equal functions once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from core.device.launches import DeviceCode, Launch

__all__ = ["joined"]

FUNCTION = re.compile(r"^define [^\n]*?@([\w.]+)\(.*?^\}$", re.MULTILINE | re.DOTALL)
DATA = re.compile(r"^(@[\w.]+) = (.*)$", re.MULTILINE)
NAME = re.compile(r"@[\w.]+")


def joined(codes: Mapping[str, DeviceCode]) -> tuple[DeviceCode, dict[str, str]]:
    """One step with the launches of all, and for each of its functions the label of the first step that has it."""
    names: dict[str, str] = {}
    first: dict[str, str] = {}
    declared: set[str] = set()
    launches: dict[str, Launch] = {}
    for label, code in codes.items():
        functions = {each[1]: each[0] for each in FUNCTION.finditer(code.text)}
        new = {each[1]: _new(f"@_ = {each[2]}", "data", names) for each in DATA.finditer(code.text)}
        rest = FUNCTION.sub("", code.text).split("\n")
        declared |= {line for line in rest if line.startswith(("declare", "attributes", "!"))}
        for name in _callees_first(functions):
            text = _renamed(functions[name].replace(f"@{name}(", "@_(", 1), new)
            new[f"@{name}"] = _new(text, re.sub(r"\d+$", "", name), names)
            first.setdefault(new[f"@{name}"][1:], label)
        for each in code.launches:
            kernel = new[f"@{each.kernel}"][1:]
            launches.setdefault(kernel, replace(each, kernel=kernel))
    texts = [text.replace("@_", name, 1) for text, name in names.items()]
    return DeviceCode("\n".join([*texts, *sorted(declared)]), tuple(launches.values()), 0), first


def _renamed(text: str, new: Mapping[str, str]) -> str:
    return NAME.sub(lambda found: new.get(found[0], found[0]), text)


def _new(text: str, hint: str, names: dict[str, str]) -> str:
    """The name of the definition `text`, the same for equal ones."""
    return names.setdefault(text, f"@{hint}_{len(names)}")


def _callees_first(functions: Mapping[str, str]) -> Iterable[str]:
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in done:
            for called in re.findall(r"\bcall [^@\n]*@([\w.]+)\(", functions[name]):
                if called in functions and called != name:
                    visit(called)
            done[name] = None

    for name in functions:
        visit(name)
    return done
