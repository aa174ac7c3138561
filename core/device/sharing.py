"""Kernels that several launches of a step share: those whose texts differ only in places of arrays and in checks.

The layers of a network make the same instructions on other arrays. As one kernel each, LLVM and the assembler would
compile them again and again. So the places of arrays and the numbers of checks become parameters, whose values the
launch has.
"""

from __future__ import annotations

import re

from core.codegen.llvm import Function
from core.codegen.module import Module
from core.device.launches import PARAMETERS

__all__ = ["share_kernel"]

MOST_NUMBERS = 256
"""Numbers of a launch. All parameters of a kernel take at most 4,096 bytes."""

PLACE = """
define internal ptr @place(ptr %given, ptr %arena, i64 %number) nounwind alwaysinline {
  %is_given = icmp slt i64 %number, 0
  %position = xor i64 %number, -1
  br i1 %is_given, label %array, label %buffer
array:
  %entry = getelementptr ptr, ptr %given, i64 %position
  %address = load ptr, ptr %entry, align 8
  br label %done
buffer:
  %inside = getelementptr i8, ptr %arena, i64 %number
  br label %done
done:
  %found = phi ptr [ %address, %array ], [ %inside, %buffer ]
  ret ptr %found
}"""
"""The address for a number: an offset in the arena, or -1 - the position of an array of the caller."""

BUFFER = re.compile(r"  (%\S+) = getelementptr inbounds i8, ptr %arena, i64 (\d+)")
ARRAY = re.compile(r"  (%\S+) = getelementptr inbounds ptr, ptr %given, i64 (\d+)")
ADDRESS = re.compile(r"  (%\S+) = load ptr, ptr (%\S+), align 8")
CHECK = re.compile(r"(?<=, i64 )-?\d+(?=\))")
"""The last argument of a call."""


def share_kernel(module: Module, f: Function) -> tuple[str, tuple[int, ...]]:
    """The name of the kernel of a launch and the numbers of the launch. Adds the kernel if the module has none like it.

    f: the launch on its own, without parameters for numbers.
    """
    has_loops = any(line.endswith(":") for line in f.lines)  # they have numbers of other kinds
    numbers: list[int] = []
    lines = [] if has_loops else _with_numbers(f.lines, numbers)
    if has_loops or len(numbers) > MOST_NUMBERS:
        module.functions.append(f)
        return f.name, ()
    key = repr(("kernel", lines, f.top))
    if key not in module.names:
        params = [*((p, "ptr") for p in PARAMETERS), *((f"number{i}", "int64") for i in range(len(numbers)))]
        shared = Function(f.name, params, noalias=False)
        shared.lines, shared.top, shared.declarations = lines, f.top, {*f.declarations, PLACE}
        module.functions.append(shared)
        module.names[key] = f.name
    return module.names[key], tuple(numbers)


def _with_numbers(lines: list[str], numbers: list[int]) -> list[str]:
    """The instructions with parameters for places and checks, whose values are added to `numbers`.

    Values have new names, so that an array of the caller and one in the arena make no difference.
    """
    found: list[str] = []
    names: dict[str, str] = {}
    positions: dict[str, int] = {}

    def parameter(number: int) -> str:
        numbers.append(number)
        return f"%number{len(numbers) - 1}"

    def place(value: str, number: int) -> None:
        names[value] = f"%p{len(names)}"
        found.append(f"  {names[value]} = call ptr @place(ptr %given, ptr %arena, i64 {parameter(number)})")

    for line in lines:
        if match := ARRAY.fullmatch(line):
            positions[match[1]] = int(match[2])
        elif match := BUFFER.fullmatch(line):
            place(match[1], int(match[2]))
        elif (match := ADDRESS.fullmatch(line)) and match[2] in positions:
            place(match[1], -1 - positions[match[2]])
        else:
            if match := re.match(r"  (%\S+) = ", line):
                names[match[1]] = f"%p{len(names)}"
            line = CHECK.sub(lambda m: parameter(int(m[0])), line)
            found.append(re.sub(r"%[\w.]+", lambda m: names.get(m[0], m[0]), line))
    return found
