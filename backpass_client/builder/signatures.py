"""The signatures of all ops, from a table that `make catalogue` writes from their declarations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from backpass_client.arguments import Signature
from backpass_client.builder.types import InvalidOp
from backpass_client.op_table import hint_for, op_table

__all__ = ["OpSignature", "check_initializer", "signature_of"]


class OpSignature(Signature):
    """The slots and attributes of one op.

    defaults: attribute -> its default.
    blocks:   attributes that hold inner blocks.
    summary:  one sentence.
    """

    __slots__ = ("blocks", "defaults", "optional", "required", "schemas", "summary")

    def __init__(self, type: str, entry: Mapping[str, Any]) -> None:
        """entry: the op's line in the table; see `service.cli.signatures`."""
        self.schemas: dict[str, Any] = entry.get("attributes", {})
        inputs = [_slot(name) for name in entry.get("inputs", ())]
        outputs = [_slot(name) for name in entry["outputs"]]
        super().__init__(
            {"type": type, "inputs": inputs, "outputs": outputs, "attributes": {"properties": self.schemas}}
        )
        self.optional = frozenset(slot["name"] for slot in inputs if slot["optional"])
        self.required: list[str] = entry.get("required", [])
        self.defaults = {name: schema.get("default") for name, schema in self.schemas.items()}
        self.blocks: list[str] = entry.get("blocks", [])
        self.summary: str = entry.get("summary", "")

    def check(self, given: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        """Raises InvalidOp unless all required slots and attributes are there and each attribute has a legal value.

        attrs: as JSON values.
        """
        for slot in self.slots:
            if slot not in self.optional and (slot not in given or given[slot] == []):
                raise InvalidOp(f"{self.type} needs the input {slot!r}")
        for name in self.required:
            if name not in attrs:
                raise InvalidOp(f"{self.type} needs the attribute {name!r}")
        for name, value in attrs.items():
            wrong = _mistake(self.schemas[name], value)
            if wrong:
                named = isinstance(value, list) and any(isinstance(each, str) for each in value)
                hint = "; a size with a name comes from a symbol: see full_like, expand_as, reshape" if named else ""
                raise InvalidOp(f"attribute {name!r} of {self.type} must be {wrong}, not {value!r}{hint}")


@cache
def signature_of(type: str) -> OpSignature:
    """The signature of the op `type`. Raises InvalidOp for an unknown op, with the ops that its name may mean."""
    ops = op_table()["ops"]
    if type not in ops:
        hint = hint_for(type)
        raise InvalidOp(f"there is no op {type!r}{hint and '; '}{hint}")
    return OpSignature(type, ops[type])


def check_initializer(name: str, initializer: Mapping[str, Any]) -> None:
    """Raises InvalidOp unless `initializer`, with its type and attributes, can draw the parameter `name`."""
    known = op_table()["initializers"]
    kind = initializer.get("type")
    if kind is None:
        raise InvalidOp(f"the initializer of {name!r} needs a type, such as {{'type': 'normal', 'std': 0.02}}")
    if kind not in known:
        raise InvalidOp(f"the initializer {kind!r} of {name!r} does not exist; there are {', '.join(known)}")
    for each, value in initializer.items():
        if each == "type":
            continue
        if each not in known[kind]:
            has = ", ".join(known[kind]) or "none"
            raise InvalidOp(f"the initializer {kind} of {name!r} has no attribute {each!r}; it has {has}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidOp(f"attribute {each!r} of the initializer of {name!r} must be a number, not {value!r}")


def _slot(name: str) -> dict[str, Any]:
    """A slot of the catalogue from its name in the table, where "?" marks an optional and "*" a variadic one."""
    return {"name": name.rstrip("?*"), "optional": "?" in name, "variadic": "*" in name}


WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "True or False",
    "string": "a text",
    "null": "None",
    "array": "a list",
}
BOUNDS = {
    "minimum": ("of at least", lambda value, bound: value >= bound),
    "exclusiveMinimum": ("above", lambda value, bound: value > bound),
    "maximum": ("of at most", lambda value, bound: value <= bound),
    "exclusiveMaximum": ("below", lambda value, bound: value < bound),
    "minItems": ("with a length of at least", lambda value, bound: len(value) >= bound),
    "maxItems": ("with a length of at most", lambda value, bound: len(value) <= bound),
    "minLength": ("with a length of at least", lambda value, bound: len(value) >= bound),
    "maxLength": ("with a length of at most", lambda value, bound: len(value) <= bound),
    "not": ("other than", lambda value, bound: value != bound["const"]),
}


def _mistake(schema: Mapping[str, Any], value: Any) -> str:
    """An empty text if `schema` allows `value`; otherwise the values that it allows, in words."""
    if "anyOf" in schema:
        found = [_mistake(each, value) for each in schema["anyOf"]]
        return "" if "" in found else " or ".join(found)
    if "enum" in schema:
        return "" if value in schema["enum"] else "one of " + ", ".join(map(repr, schema["enum"]))
    kind = schema.get("type")
    bounds = " and ".join(f"{words} {_bound(schema[k])}" for k, (words, _) in BOUNDS.items() if k in schema)
    wanted = f"{WORDS.get(str(kind), 'a value')} {bounds}".rstrip()
    if not _is_a(kind, value):
        return wanted
    if kind == "array":
        for each in value:
            wrong = _mistake(schema.get("items", {}), each)
            if wrong:
                return f"a list, each {wrong}"
    fits = all(test(value, schema[keyword]) for keyword, (_, test) in BOUNDS.items() if keyword in schema)
    return "" if fits else wanted


def _bound(bound: Any) -> Any:
    return bound["const"] if isinstance(bound, dict) else bound


def _is_a(kind: str | None, value: Any) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
    return True
