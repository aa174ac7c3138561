"""Operators of torch in operators that only the service reads: ONNX lacks them, or has only formulas for them that
overflow or have no gradient at some points.

torch, onnx and onnxscript are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["of_service"]

DOMAIN = "backpass"


def of_service() -> dict[Any, Callable[..., Any]]:
    """Translations by operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten.detach.default: lambda x: _operator("StopGradient", x, like="Identity"),
        aten.atan2.default: lambda y, x: _operator("Atan2", y, x),
        aten.digamma.default: lambda x: _operator("Digamma", x),
        aten.erfinv.default: lambda x: _operator("Erfinv", x),
        aten.hypot.default: lambda x, y: _operator("Hypot", x, y),
        aten.lgamma.default: lambda x: _operator("Lgamma", x),
        aten.logaddexp.default: lambda x, y: _operator("Logaddexp", x, y),
        aten.xlogy.Tensor: lambda x, y: _operator("Xlogy", x, y),
        aten.cumprod.default: lambda x, dim, dtype=None: _operator("Cumprod", _cast(x, dtype), axis=dim),
        aten.logcumsumexp.default: lambda x, dim: _operator("Logcumsumexp", x, axis=dim),
    }


def _operator(name: str, *inputs: Any, like: str = "Atan", axis: int | None = None) -> Any:
    """An operator of the service. Its tensors have one type, which may be any of those of the ONNX operator `like`."""
    from onnx.defs import OpSchema, get_schema
    from onnxscript.values import Op, Opset

    given = {} if axis is None else {"axis": axis}
    tensors = sorted(
        each for each in get_schema(like).type_constraints[0].allowed_type_strs if each.startswith("tensor(")
    )
    schema = OpSchema(
        name, DOMAIN, 1,
        inputs=[OpSchema.FormalParameter(f"x{i}", "T") for i in range(len(inputs))],
        outputs=[OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", tensors, "")],
        attributes=[OpSchema.Attribute(each, OpSchema.AttrType.INT) for each in given],
    )  # fmt: skip
    return Op(Opset(DOMAIN, 1), name, schema)(*inputs, **given)


def _cast(x: Any, dtype: int | None) -> Any:
    from onnxscript import opset20 as op

    return x if dtype is None or dtype == -1 else op.Cast(x, to=dtype)
