"""The examples of every op as ONNX models: what `tests/laws/test_onnx.py` runs, and the table of docs/onnx-out.md.

`python -m tests.laws.onnx_ops` writes the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from core.ir import Block, StackType, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError, ProgramError
from core.ir.registry import Example
from core.runtime.reference import execute
from tests.core.onnx.exported import compare, names_of, of_block
from tests.laws.examples import (
    OPS,
    STOPPED,
    _elements,
    arrays,
    examples_of,
    flattened,
    floats,
    gradient,
    leaves,
    shortened,
    unstacked,
)

__all__ = ["CASES", "GRADIENTS", "Case", "check", "check_gradient"]

PAGE = Path(__file__).parents[2] / "docs" / "onnx-out.md"
BEGIN, END = "<!-- ops -->\n", "<!-- end of ops -->\n"
TOLERANCE = {"float64": 1e-8, "float32": 3e-5}
OF_GRADIENTS = {"float64": 1e-8, "float32": 2e-4}


@dataclass(frozen=True, slots=True)
class Case:
    """Example number `i` of an op, with floats of `dtype`."""

    op: str
    i: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.op}-{self.i}-{self.dtype}"

    @property
    def example(self) -> Example:
        given = examples_of(OPS[self.op])[self.i]
        if self.dtype == "float64":
            return given
        attrs = {k: "float32" if k == "dtype" and v == "float64" else v for k, v in given.attrs.items()}
        return Example(tuple(shortened(x) for x in arrays(given)), (), attrs)


def _cases(differentiable: bool) -> Iterator[Case]:
    for name, spec in sorted(OPS.items()):
        for i, each in enumerate(examples_of(spec)):
            has_floats = bool(floats(leaves(each.inputs)))
            if differentiable and not (spec.differentiable and has_floats):
                continue
            yield Case(name, i, "float64")
            if has_floats or "float64" in each.attrs.values():
                yield Case(name, i, "float32")


CASES = tuple(_cases(False))
GRADIENTS = tuple(_cases(True))


def check(case: Case) -> bool:
    """Compare the example with the reference executor; False if its results are stacks or have no elements.

    Raises ProgramError if the op is refused.
    """
    example = case.example
    block = unstacked(OPS[case.op], example)
    results = [name for name in block.results if not isinstance(block.types[name], StackType)]
    if not results:
        return False
    values = dict(zip(block.params, leaves(example.inputs), strict=True))
    compare(of_block(block), names_of(results), values, TOLERANCE[case.dtype])
    return any(0 not in block.types[name].shape for name in results)


def check_gradient(case: Case) -> bool:
    """Compare the first gradient of a random projection of the example; False if the core refuses the gradient.

    Raises ProgramError if an op of the gradient is refused.
    """
    example = case.example
    args = leaves(example.inputs)
    try:
        block = unstacked(OPS[case.op], example)
        wrt = [block.params[k] for k in floats(args)]
        if case.op in STOPPED:
            block = replace(block, results=block.results[: STOPPED[case.op]["outputs"]])
        projected, weights = _projected(block, args)
        found = gradient(projected, wrt)
        values = dict(zip(found.params, [*args, *weights], strict=True))
        execute(found, list(values.values()))
    except CoreError:
        return False
    compare(of_block(found), names_of(found.results), values, OF_GRADIENTS[case.dtype])
    return True


def _projected(block: Block, args: Sequence[Any]) -> tuple[Block, list[np.ndarray]]:
    """The sum of all float results times weights, which are further parameters; and their values."""
    rng = np.random.default_rng(7)
    found = execute(block, list(args))
    b = BlockBuilder.like(block)
    total = b.constant(0.0, "float64")
    weights = []
    for name, result in dict(zip(block.results, found, strict=True)).items():
        value = b.value(name)
        if not value.type.is_float:
            continue
        shapes = [None if each is None else np.shape(each) for each in flattened(result)]
        for shape, each in zip([s for s in shapes if s is not None], _elements(value, shapes), strict=True):
            weight = b.param(TensorType(shape, each.dtype))
            weights.append(rng.normal(size=shape).astype(each.dtype))
            total = total + b.emit("reduce_sum", b.emit("cast", each * weight, dtype="float64"))
    return b.build([total]), weights


def table() -> str:
    """The table of docs/onnx-out.md: for each family the ops that are written, and the others with reasons."""
    written: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = defaultdict(int)
    gradients: dict[str, int] = defaultdict(int)
    refused: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for case in CASES:
        family = OPS[case.op].family.name
        try:
            if check(case):
                counts[family] += 1
                written[family].add(case.op)
        except ProgramError as error:
            refused[family][case.op].add(error.problems[0].message)
    for case in GRADIENTS:
        try:
            gradients[OPS[case.op].family.name] += check_gradient(case)
        except ProgramError:
            continue
    lines = ["| family | ops | written | examples equal | first gradients equal |", "|---|---|---|---|---|"]
    families = sorted({spec.family.name for spec in OPS.values()})
    for family in families:
        ops = [name for name, spec in OPS.items() if spec.family.name == family]
        lines.append(f"| {family} | {len(ops)} | {len(written[family])} | {counts[family]} | {gradients[family]} |")
    total = [sum(map(len, written.values())), sum(counts.values()), sum(gradients.values())]
    lines.append(f"| all | {len(OPS)} | {total[0]} | {total[1]} | {total[2]} |")
    lines += ["", "Refused, for some dtype or attribute:", "", "| op | reason |", "|---|---|"]
    for family in families:
        for op, reasons in sorted(refused[family].items()):
            lines.append(f"| {op} | {'; '.join(sorted(reasons))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")
