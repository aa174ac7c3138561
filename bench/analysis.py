"""The time of the analysis of a program, with reading and building of its backward pass, as programs grow.

    python -m bench.analysis

The programs are three quarters straight lines; the last quarter of their ops is in loops nested two deep, half of
which hold a branch. All loops have one of two structures, and the analysis handles each structure once: if every loop
differs, it takes about three times as long. Times are seconds.
"""

from __future__ import annotations

from typing import Any

from bench.clock import Clock, calls
from core.analysis import analyse
from core.backward.append_backward import append_backward
from core.compiler.compile import GradientQuery
from core.wire import read

__all__ = ["main", "mixed"]

ROUNDS = 5


def mixed(ops: int) -> dict[str, Any]:
    """A program of `ops` ops, a multiple of 200: of every 200, 150 in block 0 and 50 in a loop that holds a loop."""
    blocks: list[dict[str, Any]] = [{"idx": 0, "parent_idx": -1, "vars": [], "ops": []}]
    root = blocks[0]["ops"]
    root.append(_op("assign", "x", out="h"))
    for group in range(ops // 200):
        _line(root, 145 if group else 143)
        root.append({"type": "fill_constant", "outputs": {"out": [f"i{group}"]}, "attrs": ZERO})
        root.append(_op("less_than", f"i{group}", y="n", out=f"go{group}"))
        root.append(_while(f"go{group}", len(blocks)))
        _loops(blocks, group)
        root.append(_op("mul", "h", y="w", out="h"))
        root.append(_op("sin", "h", out="h"))
    root.append(_op("reduce_sum", "h", out="loss"))
    blocks[0]["vars"] = [
        {"name": "x", "dtype": "float32", "shape": [4], "role": "feed"},
        {"name": "w", "dtype": "float32", "shape": [4], "role": "parameter"},
        {"name": "n", "dtype": "int64", "shape": [], "role": "feed"},
        {"name": "yes", "dtype": "bool", "shape": [], "role": "feed"},
    ]
    return {"blocks": blocks}


ZERO = {"shape": [], "value": 0, "dtype": "int64"}


def _loops(blocks: list[dict[str, Any]], group: int) -> None:
    """A loop of a line and a loop, 50 ops in all; in every other group 8 of them are in a branch."""
    outer, inner = len(blocks), len(blocks) + 1
    i, j, go, more = f"i{group}", f"j{group}", f"go{group}", f"more{group}"
    branch = group % 2 == 0
    blocks.append({"idx": outer, "parent_idx": 0, "vars": [], "ops": []})
    blocks.append({"idx": inner, "parent_idx": outer, "vars": [], "ops": []})
    ops = blocks[outer]["ops"]
    _line(ops, 30)
    ops.append({"type": "fill_constant", "outputs": {"out": [j]}, "attrs": ZERO})
    ops.append(_op("less_than", j, y="n", out=more))
    ops.append(_while(more, inner))
    ops.append(_op("increment", i, out=i))
    ops.append(_op("less_than", i, y="n", out=go))
    ops = blocks[inner]["ops"]
    _line(ops, 4 if branch else 13)
    if branch:
        attrs = {"true_block": len(blocks), "false_block": None}
        ops.append({"type": "if_else", "inputs": {"condition": ["yes"]}, "attrs": attrs})
        blocks.append({"idx": len(blocks), "parent_idx": inner, "vars": [], "ops": []})
        _line(blocks[-1]["ops"], 8)
    ops.append(_op("increment", j, out=j))
    ops.append(_op("less_than", j, y="n", out=more))


def _line(ops: list[dict[str, Any]], count: int) -> None:
    """`count` ops that multiply h by w and bound it, in turns."""
    ops += [_op("tanh", "h", out="h") if k % 2 else _op("mul", "h", y="w", out="h") for k in range(count)]


def _op(type: str, x: str, *, out: str, y: str | None = None) -> dict[str, Any]:
    inputs = {"x": [x]} if y is None else {"x": [x], "y": [y]}
    return {"type": type, "inputs": inputs, "outputs": {"out": [out]}}


def _while(condition: str, block: int) -> dict[str, Any]:
    return {"type": "while", "inputs": {"condition": [condition]}, "attrs": {"sub_block": block}}


def main() -> None:
    print(f"{'ops':>8}{'read':>9}{'build':>9}{'analyse':>9}{'all':>9}")
    documents = {ops: mixed(ops) for ops in (10_000, 20_000)}
    clocks = {ops: Clock() for ops in documents}
    query = GradientQuery(loss="loss")
    for ops, document in documents.items():
        assert sum(len(block["ops"]) for block in document["blocks"]) == ops
    for _ in range(ROUNDS):  # in turns: a slow phase of the machine affects both
        for ops, document in documents.items():
            program = clocks[ops]("read", lambda d=document: read(d))
            backward = clocks[ops]("build", lambda p=program: append_backward(p, "loss"))
            clocks[ops]("analyse", lambda p=program, b=backward: analyse(p, query, backward=b))
    whole = {ops: sum(clock.least.values()) for ops, clock in clocks.items()}
    for ops, clock in clocks.items():
        print(f"{ops:8,}" + "".join(f"{taken:9.3f}" for taken in (*clock.least.values(), whole[ops])))

    def everything(ops: int) -> None:
        program = read(documents[ops])
        analyse(program, query, backward=append_backward(program, "loss"))

    few, many = (calls(lambda n=n: everything(n)) for n in documents)
    small, large = whole.values()
    print(f"twice the ops take {large / small:.2f} times as long, and {many / few:.3f} times the calls")


if __name__ == "__main__":
    main()
