"""The dtypes of ONNX, and the dtypes that onnxruntime computes each operator with on a CPU.

An operator of the standard may take a dtype for which onnxruntime has no kernel. `computed_in` gives a wider dtype with
a kernel that computes the same result, so that written models run.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from core.onnx.writing.registry import Refused

__all__ = ["ELEM", "computed_in", "lacking", "numpy_dtype"]

ELEM: dict[str, int] = {
    "bool": TensorProto.BOOL,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint64": TensorProto.UINT64,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
}

BFLOAT16 = frozenset({
    "Cast", "Concat", "ConstantOfShape", "Gather", "GatherElements", "GatherND", "Identity", "If", "IsInf", "IsNaN",
    "Loop", "Reshape", "Scan", "ScatterND", "Shape", "Sign", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators with a kernel for bfloat16."""

LACKS: dict[str, str] = {
    "ArgMax": "int16 bool",
    "ArgMin": "int16 bool",
    "Abs": "bool",
    "Add": "bool",
    "Clip": "int16",
    "Conv": "float64",
    "ConvTranspose": "float64",
    "CumSum": "uint8 int8 int16 bool",
    "Det": "float64",
    "Einsum": "uint8 int8 int16 bool",
    "Erf": "float64",
    "Less": "bool",
    "LessOrEqual": "bool",
    "Greater": "bool",
    "GreaterOrEqual": "bool",
    "MatMul": "uint8 int8 int16",
    "Max": "int16 bool",
    "Min": "int16 bool",
    "Mul": "bool",
    "Neg": "uint8",
    "NonZero": "int8 int16 float64",
    "OneHot": "uint8 int8 int16 int32 bool float64",
    "Pad": "int16",
    "Pow": "uint8 int8 int16",
    "ReduceMax": "int16 bool",
    "ReduceMin": "int16 bool",
    "ReduceProd": "uint8 int8 int16 bool",
    "ReduceSum": "uint8 int8 int16 bool",
    "Relu": "int16 int64",
    "Sub": "bool",
    "Sum": "uint8 int8 int16 int32 int64",
    "Tan": "float64",
    "Asin": "float64",
    "Acos": "float64",
    "Atan": "float64",
    "TopK": "bool",
    "Unique": "uint8 int16 int32 bool",
    "Where": "int16 bool",
}
"""Operator -> dtypes that it has no kernel for."""

WIDER = {
    "bool": ("uint8", "int32", "int64"),
    "uint8": ("int32", "int64"),
    "int8": ("int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "bfloat16": ("float32",),
    "float16": ("float32",),
}
"""dtype -> dtypes that hold all of its values, the narrowest first."""


def _runs(operator: str, dtype: str) -> bool:
    if dtype == "bfloat16":
        return operator in BFLOAT16
    return dtype not in LACKS.get(operator, "").split()


def computed_in(operator: str, dtype: str) -> str:
    """`dtype`, or the narrowest wider dtype with a kernel. Raises Refused if there is none."""
    if _runs(operator, dtype):
        return dtype
    for wider in WIDER.get(dtype, ()):
        if _runs(operator, wider):
            return wider
    raise lacking(operator, dtype)


def lacking(operator: str, dtype: str) -> Refused:
    """The refusal of an operator that has no kernel for this dtype or a wider one."""
    reason = f"onnxruntime has no {dtype} kernel for the ONNX operator {operator}"
    narrower = "; declare the leaves of the program as float32, or cast the inputs of this op to float32"
    return Refused(reason + narrower if dtype == "float64" else reason)


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype of a core dtype."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)
