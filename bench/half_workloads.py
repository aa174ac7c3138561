"""Mixed precision: parameters and feeds are float32, and the program casts them to 16 bits before use.

So the update is float32, as in training with automatic mixed precision, and every peer casts the same arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from examples.models import Program, op

__all__ = ["dtype_of", "in_16_bits"]

SUFFIXES = {"_bf16": "bfloat16", "_f16": "float16"}
"""End of a workload's name -> the dtype that it computes in."""


def dtype_of(name: str) -> str | None:
    """The 16-bit dtype that the workload `name` computes in; None for float32."""
    return next((dtype for suffix, dtype in SUFFIXES.items() if name.endswith(suffix)), None)


def in_16_bits(program: Program, arrays: Mapping[str, np.ndarray], dtype: str) -> Program:
    """A program of a single block with its float parameters and feeds, `arrays`, cast to `dtype`.

    The cross entropy takes its logits in float32.
    """
    (whole,) = program["blocks"]
    halves = {n: f"{n}/half" for n, value in arrays.items() if value.dtype == np.float32}
    casts = [op("cast", half, x=n, attrs={"dtype": dtype}) for n, half in halves.items()]
    read = lambda slots: {slot: [halves.get(n, n) for n in names] for slot, names in slots.items()}
    ops = [{**each, "inputs": read(each.get("inputs", {}))} for each in whole["ops"]]
    at = next(i for i, each in enumerate(ops) if each["type"] == "softmax_with_cross_entropy")
    (logits,) = ops[at]["inputs"]["logits"]
    ops[at]["inputs"]["logits"] = [f"{logits}/float32"]
    ops.insert(at, op("cast", f"{logits}/float32", x=logits, attrs={"dtype": "float32"}))
    return {"blocks": [{**whole, "ops": [*casts, *ops]}]}
