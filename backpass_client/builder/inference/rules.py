"""The table of type rules, and the call of one.

A rule takes the types of the input slots in order (None for an empty slot, a list for a variadic one) and the
attributes by name, with their defaults; it returns the type of the output, or a tuple or list of types. It raises
InvalidOp for operands that the service would refuse, and NotKnown where it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backpass_client.builder.inference.sizes import broadcast
from backpass_client.builder.signatures import OpSignature, signature_of
from backpass_client.builder.types import UNKNOWN, InvalidOp, NotKnown, Type

__all__ = ["RULES", "has_rule", "output_types", "rule"]

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""Op -> its rule. Ops that the table of signatures marks as elementwise need none."""


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Decorator: the rule of `ops`."""

    def declare(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return declare


def has_rule(op: str) -> bool:
    """Whether the types of the outputs of `op` are inferred."""
    return op in RULES or signature_of(op).is_elementwise


def output_types(signature: OpSignature, given: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[list[Type], int]:
    """(types of the outputs, their number). Raises InvalidOp, which shows the types of the operands."""
    found = RULES.get(signature.type) or (_elementwise if signature.is_elementwise else None)
    count = len(signature.outputs)
    if found is not None:
        try:
            types = found(*(given.get(slot) for slot in signature.slots), **{**signature.defaults, **attrs})
            listed = [types] if isinstance(types, Type) else list(types)
            return listed, len(listed)
        except (NotKnown, IndexError, ValueError):  # the last two: a rank that the rule does not expect
            pass
        except InvalidOp as error:
            raise type(error)(f"{signature.type}({_shown(given)}): {error}") from None
    if signature.is_variadic:
        raise InvalidOp(
            f"{signature.type}({_shown(given)}): the number of outputs is not known; declare the operands with bp.typed"
        )
    return [UNKNOWN] * count, count


def _elementwise(*types: Any, **attrs: Any) -> Type:
    return broadcast(*(type for type in types if type is not None), axis=attrs.get("axis"))


def _shown(given: Mapping[str, Any]) -> str:
    def text(types: Any) -> str:
        return f"[{', '.join(map(str, types))}]" if isinstance(types, list) else str(types)

    return ", ".join(f"{slot}={text(types)}" for slot, types in given.items())
