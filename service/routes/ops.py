"""The catalogue of ops, from their declarations."""

from __future__ import annotations

import types
import typing
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

import core.ops
import core.optim.schedules
import core.wire.read  # noqa: F401  (these declare all ops)
from core.ir import Block
from core.ir.attr_values import INFINITE, BlockIndex, LocalName, json_value
from core.ir.bounds import Bounds
from core.ir.registry import CONSTRUCTS, REGISTRY, Attr, Example, Family, Kind, OpSpec
from core.ops.elementwise.axis_aligned import ALIGNED
from core.ops.other_names import suggestion, suggestions
from core.wire.samples import SAMPLES, Sample
from service.formats import json_tensors as tensors
from service.http.entity_tags import of_view, unchanged
from service.problems import FieldError, HttpProblem, responses
from service.routes.common import json_answer
from service.routes.preconditions import TAGGED
from service.schemas.members import NextPage
from service.schemas.programs import Strict

__all__ = ["CATALOGUE", "FAMILIES", "attributes_of", "documentation_of", "router", "sampled", "schema_of"]

router = APIRouter(prefix="/v1/ops", tags=["ops"])

TOKEN = "op:"
"""The beginning of page tokens, which makes them differ from those of other lists."""
CACHE = {"Cache-Control": "public, max-age=3600"}
SCHEMAS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Block: {"type": "integer", "description": "Index of an inner block with params and results."},
    BlockIndex: {"type": "integer", "description": "Index of an inner block."},
    LocalName: {"type": "string", "description": "A name in the inner block."},
}
CATALOGUE: dict[str, OpSpec] = REGISTRY | CONSTRUCTS
"""All ops by name. Where the wire form of an op of the core differs, the wire form."""


FAMILIES: dict[str, Family] = {
    spec.family.name: spec.family for spec in sorted(CATALOGUE.values(), key=lambda spec: spec.family.name)
}
"""By name."""

TEXTS = {name: f"{name} {spec.doc}".casefold() for name, spec in CATALOGUE.items()}


class OpSummary(Strict):
    """One op."""

    type: str = Field(description="Name of the op, as in `type` of an op in a program.")
    kind: str = Field(
        description="primitive, composite (defined by other ops), control, or construct (exists in requests only)."
    )
    family: str = Field(description="Group of related ops: elementwise, reduction, linalg, control, ...")
    summary: str = Field(description="First paragraph of the documentation.")
    differentiable: bool = Field(description="Whether the op has a gradient.")


class OpPage(Strict):
    """One page of ops, ordered by name."""

    ops: list[OpSummary] = Field(description="Ops, ordered by name.")
    families: dict[str, int] = Field(description="Family -> number of its ops that match the filters.")
    total: int = Field(description="Number of ops that match the filters, on all pages.")
    next_page_token: NextPage = None


class OpDetail(OpSummary):
    """One op with its slots, attributes and examples."""

    documentation: str = Field(description="The whole documentation, as Markdown.")
    inputs: list[dict[str, Any]] = Field(description="Input slots, in order.")
    outputs: list[dict[str, Any]] = Field(description="Output slots, in order.")
    attributes: dict[str, Any] = Field(description="JSON Schema of the attributes.")
    no_gradient: str | None = Field(None, description="Reason why the op has no gradient; null if it has one.")
    examples: list[dict[str, Any]] = Field(description="Inputs, outputs and attributes, or a whole request.")


@router.get("", summary="List ops", response_model=OpPage, responses=TAGGED | responses("invalid-request"))
async def list_ops(
    request: Request,
    family: Annotated[
        str | None, Query(max_length=64, description="Only ops of this family.", examples=["reduction"])
    ] = None,
    kind: Annotated[Kind | None, Query(description="Only ops of this kind.")] = None,
    differentiable: Annotated[
        bool | None, Query(description="true: only ops with a gradient; false: only ops without.")
    ] = None,
    search: Annotated[
        str,
        Query(
            max_length=200,
            description="Words that occur in the name or the documentation, in any order; or a name that another "
            "library has for the op, such as `clamp` or `BatchNorm2d`.",
        ),
    ] = "",
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of ops in the answer.")] = 50,
    page_token: Annotated[
        str, Query(max_length=64, pattern=r"^(op:[a-z0-9_]+)?$", description="`next_page_token` of the previous page.")
    ] = "",
) -> Response:
    """One page of the op types that programs may use, ordered by name."""
    if family is not None and family not in FAMILIES:
        detail = f"unknown family of ops; known are {', '.join(FAMILIES)}"
        errors = [FieldError("", "unknown", "unknown family", parameter="query: family")]
        raise HttpProblem("invalid-request", detail, errors=errors)
    words, meant = search.casefold().split(), set(suggestions(search)) if search else set()
    found = [
        spec
        for name, spec in sorted(CATALOGUE.items())
        if family in (None, spec.family.name)
        and kind in (None, spec.kind)
        and differentiable in (None, spec.differentiable)
        and (name in meant or all(word in TEXTS[name] for word in words))
    ]
    rest = [spec for spec in found if spec.name > page_token.removeprefix(TOKEN)]
    page = rest[:page_size]
    content = {
        "ops": [_summary(spec) for spec in page],
        "families": dict(sorted(Counter(spec.family.name for spec in found).items())),
        "total": len(found),
        "next_page_token": f"{TOKEN}{page[-1].name}" if len(rest) > page_size else None,
    }
    return _answer(request, content)


@router.get(
    "/{type}",
    summary="Read about one op",
    response_model=OpDetail,
    responses=TAGGED | responses("not-found", "invalid-request"),
)
async def get_op(
    request: Request,
    type: Annotated[
        str, Path(max_length=64, description="Name of the op.", openapi_examples={"matmul": {"value": "matmul"}})
    ],
) -> Response:
    """Slots, attributes, documentation and examples of an op."""
    spec = CATALOGUE.get(type)
    if spec is None:
        detail = "no op has this name; GET /v1/ops lists all"
        place = FieldError("", "unknown_op", "unknown op", suggestion=suggestion(type), parameter="path: type")
        raise HttpProblem("not-found", detail, errors=[place])
    return _answer(request, _detail(spec))


def _answer(request: Request, view: Mapping[str, Any]) -> Response:
    """A part of the catalogue, which changes with the version of the service."""
    tag = of_view(view)
    return unchanged(request, tag, "catalogue", CACHE) or json_answer(view, headers={"ETag": tag, **CACHE})


def _summary(spec: OpSpec) -> dict[str, Any]:
    first = spec.doc.split("\n\n")[0].replace("\n", " ")
    return {
        "type": spec.name,
        "kind": spec.kind,
        "family": spec.family.name,
        "summary": first,
        "differentiable": spec.differentiable,
    }


def documentation_of(spec: OpSpec) -> str:
    return spec.doc if spec.name not in ALIGNED else f"{spec.doc}\n\nWith `axis` it is `{ALIGNED[spec.name]}`."


def attributes_of(spec: OpSpec) -> tuple[Attr, ...]:
    """The attributes of the op in requests."""
    return spec.attrs if spec.name not in ALIGNED else (*spec.attrs, *CATALOGUE[ALIGNED[spec.name]].attrs)


def _detail(spec: OpSpec) -> dict[str, Any]:
    properties = {a.name: schema_of(a) for a in attributes_of(spec)}
    return _summary(spec) | {
        "documentation": documentation_of(spec),
        "inputs": [{"name": s.name, "optional": s.optional, "variadic": s.variadic} for s in spec.inputs],
        "outputs": [{"name": name, "variadic": spec.variadic_outputs} for name in spec.outputs],
        "attributes": {
            "type": "object",
            "properties": properties,
            "required": [a.name for a in spec.attrs if a.required],
            "additionalProperties": False,
        },
        "no_gradient": spec.no_gradient or spec.unavailable,
        "examples": _examples(spec),
    }


def schema_of(attr: Attr) -> dict[str, Any]:
    """The JSON Schema of an attribute."""
    schema = _of(attr.type)
    return schema if attr.required else schema | {"default": json_value(attr.default)}


def _of(annotation: Any) -> dict[str, Any]:
    """The JSON Schema of an attribute's annotation."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(a) if a is not type(None) else {"type": "null"} for a in args]}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _of(args[0])}
    if origin is Annotated:
        bounds = next(note for note in args[1:] if isinstance(note, Bounds))
        bounded = _of(args[0]) | _bounds(bounds, "Items" if typing.get_origin(args[0]) is tuple else "Length")
        return {"anyOf": [bounded, {"enum": list(INFINITE)}]} if bounds.infinite else bounded
    return dict(SCHEMAS.get(annotation, {}))


def _bounds(bounds: Bounds, length: str) -> dict[str, Any]:
    """The keywords of JSON Schema for `bounds`. length: "Items" of a list, "Length" of a string."""
    named = {
        "minimum": bounds.ge,
        "exclusiveMinimum": bounds.gt,
        "maximum": bounds.le,
        "exclusiveMaximum": bounds.lt,
        f"min{length}": bounds.min_length,
        f"max{length}": bounds.max_length,
        "not": {"const": 0} if bounds.nonzero else None,
    }
    return {keyword: value for keyword, value in named.items() if value is not None}


def _examples(spec: OpSpec) -> list[dict[str, Any]]:
    if spec.name in SAMPLES:
        return [sampled(SAMPLES[spec.name])]
    return [_example(e) for e in spec.example_rule()] if spec.example_rule else []


def sampled(sample: Sample) -> dict[str, Any]:
    """An example that is a program: a body of POST /v1/gradients and its answer."""
    types = {var["name"]: np.dtype(var["dtype"]) for var in sample.document["blocks"][0]["vars"]}
    shapes = {var["name"]: var["shape"] for var in sample.document["blocks"][0]["vars"]}

    def tensor(name: str, value: Any) -> dict[str, Any]:
        flat = np.array(value, types[name]).reshape(-1).tolist()
        return {"dtype": types[name].name, "shape": shapes[name], "data": flat}

    feeds = {name: tensor(name, value) for name, value in sample.feeds.items()}
    request = {"program": sample.document, "loss": "loss", "parameters": {"w": tensor("w", sample.w)}, "feeds": feeds}
    loss = {"dtype": "float64", "shape": [], "data": [sample.loss]}
    return {"request": request, "answer": {"loss": loss, "gradients": {"w": tensor("w", sample.gradient)}}}


def _example(example: Example) -> dict[str, Any]:
    def shown(value: Any) -> Any:
        return [shown(each) for each in value] if isinstance(value, list) else tensors.encode(np.asarray(value))

    return {
        "inputs": [shown(x) for x in example.inputs],
        "outputs": [shown(x) for x in example.outputs],
        "attributes": {name: json_value(value) for name, value in example.attrs.items()},
    }
