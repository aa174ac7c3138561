"""The signatures of all ops for the Python client, which builds programs without a service: one line of JSON per op."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from core.ir.attr_values import BlockIndex
from core.ir.registry import OpSpec, Slot, block_attrs
from core.ops.other_names import listed, suggestion
from core.optim.initializers import INITIALIZERS
from service.routes.ops import CATALOGUE, attributes_of, schema_of

__all__ = ["signatures"]


def signatures() -> str:
    """The text of backpass_client/builder/ops.json.

    In the names of slots, "?" marks an optional one and "*" a variadic one. `elementwise`: the inputs broadcast, and
    the output has their shape. `blocks`: attributes that hold inner blocks. `other_names`: names that other libraries
    have, without case and separators -> a sentence with the ops that they mean here.
    """
    initializers = json.dumps(INITIALIZERS)
    names = _lines({name: suggestion(name) for name in sorted(listed())})
    ops = _lines({name: _op(spec) for name, spec in sorted(CATALOGUE.items())})
    return f'{{\n  "initializers": {initializers},\n  "other_names": {names},\n  "ops": {ops}\n}}\n'


def _lines(members: Mapping[str, Any]) -> str:
    """A JSON object with a member in each line."""
    return (
        "{\n" + ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in members.items()) + "\n  }"
    )


def _op(spec: OpSpec) -> dict[str, Any]:
    attributes = attributes_of(spec)
    members: dict[str, Any] = {
        "summary": spec.doc.split("\n\n")[0].replace("\n", " "),
        "inputs": [_slot(slot) for slot in spec.inputs],
        "outputs": [f"{name}*" if spec.variadic_outputs else name for name in spec.outputs],
        "attributes": {attr.name: schema_of(attr) for attr in attributes},
        "required": [attr.name for attr in attributes if attr.required],
        "elementwise": spec.elementwise,
        "blocks": [*block_attrs(spec, BlockIndex), *block_attrs(spec)],
    }
    return {name: value for name, value in members.items() if value}


def _slot(slot: Slot) -> str:
    return slot.name + "?" * slot.optional + "*" * slot.variadic
