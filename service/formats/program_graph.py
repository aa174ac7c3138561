"""The graph of a program: its nodes, edges and blocks, and the links between ops and their adjoints.

It is made from a program document. In the closed form, as answers have it, each edge has a type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Edge", "Graph", "Node", "graph_of", "walk"]

BLOCKS = ("sub_block", "true_block", "false_block", "block", "default_block")
LEAVES = ("parameter", "feed", "state")

Declaration = tuple[Mapping[str, Any], int]
"""A declared variable, and the number of stacks around its type."""


@dataclass(frozen=True, slots=True)
class Node:
    """An op, a variable that enters a block, or a result of the program.

    kind:    forward or backward (ops); parameter, feed, state or variable (they enter a block); loss or gradient.
    outputs: names and types of the variables that an op writes.
    of:      ids of the forward ops that a backward op helps to differentiate; of a gradient, the id of its variable.
    """

    id: str
    label: str
    kind: str
    outputs: tuple[str, ...] = ()
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A variable that one node makes and another reads. type: "" if it is unknown."""

    source: str
    target: str
    variable: str
    type: str


@dataclass(slots=True)
class Graph:
    """A block: its nodes, its edges, and the graphs of its inner blocks. owner: id of the op that runs it."""

    id: str
    label: str
    owner: str = ""
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    inner: list[Graph] = field(default_factory=list)

    def as_document(self) -> dict[str, Any]:
        """The graph as JSON-ready values. An edge without a variable goes from an op to a block that it runs."""
        blocks: dict[str, list[dict[str, Any]]] = {self.id: []}  # of each block, the list that holds it
        for _, graph, opening in walk(self):
            if not opening:
                continue
            inner: list[dict[str, Any]] = []
            edges = [{"from": e.source, "to": e.target, "variable": e.variable, "type": e.type} for e in graph.edges]
            edges += [{"from": each.owner, "to": each.id, "variable": "", "type": ""} for each in graph.inner]
            blocks[graph.id].append(
                {
                    "id": graph.id,
                    "label": graph.label,
                    "owner": graph.owner,
                    "nodes": [_shown(node) for node in graph.nodes],
                    "edges": edges,
                    "blocks": inner,
                }
            )
            blocks.update((each.id, inner) for each in graph.inner)
            if graph is self:
                (top,) = blocks[graph.id]
        return top


def _shown(node: Node) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": node.id, "label": node.label, "kind": node.kind}
    if node.outputs:
        shown["outputs"] = list(node.outputs)
    if node.of:
        shown["of"] = list(node.of)
    return shown


def graph_of(program: Mapping[str, Any], answer: Mapping[str, Any] | None = None) -> Graph:
    """The graph of a program document.

    answer: of the backward pass, with `backward_ops`, `params_grads`, `op_roles` and `grad_to_var`.
    """
    answer = answer or {}
    types = _Types(program["blocks"])
    origins = _forward_nodes(program["blocks"])
    root = Graph("b0", "block 0")
    marked = {each["op"] for each in answer.get("backward_ops", ())}
    waiting = [(root, 0, False)]
    for graph, index, inherited in waiting:  # the loop appends to the list that it walks: nesting may be deep
        block = program["blocks"][index]
        made: dict[str, str] = {}
        for name, kind in _entering(block, index):
            made[name] = f"{graph.id}_v{len(made)}"
            graph.nodes.append(Node(made[name], name, kind, (_typed(name, types.of(index, name)),)))
        for position, op in enumerate(block["ops"]):
            backward = inherited or "backward_of" in op or (index == 0 and position in marked)
            id = f"{graph.id}_o{position}"
            of = origins.get(_place(op["backward_of"]), ()) if "backward_of" in op else ()
            written = [name for name in _names(op.get("outputs", {})) if name]
            outputs = tuple(_typed(name, types.of(index, name)) for name in written)
            graph.nodes.append(Node(id, op["type"], "backward" if backward else "forward", outputs, tuple(of)))
            for name in dict.fromkeys(_names(op.get("inputs", {}))):
                if name in made:
                    graph.edges.append(Edge(made[name], id, name, types.of(index, name)))
            made.update((name, id) for name in written)
            for attr, inner_index in _inner(op):
                inner = Graph(f"b{inner_index}", f"block {inner_index}: {attr} of {op['type']}", id)
                graph.inner.append(inner)
                waiting.append((inner, inner_index, backward))
        if index == 0:
            _add_results(graph, made, types, answer)
    return root


def _entering(block: Mapping[str, Any], index: int) -> list[tuple[str, str]]:
    """(name, kind) of the variables that enter a block."""
    roles = {v["name"]: v.get("role", "temporary") for v in block.get("vars", ())}
    if index:
        return [(name, "variable") for name in block.get("params") or ()]
    return [(n, role if role in LEAVES else "variable") for n, role in roles.items() if role != "temporary"]


def _add_results(graph: Graph, made: Mapping[str, str], types: _Types, answer: Mapping[str, Any]) -> None:
    """Nodes for the loss and for each gradient that was asked for."""
    seeds = [i for i, role in enumerate(answer.get("op_roles", ())) if role == 257]
    variables = answer.get("grad_to_var", {})
    blocks = types.blocks[0]["ops"]
    targets = dict.fromkeys(variables[n] for i in seeds for n in _names(blocks[i]["outputs"]) if n in variables)
    results = [(name, "loss", "") for name in targets]
    results += [(grad, "gradient", name) for name, grad in answer.get("params_grads", ()) if grad is not None]
    for number, (name, kind, variable) in enumerate(results):
        if name in made:
            id, type = f"{graph.id}_r{number}", types.of(0, name)
            of = (made[variable],) if variable in made else ()
            graph.nodes.append(Node(id, name, kind, (_typed(name, type),), of))
            graph.edges.append(Edge(made[name], id, name, type))


class _Types:
    """The types of variables. Inner blocks do not repeat those that an operand or an inner result states."""

    def __init__(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        self.blocks = blocks
        self._declared = [{v["name"]: v for v in block.get("vars", ())} for block in blocks]
        self._params = [{n: i for i, n in enumerate(block.get("params") or ())} for block in blocks]
        self._writer: list[dict[str, tuple[Mapping[str, Any], int]]] = []
        self._runs: dict[int, tuple[int, Mapping[str, Any]]] = {}
        for index, block in enumerate(blocks):
            writer: dict[str, tuple[Mapping[str, Any], int]] = {}
            for op in block["ops"]:
                inner = _inner(op)
                self._runs.update((i, (index, op)) for _, i in inner)
                if inner:
                    writer.update((n, (op, i)) for i, n in enumerate(_names(op.get("outputs", {}))))
            self._writer.append(writer)
        self._found: dict[tuple[int, str], Declaration | None] = {}

    def of(self, index: int, name: str) -> str:
        """The type of a variable, such as ``float32[8, 2]``; "" if the document does not state it."""
        found = self._declaration(index, name)
        return "" if found is None else _type_text(*found)

    def _declaration(self, index: int, name: str) -> Declaration | None:
        """The declaration that states the type of a variable, and the number of stacks around that type.

        The search goes from a parameter to its operand, and from an output to its result, until a block declares the
        variable. It keeps the result for each variable on its way.
        """
        passed: list[tuple[int, str, int]] = []
        depth = 0
        found: Declaration | None = None
        while (index, name) not in self._found:
            self._found[index, name] = None  # a document that leads in a circle has no type
            passed.append((index, name, depth))
            var = self._declared[index].get(name)
            if var is not None and "dtype" in var and "shape" in var:
                found = var, depth + var.get("stack_depth", 0)
                break
            if (following := self._following(index, name)) is None:
                break
            index, name, step = following
            depth += step
        else:
            if (known := self._found[index, name]) is not None:
                found = known[0], depth + known[1]
        for each_index, each_name, before in passed:
            self._found[each_index, each_name] = None if found is None else (found[0], found[1] - before)
        return self._found[passed[0][:2]] if passed else found

    def _following(self, index: int, name: str) -> tuple[int, str, int] | None:
        """The variable that has the same type up to stacks: (block, name, stacks around it)."""
        if name in self._params[index] and index in self._runs:
            position = self._params[index][name]
            index, op = self._runs[index]
            operands = op.get("inputs", {}).get("x", ())
            return (index, operands[position], -(position >= _whole(op))) if position < len(operands) else None
        if name in self._writer[index]:
            op, position = self._writer[index][name]
            (_, index), *_ = _inner(op)
            results = self.blocks[index].get("results") or ()
            carried = op.get("attrs", {}).get("carried", len(results))
            return (index, results[position], int(position >= carried)) if position < len(results) else None
        return None


def _whole(op: Mapping[str, Any]) -> int:
    """The number of operands of a loop or branch that are not stacks of elements."""
    attrs = op.get("attrs", {})
    return attrs["carried"] + attrs.get("captured", 0) if "carried" in attrs else len(op["inputs"].get("x", ()))


def _type_text(var: Mapping[str, Any], depth: int) -> str:
    sizes = ", ".join("?" if n < 0 else str(n) for n in var["shape"] or ())
    stacks = {0: "", 1: "stack of "}.get(depth, f"{depth} nested stacks of ")
    return f"{stacks}{var['dtype']}[{sizes}]"


def _typed(name: str, type: str) -> str:
    return f"{name}: {type}" if type else name


def _forward_nodes(blocks: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[str]]:
    """Place of an op in the client's program -> the nodes of the forward ops that compute it."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for index, block in enumerate(blocks):
        for position, op in enumerate(block["ops"]):
            if "backward_of" not in op:
                place = _place(op["made_from"]) if "made_from" in op else (None, index, position)
                found.setdefault(place, []).append(f"b{index}_o{position}")
    return found


def _place(origin: Mapping[str, Any]) -> tuple[Any, ...]:
    return origin.get("function"), origin["block"], origin["op"]


def _inner(op: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(attribute, block number) of the blocks that an op runs."""
    attrs = op.get("attrs", {})
    found = [(attr, attrs[attr]) for attr in BLOCKS if isinstance(attrs.get(attr), int)]
    branches = attrs.get("branches")
    return found + [(f"branch {i}", n) for i, n in enumerate(branches if isinstance(branches, list) else ())]


def _names(slots: Mapping[str, Any]) -> list[str]:
    return [name for names in slots.values() for name in ([names] if isinstance(names, str) else names)]


def walk(graph: Graph) -> Iterator[tuple[int, Graph, bool]]:
    """(depth, graph, whether it opens or closes), without recursion: nesting may be deep."""
    waiting = [(1, graph, False), (1, graph, True)]
    while waiting:
        depth, each, opening = waiting.pop()
        yield depth, each, opening
        if opening:
            for inner in reversed(each.inner):
                waiting += [(depth + 1, inner, False), (depth + 1, inner, True)]
