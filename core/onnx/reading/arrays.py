"""Dtypes of ONNX, and arrays from the tensors of a protobuf."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from core.ir import FLOATS
from core.ir.errors import ProgramError

__all__ = ["array_of", "dtype_name", "is_trainable_dtype", "name_of_array", "onnx_dtype"]

_NAMES: dict[int, str] = {
    TensorProto.BOOL: "bool",
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
}
_NUMBERS = {name: number for number, name in _NAMES.items()}


def dtype_name(number: int) -> str:
    """The dtype of a program for an ONNX element type. Raises ProgramError for strings, complex numbers and so on."""
    if number in _NAMES:
        return _NAMES[number]
    known = number in onnx.TensorProto.DataType.values()
    found = onnx.TensorProto.DataType.Name(number).lower() if known else f"number {number}"
    raise ProgramError(f"the element type {found} has no counterpart in a program", "unsupported_type")


def onnx_dtype(name: str) -> int:
    """The ONNX element type of a program's dtype."""
    return _NUMBERS[name]


def name_of_array(array: np.ndarray) -> str:
    """The dtype of a program for a NumPy array. Raises ProgramError."""
    name = array.dtype.name
    if name not in _NUMBERS:
        raise ProgramError(f"the element type {name} has no counterpart in a program", "unsupported_type")
    return name


def is_trainable_dtype(name: str) -> bool:
    return name in FLOATS


def array_of(tensor: TensorProto) -> np.ndarray:
    """The array of a tensor whose data lies in the protobuf. Raises ProgramError."""
    dtype_name(tensor.data_type)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ProgramError(f"tensor {tensor.name!r} cannot be read: {error}", "malformed_model") from None
