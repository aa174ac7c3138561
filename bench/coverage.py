"""The ops of the catalogue that compile to machine code, and the reasons why others do not.

    python -m bench.coverage [--ops cumsum,sort] [--dtypes float32,bfloat16] [--all]

For each op, in each dtype: the step of its first example (`--all`: of all examples) and the step of its gradient. Steps
take and return tensors, so that the elements of a tensor array are the rows of one; the step of a gradient squares and
adds up results whose size only the run tells. A step counts as left if any op in it has no machine code. The reasons
come from the planner, as in the analysis of programs. Nothing runs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import core.compiler.compile  # noqa: F401  (declares every op)
from core.analysis.compiled import machine_code
from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import Block, StackType, TensorType, Type
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError
from core.ir.registry import REGISTRY, Example, OpSpec, as_tuple

__all__ = ["DTYPES", "Left", "left_in", "left_of", "main", "step_of"]

ELEMENTS = 6
"""Elements of each tensor array; with 6, three runs of 1, 2 and 3 elements."""

DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Left:
    """An op without machine code in the step of another op (or of itself)."""

    type: str
    reason: str


def left_in(step: Block) -> list[Left]:
    """The ops of a block without machine code, each once."""
    found = machine_code(step, trips=1)["interpreted"]
    return sorted({Left(each["type"], each["reason"]) for each in found}, key=lambda each: (each.type, each.reason))


def step_of(spec: OpSpec, example: Example, dtype: str, gradient: bool) -> Block | None:
    """The step of an op on the types of an example, whose float64 arrays become `dtype`, or of its gradient.

    None if the example has no such arrays, if the op does not take the dtype, or if it has no gradient there.
    """
    attrs = {k: dtype if k == "dtype" and v == "float64" else v for k, v in example.attrs.items()}
    types = [_type(each, dtype) for each in example.inputs]
    if dtype != "float64" and attrs == example.attrs and types == [_type(each, "float64") for each in example.inputs]:
        return None
    b = BlockBuilder()
    try:
        results = as_tuple(b.emit(spec.name, *(_given(b, type) for type in types), **attrs))
        block = b.build([_returned(b, each, gradient) for each in results])
    except ProgramError:  # the op does not take this dtype
        return None
    if gradient:
        floats = [name for name in block.params if block.types[name].is_float]  # type: ignore[union-attr]
        if not spec.differentiable or not floats:
            return None
        block = vjp(block, floats)
    return optimize(block)


def _given(b: BlockBuilder, type: Type | None) -> Value | None:
    """An operand of this type, made of a tensor that the step takes."""
    if type is None or not isinstance(type, StackType):
        return None if type is None else b.param(type)
    if isinstance(type.element, StackType):
        return b.emit("array_chunks", _given(b, type.element), order=1)
    return b.emit("array_unstack", b.param(TensorType((ELEMENTS, *type.element.shape), type.element.dtype)))


def _returned(b: BlockBuilder, value: Value, gradient: bool) -> Value:
    """A result as a tensor; for a gradient, the sum of its squares if its size is open."""
    while isinstance(value.type, StackType) and isinstance(value.type.element, StackType):
        value = b.emit("array_flatten", value)
    if isinstance(value.type, StackType):
        element = value.type.element
        assert isinstance(element, TensorType)
        how = {"shape": element.shape, "dtype": element.dtype, "count": ELEMENTS}
        value = b.emit("array_join", value, **how) if element.is_static else b.emit("array_concat", value)
    if gradient and value.type.is_float and not value.type.is_static:
        return b.emit("reduce_sum", b.emit("square", value))
    return value


def left_of(name: str, dtypes: Sequence[str] = DTYPES, every: bool = False) -> dict[tuple[int, str, str], list[Left]]:
    """(number of the example, dtype, "value" or "gradient") -> the ops without machine code. every: all examples."""
    spec = REGISTRY[name]
    assert spec.example_rule is not None
    found: dict[tuple[int, str, str], list[Left]] = {}
    for i, example in enumerate(spec.example_rule()):
        if i and not every:
            break
        for dtype in dtypes:
            for part in ("value", "gradient"):
                step = step_of(spec, example, dtype, part == "gradient")
                if step is not None:
                    found[i, dtype, part] = left_in(step)
    return found


def _type(value: Any, dtype: str) -> Any:
    if isinstance(value, list):
        return StackType(_type(value[0], dtype))
    array = np.asarray(value)
    return TensorType(array.shape, dtype if array.dtype == np.float64 else str(array.dtype))


def _rows(names: Sequence[str], dtypes: Sequence[str], every: bool) -> Iterator[tuple[str, str, str, list[Left]]]:
    for name in names:
        for (_, dtype, part), left in left_of(name, dtypes, every).items():
            yield name, dtype, part, left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    catalogue = sorted(name for name, spec in REGISTRY.items() if spec.kind != "control")
    parser.add_argument("--ops", type=listed, default=catalogue)
    parser.add_argument("--dtypes", type=listed, default=list(DTYPES))
    parser.add_argument("--all", action="store_true", help="all examples of each op, not only the first")
    given = parser.parse_args()
    seen: Counter[tuple[str, str]] = Counter()
    left: Counter[tuple[str, str]] = Counter()
    ops: set[str] = set()
    blamed: dict[Left, set[str]] = {}
    for name, dtype, part, found in _rows(given.ops, given.dtypes, given.all):
        seen[dtype, part] += 1
        left[dtype, part] += bool(found)
        if found:
            ops.add(name)
        for each in found:
            blamed.setdefault(each, set()).add(name)
    print(f"{len(ops)} of {len(given.ops)} ops need something interpreted, in any dtype, value or gradient")
    for (dtype, part), count in sorted(seen.items()):
        print(f"  {dtype:9}{part:10}{left[dtype, part]:5} of {count} steps")
    print(f"\n{'ops':>5}  without machine code, and the ops whose steps hold it")
    for each, names in sorted(blamed.items(), key=lambda item: (-len(item[1]), item[0].type, item[0].reason)):
        shown = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
        print(f"{len(names):5}  {each.type}: {each.reason}   [{shown}]")


if __name__ == "__main__":
    main()
