"""The catalogue of ops, read from their declarations."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Response
from pydantic import Field

import core.compile  # noqa: F401  (declares every op)
from core.ir import Block
from core.registry import CONSTRUCTS, REGISTRY, Attr, BlockIndex, Example, Extended, LocalName, OpSpec, plain
from service import tensors
from service.body import JSON
from service.problems import HttpProblem, responses
from service.schemas.programs import Strict

__all__ = ["router"]

router = APIRouter(prefix="/v1/ops", tags=["ops"])

CACHE = {"Cache-Control": "public, max-age=3600"}
SCHEMAS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Extended: {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]},
    Block: {"type": "integer", "description": "Index of an inner block with params and results."},
    BlockIndex: {"type": "integer", "description": "Index of an inner block."},
    LocalName: {"type": "string", "description": "A name in the inner block."},
}
CATALOGUE: dict[str, OpSpec] = REGISTRY | CONSTRUCTS
"""By name; where an op of the core is written in another way on the wire, the latter."""


class OpSummary(Strict):
    """One op."""

    type: str
    kind: str = Field(description="primitive, composite (written in other ops), control, or construct (of the wire).")
    summary: str
    differentiable: bool


class OpCatalogue(Strict):
    """All ops, by name."""

    ops: list[OpSummary]


class OpDetail(OpSummary):
    """One op, whole."""

    documentation: str
    inputs: list[dict[str, Any]] = Field(description="Slots in order; optional ones may be left out.")
    outputs: list[dict[str, Any]]
    attributes: dict[str, Any] = Field(description="JSON Schema of the attributes.")
    no_gradient: str | None = Field(None, description="Why there is no gradient.")
    examples: list[dict[str, Any]]


@router.get("", summary="List all ops", response_model=OpCatalogue)
async def list_ops() -> Response:
    """Every op type that a program may use."""
    ops = [_summary(CATALOGUE[name]) for name in sorted(CATALOGUE)]
    return Response(tensors.dumps({"ops": ops}), media_type=JSON, headers=CACHE)


@router.get(
    "/{type}", summary="Look at one op", response_model=OpDetail, responses=responses("not-found", "invalid-request")
)
async def get_op(
    type: Annotated[str, Path(max_length=64, description="Name of the op.", examples=["matmul"])],
) -> Response:
    """Its slots, attributes, documentation and examples."""
    spec = CATALOGUE.get(type)
    if spec is None:
        raise HttpProblem("not-found", "there is no op of this name; GET /v1/ops lists all")
    return Response(tensors.dumps(_detail(spec)), media_type=JSON, headers=CACHE)


def _summary(spec: OpSpec) -> dict[str, Any]:
    first = spec.doc.split("\n\n")[0].replace("\n", " ")
    return {"type": spec.name, "kind": spec.kind, "summary": first, "differentiable": spec.differentiable}


def _detail(spec: OpSpec) -> dict[str, Any]:
    properties = {a.name: _schema(a) for a in spec.attrs}
    return _summary(spec) | {
        "documentation": spec.doc,
        "inputs": [{"name": s.name, "optional": s.optional, "variadic": s.variadic} for s in spec.inputs],
        "outputs": [{"name": name, "variadic": spec.variadic_outputs} for name in spec.outputs],
        "attributes": {
            "type": "object",
            "properties": properties,
            "required": [a.name for a in spec.attrs if a.required],
            "additionalProperties": False,
        },
        "no_gradient": spec.no_gradient or spec.unavailable,
        "examples": [_example(e) for e in spec.example_rule()] if spec.example_rule else [],
    }


def _schema(attr: Attr) -> dict[str, Any]:
    schema = _of(attr.type)
    return schema if attr.required else schema | {"default": plain(attr.default)}


def _of(annotation: Any) -> dict[str, Any]:
    """The JSON Schema of an attribute's annotation."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(a) if a is not type(None) else {"type": "null"} for a in args]}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _of(args[0])}
    return dict(SCHEMAS.get(annotation, {}))


def _example(example: Example) -> dict[str, Any]:
    def shown(value: Any) -> Any:
        return [shown(each) for each in value] if isinstance(value, list) else tensors.encode(np.asarray(value))

    return {
        "inputs": [shown(x) for x in example.inputs],
        "outputs": [shown(x) for x in example.outputs],
        "attributes": {name: plain(value) for name, value in example.attrs.items()},
    }
