"""Functions of a program, which may have gradients of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from backpass_client.builder.blocks import Op
from backpass_client.builder.build import Builder, current_builder
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.trees import flattened, labels, like
from backpass_client.builder.types import InvalidOp, Type, same_sizes

__all__ = ["Function", "Instance"]

P = ParamSpec("P")
T = TypeVar("T")
Rule = TypeVar("Rule", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class Instance:
    """A function for operands of certain types. gradient: the name of its rule. tree: the structure of its results."""

    builder: Builder
    results: list[Symbol | None]
    gradient: str | None = None
    tree: Any = None


class Function(Generic[P, T]):
    """A Python function that becomes a function of each program that calls it: see `function`."""

    def __init__(self, body: Callable[P, T]) -> None:
        self.body = body
        self.rule: Callable[..., Any] | None = None
        update_wrapper(self, body)

    def gradient(self, rule: Rule) -> Rule:
        """Decorator: the gradient of this function.

        rule: function of the operands, the results and one cotangent for each result, to one cotangent for each
              operand, None for an operand without a gradient.
        """
        self.rule = rule
        return rule

    def __call__(self, *operands: Any) -> Any:
        """The results of the function on `operands`. Raises InvalidOp."""
        b = current_builder(f"function {self.body.__name__!r}")
        given = [b.operand(x) for x in operands]
        if b.is_function:  # a function of a program contains no other
            if self.rule is not None:
                raise InvalidOp(
                    f"{self.body.__name__!r} has a gradient of its own and cannot be called in function {b.title!r}"
                )
            body: Callable[..., Any] = self.body
            return body(*given)
        for each in given:
            if not each.type.is_known:
                raise InvalidOp(f"{self.body.__name__!r} needs operands of known type, not {each!r}; see bp.typed")
        key = (self, tuple(each.type for each in given))
        if key not in b.shared:
            b.shared[key] = self._add(b, given)
        name = b.shared[key]
        instance = b.functions[name]
        hints = labels(instance.tree, name)
        outputs = [b.symbol(h, x.type) for h, x in zip(hints, instance.results, strict=True)]
        b.append(Op("call", {"x": given}, {"out": [*outputs]}, {"function": name}))
        return like(instance.tree, outputs)

    def _add(self, b: Builder, given: Sequence[Symbol]) -> str:
        """Add the function for operands of these types to the program; its name there."""
        title = self.body.__name__.lstrip("_").replace("<lambda>", "function") or "function"
        name, number = title, 0
        while name in b.functions:
            number += 1
            name = f"{title}_{number}"
        parameters = [f"x{i}" for i in range(len(given))]
        try:
            declared = list(inspect.signature(self.body).parameters.values())
            if len(declared) == len(given) and all(p.kind is not p.VAR_POSITIONAL for p in declared):
                parameters = [p.name for p in declared]
        except (TypeError, ValueError):
            pass
        types = [each.type for each in given]
        instance = _traced(self.body, name, parameters, types)
        if not instance.results:
            raise InvalidOp(f"function {name!r} returns nothing")
        b.functions[name] = instance
        if self.rule is not None:
            results = [x.type for x in instance.results if x is not None]
            extra = [*(f"result_{i}" for i in range(len(results))), *(f"ct_{i}" for i in range(len(results)))]
            for each in results:
                if not each.is_known:
                    raise InvalidOp(
                        f"the results of {name!r} need known types, because it has a gradient; see bp.typed"
                    )
            rule = _traced(self.rule, f"{name}_gradient", [*parameters, *extra], [*types, *results, *results], True)
            if len(rule.results) != len(given):
                found = f"{len(rule.results)} cotangents for {len(given)} operands"
                raise InvalidOp(f"the gradient of {name!r} returns {found}; None stands for no gradient")
            for cotangent, type, parameter in zip(rule.results, types, parameters, strict=True):
                if cotangent is not None and not _fits(cotangent.type, type):
                    message = f"the cotangent of {parameter!r} must be {type}, not {cotangent.type}"
                    raise InvalidOp(f"the gradient of {name!r}: {message}")
            instance.gradient = f"{name}_gradient"
            while instance.gradient in b.functions:
                instance.gradient += "_"
            b.functions[instance.gradient] = rule
        return name


def _traced(
    body: Callable[..., Any], name: str, parameters: Sequence[str], types: Sequence[Type], is_rule: bool = False
) -> Instance:
    """`body` as a function of operands of `types`."""
    with Builder(name, is_function=True) as inner:
        arguments = [inner.feed(each, type) for each, type in zip(parameters, types, strict=True)]
        tree = body(*arguments)
        values = list(tree) if is_rule and isinstance(tree, tuple | list) else [tree] if is_rule else flattened(tree)
        results: list[Symbol | None] = []
        for value in values:
            symbol = None if value is None else inner.operand(value)
            if symbol is not None and (symbol in results or symbol in arguments):
                copied = inner.symbol("copy", symbol.type)
                inner.assign(symbol, copied)
                symbol = copied
            results.append(symbol)
    return Instance(inner, results, tree=tree)


def _fits(found: Type, wanted: Type) -> bool:
    if None not in (found.dtype, wanted.dtype) and found.dtype != wanted.dtype:
        return False
    if found.shape is None or wanted.shape is None:
        return True
    return len(found.shape) == len(wanted.shape) and all(map(same_sizes, found.shape, wanted.shape))
