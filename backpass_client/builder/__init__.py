"""Programs written in Python, which need no service to write and print.

    @bp.program
    def line(x: bp.f32["batch", 2], y: bp.f32["batch"]):
        w = bp.parameter("w", [2])
        return {"loss": bp.mse_loss(x @ w, y)}

    print(line)

The ops and operators are those of the tape. Files: types, signatures (a generated table of the ops), inference (types
of results), blocks and symbol (the records), open_slices, build (the builder itself), trees, leaves, loops, branches,
calls (functions with gradients), document and printing, program (tracing).
"""

from __future__ import annotations

from backpass_client.builder.branches import cond, safe_where, switch
from backpass_client.builder.build import Builder
from backpass_client.builder.calls import Function
from backpass_client.builder.leaves import constant, feed, parameter, scope, state, typed, update
from backpass_client.builder.loops import scan, while_loop
from backpass_client.builder.program import BuiltProgram, built, explain, program
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import Dtype, InvalidOp, Type

__all__ = [
    "Builder",
    "BuiltProgram",
    "Dtype",
    "Function",
    "InvalidOp",
    "Symbol",
    "Type",
    "bf16",
    "bool_",
    "built",
    "cond",
    "constant",
    "explain",
    "f16",
    "f32",
    "f64",
    "feed",
    "i8",
    "i16",
    "i32",
    "i64",
    "parameter",
    "program",
    "safe_where",
    "scan",
    "scope",
    "state",
    "switch",
    "typed",
    "u8",
    "update",
    "while_loop",
]

f16, bf16, f32, f64 = map(Dtype, ("float16", "bfloat16", "float32", "float64"))
u8, i8, i16, i32, i64 = map(Dtype, ("uint8", "int8", "int16", "int32", "int64"))
bool_ = Dtype("bool")
