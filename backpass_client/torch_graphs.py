"""Nodes of programs of `torch.export`: their arguments, their places, and new ones.

torch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Body", "Rewrite", "argument_values", "arguments", "calls", "is_float", "place", "replace", "schema_name"]

Rewrite = Callable[..., Any]
"""From a `Body` and the arguments of a node, in the order of its schema, to the node that gives its result. None leaves
the node as it is."""

_KEPT = ("nn_module_stack", "source_fn_stack", "stack_trace", "torch_fn")
"""Metadata of a node that holds for the nodes in its place, too."""


def calls(program: Any) -> Iterator[Any]:
    """The nodes that call an operator, in the graph of an exported program and in the graphs inside it."""
    for module in program.graph_module.modules():
        if hasattr(module, "graph"):
            yield from [node for node in module.graph.nodes if node.op == "call_function"]


def schema_name(node: Any) -> str:
    """The name of the operator without its namespace, such as `add_`; empty for a function without a schema."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.split("::")[-1]


def arguments(node: Any) -> list[tuple[Any, Any]]:
    """The declarations of the operator's arguments, each with the value in this node."""
    declared = node.target._schema.arguments
    given = [*node.args, *(node.kwargs.get(each.name, each.default_value) for each in declared[len(node.args) :])]
    return list(zip(declared, given, strict=True))


def argument_values(node: Any) -> dict[str, Any]:
    """Argument values by name."""
    return {declared.name: value for declared, value in arguments(node)}


def is_float(node: Any) -> bool:
    """Whether the node gives a tensor that can have a gradient."""
    value = node.meta.get("val")
    dtype = getattr(value, "dtype", None)
    return dtype is not None and (dtype.is_floating_point or dtype.is_complex)


def place(node: Any) -> str:
    """The path of the module that calls the operator, or the name of the node."""
    modules = [path for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
    return modules[-1] if modules else str(node.name)


class Body:
    """Adds nodes in front of `node`: each call adds one and returns it. Its type comes from running the operator."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def __call__(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        from torch.fx.node import map_arg

        with self.node.graph.inserting_before(self.node):
            made = self.node.graph.call_function(operator, args, kwargs)
        value = lambda each: each.meta["val"]
        made.meta = {key: self.node.meta[key] for key in _KEPT if key in self.node.meta}
        made.meta["val"] = operator(*map_arg(args, value), **map_arg(kwargs, value))
        return made


def replace(program: Any, rewrites: Mapping[Any, Rewrite]) -> None:
    """Replace the nodes whose operators are keys of `rewrites`."""
    for module in program.graph_module.modules():
        if not hasattr(module, "graph"):
            continue
        found = [node for node in module.graph.nodes if node.op == "call_function" and node.target in rewrites]
        for node in found:
            result = rewrites[node.target](Body(node), *(value for _, value in arguments(node)))
            if result is None:
                continue
            node.replace_all_uses_with(result)
            if module is program.graph_module:
                program.graph_signature.replace_all_uses(node.name, result.name)
            module.graph.erase_node(node)
        if found:
            module.recompile()
