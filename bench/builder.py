"""The time of the builder: a chain of multiplications by one shared weight, and deeply nested blocks.

    python -m bench.builder

Times are seconds of reading the program, of building its backward pass, and of writing the answer as JSON.
"""

from __future__ import annotations

from typing import Any

import core.compiler.compile
from bench.clock import Clock, calls
from core.backward.backward_program import Backward
from core.wire import read

__all__ = ["chain", "main", "nested"]

ROUNDS = 7


def chain(repeats: int) -> dict[str, Any]:
    """`repeats` times (mul by a shared weight, tanh), then a sum."""
    ops: list[dict[str, Any]] = []
    for i in range(repeats):
        before = f"h{i}" if i else "x"
        ops.append({"type": "mul", "inputs": {"x": [before], "y": ["w"]}, "outputs": {"out": [f"m{i}"]}})
        ops.append({"type": "tanh", "inputs": {"x": [f"m{i}"]}, "outputs": {"out": [f"h{i + 1}"]}})
    ops.append({"type": "reduce_sum", "inputs": {"x": [f"h{repeats}"]}, "outputs": {"out": ["loss"]}})
    leaves = [
        {"name": "x", "dtype": "float32", "shape": [4], "role": "feed"},
        {"name": "w", "dtype": "float32", "shape": [4], "role": "parameter"},
    ]
    return {"blocks": [{"idx": 0, "parent_idx": -1, "vars": leaves, "ops": ops}]}


def nested(depth: int) -> dict[str, Any]:
    """Blocks nested `depth` deep, branches and loops in turns, each multiplying a value by a weight."""
    blocks: list[dict[str, Any]] = []
    for level in range(depth):
        ops: list[dict[str, Any]] = [{"type": "mul", "inputs": {"x": ["h"], "y": ["w"]}, "outputs": {"out": ["h"]}}]
        if level == 0:
            ops.insert(0, {"type": "assign", "inputs": {"x": ["w"]}, "outputs": {"out": ["h"]}})
        if level + 1 < depth and level % 2 == 0:
            attrs = {"true_block": level + 1, "false_block": None}
            ops.append({"type": "if_else", "inputs": {"condition": ["yes"]}, "attrs": attrs})
        elif level + 1 < depth:
            go = f"go{level}"
            ops.append({"type": "assign", "inputs": {"x": ["yes"]}, "outputs": {"out": [go]}})
            ops.append({"type": "while", "inputs": {"condition": [go]}, "attrs": {"sub_block": level + 1}})
        if level and level % 2 == 0:  # the body of a loop: one trip
            ops.append({"type": "logical_not", "inputs": {"x": ["yes"]}, "outputs": {"out": [f"go{level - 1}"]}})
        blocks.append({"idx": level, "parent_idx": level - 1, "vars": [], "ops": ops})
    blocks[0]["vars"] = [
        {"name": "w", "dtype": "float64", "shape": [2], "role": "parameter"},
        {"name": "yes", "dtype": "bool", "shape": [], "role": "feed"},
    ]
    blocks[0]["ops"].append({"type": "reduce_sum", "inputs": {"x": ["h"]}, "outputs": {"out": ["loss"]}})
    return {"blocks": blocks}


def main() -> None:
    print(f"{'program':34}{'read':>9}{'build':>9}{'write':>9}   ops")
    programs = {
        "4,000 x (mul by shared w, tanh)": chain(4000),
        "8,000 x (mul by shared w, tanh)": chain(8000),
        "200 nested blocks": nested(200),
    }
    clocks = {name: Clock() for name in programs}
    ops = {}
    for _ in range(ROUNDS):  # in turns: a slow phase of the machine affects all
        for name, document in programs.items():
            program = clocks[name]("read", lambda d=document: read(d))
            backward: Backward = clocks[name](
                "build", lambda p=program: core.compiler.compile.append_backward(p, "loss")
            )
            clocks[name]("write", backward.as_document)
            ops[name] = len(backward.program.block.ops)
    for name, clock in clocks.items():
        print(f"{name:34}" + "".join(f"{taken:9.3f}" for taken in clock.least.values()) + f"   {ops[name]:,}")
    four, eight, _ = (clock.least["build"] for clock in clocks.values())
    small, large = read(chain(4000)), read(chain(8000))
    few, many = (calls(lambda p=p: core.compiler.compile.append_backward(p, "loss")) for p in (small, large))
    print(f"twice the ops take {eight / four:.2f} times as long to build, and {many / few:.3f} times the calls")


if __name__ == "__main__":
    main()
