"""The dtypes and shapes of the outputs of ONNX operators that follow from their name and their inputs."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["dtype_of", "shape_of"]

TO_BOOL = frozenset({
    "And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor",
})  # fmt: skip
TO_INT64 = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size"})

SAME_SHAPE = frozenset({
    "Abs", "Acos", "Asin", "Atan", "BitwiseNot", "Cast", "Ceil", "Clip", "Cos", "CumSum", "Erf", "Exp", "Floor",
    "Identity", "IsInf", "IsNaN", "LayerNormalization", "Log", "LogSoftmax", "Neg", "Not", "Reciprocal", "Relu",
    "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Sqrt", "Tan", "Tanh",
})  # fmt: skip
"""Operators whose output has the shape of their first input."""

BROADCAST = frozenset({
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Max", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Where", "Xor",
})  # fmt: skip
"""Operators whose inputs are broadcast."""


def dtype_of(operator: str, computed: str) -> str:
    """The dtype of an output. computed: the dtype that the operator computes in."""
    return "bool" if operator in TO_BOOL else "int64" if operator in TO_INT64 else computed


def shape_of(operator: str, shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The shape of the output; None if it is not known. shapes: of the inputs, with -1 for open sizes."""
    if operator in SAME_SHAPE:
        return shapes[0]
    known = [shape for shape in shapes if shape is not None]
    return _broadcast(known) if operator in BROADCAST and len(known) == len(shapes) else None


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes), default=0)
    out = []
    for i in range(1, rank + 1):
        sizes = [s[-i] for s in shapes if len(s) >= i]
        known = [n for n in sizes if n not in (1, -1)]
        out.append(known[0] if known else -1 if -1 in sizes else 1)
    return tuple(reversed(out))
