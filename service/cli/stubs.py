"""Types of the ops of the Python client, for type checkers and editors: one function per op."""

from __future__ import annotations

import keyword
from typing import Any

from core.ir.attr_values import BlockIndex
from core.ir.registry import OpSpec, block_attrs
from service.routes.ops import CATALOGUE, attributes_of, schema_of

__all__ = ["stub"]

HEAD = '''"""The ops as type checkers and editors see them, written by `make catalogue` from their declarations."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from backpass_client.arguments import DtypeName
from backpass_client.builder.symbol import Symbol
from backpass_client.expression import Expression

R = TypeVar("R", Symbol, Expression)
Array = float | Sequence[Any] | np.ndarray[Any, Any]
Dtype = str | DtypeName | type[np.generic] | np.dtype[Any]
Number = float | Literal['inf', '-inf']
'''
INFINITY = "Literal['inf', '-inf']"
SCALARS = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "None"}


def stub() -> str:
    """The text of backpass_client/_ops.pyi. It leaves out ops with inner blocks, which are functions of functions."""
    ops = {name: spec for name, spec in sorted(CATALOGUE.items()) if not keyword.iskeyword(name) and not _blocks(spec)}
    names = "".join(f'    "{name}",\n' for name in ops)
    several = sorted({spec.outputs for spec in ops.values() if _is_several(spec)})
    parts = [*map(_results, several), *map(_function, ops.values())]
    return f"{HEAD}\n__all__ = [\n{names}]\n\n" + "\n".join(parts)


def _blocks(spec: OpSpec) -> bool:
    return bool([*block_attrs(spec, BlockIndex), *block_attrs(spec)])


def _is_several(spec: OpSpec) -> bool:
    """Whether the op has several results, each with a name."""
    return len(spec.outputs) > 1 and not spec.variadic_outputs


def _class_of(outputs: tuple[str, ...]) -> str:
    """The name of the class of these results."""
    return "_" + "".join(name.title().replace("_", "") for name in outputs)


def _results(outputs: tuple[str, ...]) -> str:
    """The class of results with these names. `index` and `count` are methods of other tuples."""
    override = "  # type: ignore[assignment]"
    members = [f"    {name}: R{override if hasattr(tuple, name) else ''}\n" for name in outputs]
    return f"class {_class_of(outputs)}(tuple[{', '.join('R' for _ in outputs)}]):\n{''.join(members)}"


def _function(spec: OpSpec) -> str:
    arguments: list[str] = []
    optional = many = False  # after an optional slot all are optional to Python, after a list all are given by name
    for slot in spec.inputs:
        optional = optional or slot.optional
        if slot.variadic:
            arguments.append(f"{'' if many else '*'}{slot.name}: {'' if many else 'R | Array | '}Sequence[R | Array]")
            many = True
        else:
            arguments.append(f"{slot.name}: R | Array" + (" | None = None" if optional else ""))
    attributes = attributes_of(spec)
    if attributes and not many:
        arguments.append("*")
    for attr in attributes:
        schema = schema_of(attr)
        default = "" if attr.required else f" = {schema.get('default')!r}"
        arguments.append(f"{attr.name}: {_type(schema)}{default}")
    one = "R" if spec.inputs else "Any"
    result = f"tuple[{one}, ...]" if spec.variadic_outputs else one
    if _is_several(spec):
        result = f"{_class_of(spec.outputs)}[{one}]"
    summary = spec.doc.split("\n\n")[0].replace("\n", " ").replace("\\", "\\\\")
    return f'def {spec.name}({", ".join(arguments)}) -> {result}:\n    """{summary}"""\n'


def _type(schema: dict[str, Any]) -> str:
    """The Python type of the values that `schema` allows. A dtype may be any text: symbols have theirs as text."""
    if "anyOf" in schema:
        found = list(dict.fromkeys(map(_type, schema["anyOf"])))
        if INFINITY in found:
            found = ["Number", *(each for each in found if each not in ("float", INFINITY))]
        return " | ".join(found)
    if "enum" in schema:
        if "float32" in schema["enum"]:
            return "Dtype"
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if schema.get("type") == "array":
        return f"Sequence[{_type(schema.get('items', {}))}]"
    return SCALARS.get(str(schema.get("type")), "Any")
