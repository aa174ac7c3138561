"""Graphs of programs in the languages of Graphviz and Mermaid.

Inner blocks are clusters inside the cluster of the op that runs them. Each kind of node has a colour.
"""

from __future__ import annotations

from service.formats.program_graph import Graph, walk

__all__ = ["COLOURS", "as_graphviz", "as_mermaid"]

COLOURS = {
    "forward": "#dbeafe",
    "backward": "#fee2c8",
    "parameter": "#d1fae5",
    "feed": "#ede9fe",
    "state": "#cffafe",
    "variable": "#f3f4f6",
    "loss": "#fecaca",
    "gradient": "#fde68a",
}
OPS = ("forward", "backward")


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
    for depth, each, opening in walk(graph):
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
            shape = "" if node.kind in OPS else " shape=ellipse"
            lines.append(f'{pad}  {node.id} [label={_quoted(node.label)} fillcolor="{COLOURS[node.kind]}"{shape}];')
        for edge in each.edges:
            label = _quoted(f"{edge.variable}: {edge.type}" if edge.type else edge.variable)
            edges.append(f"  {edge.source} -> {edge.target} [label={label}];")
        holds += [(inner.owner, inner.id) for inner in each.inner]
    # an edge ends at a node: at the first one of the block, clipped at the border of its cluster
    edges += [f"  {a} -> {anchors[b]} [style=dashed lhead=cluster_{b}];" for a, b in holds]
    return "\n".join([*lines, *edges, "}", ""])


def as_mermaid(graph: Graph) -> str:
    """The graph in the language of Mermaid."""
    lines = ["flowchart TB"]
    edges: list[str] = []
    for depth, each, opening in walk(graph):
        pad = "  " * depth
        if not opening:
            lines.append(f"{pad}end")
            continue
        lines.append(f'{pad}subgraph {each.id}["{_entities(each.label)}"]')
        for node in each.nodes:
            left, right = ('["', '"]') if node.kind in OPS else ('(["', '"])')
            lines.append(f"{pad}  {node.id}{left}{_entities(node.label)}{right}:::{node.kind}")
        for edge in each.edges:
            label = f"{edge.variable}: {edge.type}" if edge.type else edge.variable
            edges.append(f'  {edge.source} -->|"{_entities(label)}"| {edge.target}')
        edges += [f"  {inner.owner} -.-> {inner.id}" for inner in each.inner]
    styles = [f"  classDef {kind} fill:{colour},stroke:#888" for kind, colour in COLOURS.items()]
    return "\n".join([*lines, *edges, *styles, ""])


def _quoted(text: str) -> str:
    """A string of Graphviz. Valid names hold no quotes or backslashes; all text is escaped anyway."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _entities(text: str) -> str:
    """Text inside a quoted Mermaid label: characters that could end it or start markup become entities."""
    return "".join(c if c.isalnum() or c in " _.-:" else f"#{ord(c)};" for c in text)
