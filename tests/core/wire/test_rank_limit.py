"""The largest rank holds for every variable, and not only for those that the client declares."""

from __future__ import annotations

from typing import Any

import pytest

from core.ir import Program
from core.ir.errors import InvalidProgram
from core.wire import Limits, read


def op(type: str, out: str, attrs: dict[str, Any] | None = None, **inputs: list[str]) -> dict[str, Any]:
    return {"type": type, "inputs": inputs, "outputs": {"out": [out]}, "attrs": attrs or {}}


CHAINS = {
    "unsqueeze": [op("unsqueeze", f"y{i}", {"axes": [0]}, x=[f"y{i - 1}" if i else "x"]) for i in range(9)],
    "stack": [op("stack", f"y{i}", x=[f"y{i - 1}" if i else "x"] * 2) for i in range(9)],
    "reshape": [op("reshape", "y0", {"shape": [1] * 8}, x=["x"]), op("reshape", "y1", {"shape": [1] * 9}, x=["x"])],
    "expand": [op("expand", "y0", {"shape": [1] * 9}, x=["x"])],
    "tensor array": [
        op("reshape", "row", {"shape": [1] * 8}, x=["x"]),
        op("fill_constant", "at", {"dtype": "int64"}),
        {"type": "create_array", "outputs": {"out": ["rows"]}, "attrs": {"shape": [1] * 8, "dtype": "float64"}},
        op("array_write", "rows", x=["row"], index=["at"], array=["rows"]),
        op("array_stack", "y0", array=["rows"]),
    ],
}


def program(ops: list[dict[str, Any]], **limits: int) -> Program:
    x = {"name": "x", "dtype": "float64", "shape": [], "role": "feed"}
    return read({"blocks": [{"idx": 0, "parent_idx": -1, "vars": [x], "ops": ops}]}, Limits(**limits))


@pytest.mark.parametrize("chain", CHAINS)
def test_a_result_of_too_high_a_rank_is_refused_at_its_op(chain):
    with pytest.raises(InvalidProgram) as error:
        program(CHAINS[chain])

    (problem,) = error.value.problems
    assert problem.code == "limit_exceeded"
    assert "has rank 9, above the limit of 8" in problem.message
    assert problem.pointer == f"/blocks/0/ops/{len(CHAINS[chain]) - 1}"


def test_a_higher_limit_accepts_the_result():
    assert program(CHAINS["unsqueeze"], max_rank=9).block.types["y8"].rank == 9


def test_the_stacked_elements_of_a_scan_count_their_axis_of_steps():
    inner, attrs = [op("unsqueeze", "row", {"axes": [0]}, x=["x"])], {"sub_block": 1, "elements": ["x"]}
    scan = {"type": "scan", "inputs": {"sequences": ["xs"]}, "outputs": {"stacked": ["rows"]}, "attrs": attrs}
    xs = {"name": "xs", "dtype": "float64", "shape": [3], "role": "feed"}
    outer = {"idx": 0, "parent_idx": -1, "vars": [xs], "ops": [scan | {"attrs": {**attrs, "outputs": ["row"]}}]}
    document = {"blocks": [outer, {"idx": 1, "parent_idx": 0, "vars": [], "ops": inner}]}

    assert read(document, Limits(max_rank=2)).block.types["rows"].shape == (3, 1)
    with pytest.raises(InvalidProgram, match="rank 2, above the limit of 1"):
        read(document, Limits(max_rank=1))
