"""Programs as graphs: Graphviz text, Mermaid text, and a page that draws the graph.

The graph is made from a program document in closed form. Ops are nodes, variables are edges, and inner blocks are
clusters inside the cluster of the op that runs them. Ops of the backward pass have another colour.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

__all__ = ["FORMS", "Graph", "as_graphviz", "as_mermaid", "as_page", "drawn", "graph_of"]

FORWARD, BACKWARD, VARIABLE = "#dbeafe", "#fee2c8", "#f3f4f6"
BLOCKS = ("sub_block", "true_block", "false_block")


@dataclass(frozen=True, slots=True)
class Node:
    """An op or a leaf variable. kind: forward, backward or variable."""

    id: str
    label: str
    kind: str


@dataclass(slots=True)
class Graph:
    """A block: its nodes, its edges (from, to, variable name), and the graphs of its inner blocks."""

    id: str
    label: str
    nodes: list[Node] = field(default_factory=list)
    edges: list[tuple[str, str, str]] = field(default_factory=list)
    inner: list[Graph] = field(default_factory=list)

    def as_document(self) -> dict[str, Any]:
        """The graph as JSON-ready values."""
        return {
            "id": self.id,
            "label": self.label,
            "nodes": [{"id": n.id, "label": n.label, "kind": n.kind} for n in self.nodes],
            "edges": [{"from": a, "to": b, "variable": v} for a, b, v in self.edges],
            "blocks": [g.as_document() for g in self.inner],
        }


def graph_of(program: dict[str, Any], backward_ops: list[int] | None = None) -> Graph:
    """The graph of a program document.

    backward_ops: positions in block 0 of the ops of the backward pass. Their inner blocks belong to it as well.
    """
    root = Graph("b0", "block 0")
    backward = set(backward_ops or ())
    waiting = [(root, 0, backward, False)]
    for graph, index, marked, inherited in waiting:  # grows while it is walked: nesting may be deep
        block = program["blocks"][index]
        made: dict[str, str] = {}
        for name in block.get("params") or [
            v["name"] for v in block["vars"] if v.get("role", "temporary") != "temporary"
        ]:
            made[name] = f"{graph.id}_v{len(made)}"
            graph.nodes.append(Node(made[name], name, "variable"))
        for position, op in enumerate(block["ops"]):
            node = Node(
                f"{graph.id}_o{position}", op["type"], "backward" if inherited or position in marked else "forward"
            )
            graph.nodes.append(node)
            for names in op.get("inputs", {}).values():
                for name in [names] if isinstance(names, str) else names:
                    if name in made:
                        graph.edges.append((made[name], node.id, name))
            for names in op.get("outputs", {}).values():
                for name in [names] if isinstance(names, str) else names:
                    made[name] = node.id
            for attr in BLOCKS:
                inner_index = op.get("attrs", {}).get(attr)
                if isinstance(inner_index, int):
                    inner = Graph(f"b{inner_index}", f"block {inner_index}: {attr} of {op['type']}")
                    graph.inner.append(inner)
                    graph.edges.append((node.id, f"b{inner_index}", ""))
                    waiting.append((inner, inner_index, set(), node.kind == "backward"))
    return root


FORMS = ("application/json", "text/vnd.graphviz", "text/plain", "text/html")


def drawn(answer: bytes | memoryview, form: str, title: str, static: str) -> bytes:
    """The graph in one of FORMS. answer: the JSON text of {"program", "backward_ops"?}; title, static: of the page."""
    document = orjson.loads(answer)
    graph = graph_of(document["program"], [each["op"] for each in document.get("backward_ops", ())])
    match form:
        case "application/json":
            return orjson.dumps(graph.as_document())
        case "text/vnd.graphviz":
            return as_graphviz(graph).encode()
        case "text/plain":
            return as_mermaid(graph).encode()
    return as_page(graph, title, static).encode()


def as_graphviz(graph: Graph) -> str:
    """The graph in the language of Graphviz."""
    lines = [
        "digraph program {",
        "  compound=true; rankdir=TB; fontname=Helvetica;",
        "  node [fontname=Helvetica fontsize=11 shape=box style=filled]; edge [fontname=Helvetica fontsize=9];",
    ]
    anchors: dict[str, str] = {}
    holds: list[tuple[str, str]] = []
    edges: list[str] = []
    for depth, each, opening in _walk(graph):
        pad = "  " * depth
        if not opening:
            lines.append(f"{pad}}}")
            continue
        anchors[each.id] = each.nodes[0].id if each.nodes else f"{each.id}_empty"
        lines.append(f"{pad}subgraph cluster_{each.id} {{")
        lines.append(f"{pad}  label={_quoted(each.label)};")
        if not each.nodes:
            lines.append(f'{pad}  {each.id}_empty [label="" shape=point];')
        for node in each.nodes:
            shape = " shape=ellipse" if node.kind == "variable" else ""
            lines.append(f'{pad}  {node.id} [label={_quoted(node.label)} fillcolor="{_colour(node.kind)}"{shape}];')
        edges += [f"  {a} -> {b} [label={_quoted(v)}];" for a, b, v in each.edges if v]
        holds += [(a, b) for a, b, v in each.edges if not v]
    # an edge ends at a node: at the first one of the block, clipped at the border of its cluster
    edges += [f"  {a} -> {anchors[b]} [style=dashed lhead=cluster_{b}];" for a, b in holds]
    return "\n".join([*lines, *edges, "}", ""])


def as_mermaid(graph: Graph) -> str:
    """The graph in the language of Mermaid."""
    lines = ["flowchart TB"]
    edges: list[str] = []
    for depth, each, opening in _walk(graph):
        pad = "  " * depth
        if not opening:
            lines.append(f"{pad}end")
            continue
        lines.append(f'{pad}subgraph {each.id}["{_entities(each.label)}"]')
        for node in each.nodes:
            left, right = ('(["', '"])') if node.kind == "variable" else ('["', '"]')
            lines.append(f"{pad}  {node.id}{left}{_entities(node.label)}{right}:::{node.kind}")
        edges += [f'  {a} -->|"{_entities(v)}"| {b}' if v else f"  {a} -.-> {b}" for a, b, v in each.edges]
    styles = [f"  classDef {k} fill:{_colour(k)},stroke:#888" for k in ("forward", "backward", "variable")]
    return "\n".join([*lines, *edges, *styles, ""])


def as_page(graph: Graph, title: str, static: str) -> str:
    """An HTML page that draws the graph in the browser. static: path of the vendored files."""
    source = html.escape(as_graphviz(graph))
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{html.escape(title)}</title>
<link rel="stylesheet" href="{static}/graph.css">
<script src="{static}/viz-global.js"></script><script src="{static}/graph.js"></script></head>
<body><h1>{html.escape(title)}</h1>
<p><span class="key forward">forward</span><span class="key backward">backward</span></p>
<div id="drawing">drawing ...</div>
<details><summary>Graphviz text</summary><pre id="source">{source}</pre></details>
</body></html>
"""


def _walk(graph: Graph) -> Iterator[tuple[int, Graph, bool]]:
    """(depth, graph, whether it opens or closes), without recursion: nesting may be deep."""
    waiting = [(1, graph, False), (1, graph, True)]
    while waiting:
        depth, each, opening = waiting.pop()
        yield depth, each, opening
        if opening:
            for inner in reversed(each.inner):
                waiting += [(depth + 1, inner, False), (depth + 1, inner, True)]


def _colour(kind: str) -> str:
    return {"forward": FORWARD, "backward": BACKWARD}.get(kind, VARIABLE)


def _quoted(text: str) -> str:
    """A string of Graphviz. Valid names hold no quotes or backslashes; all text is escaped anyway."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _entities(text: str) -> str:
    """Text inside a quoted Mermaid label: characters that could end it or start markup become entities."""
    return "".join(c if c.isalnum() or c in " _.-:" else f"#{ord(c)};" for c in text)
