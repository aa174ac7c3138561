"""A program as a graph in one of four forms: JSON, Graphviz, Mermaid, or a page that draws it."""

from __future__ import annotations

import html

import orjson

from service.formats.graph_text import COLOURS, as_graphviz, as_mermaid
from service.formats.program_graph import Graph, graph_of

__all__ = ["FORMS", "as_page", "drawn"]

FORMS = ("application/json", "text/vnd.graphviz", "text/plain", "text/html")
LEGEND = {
    "parameter": "parameter",
    "feed": "feed",
    "state": "state",
    "variable": "block input",
    "forward": "forward op",
    "loss": "loss",
    "backward": "backward op",
    "gradient": "gradient",
}


def drawn(answer: bytes | memoryview, form: str, title: str, static: str) -> bytes:
    """The graph in one of FORMS. answer: the JSON text of {"program", ...}; title, static: of the page.

    The other members of the answer are the tables of a backward pass.
    """
    document = orjson.loads(answer)
    graph = graph_of(document["program"], document)
    match form:
        case "application/json":
            return orjson.dumps(graph.as_document())
        case "text/vnd.graphviz":
            return as_graphviz(graph).encode()
        case "text/plain":
            return as_mermaid(graph).encode()
    return as_page(graph, title, static).encode()


def as_page(graph: Graph, title: str, static: str) -> str:
    """An HTML page that draws the graph in the browser. static: path of the page's files."""
    data = orjson.dumps(graph.as_document()).decode().replace("<", "\\u003c")  # no text can end the script element
    colours = orjson.dumps(COLOURS).decode()
    legend = "".join(f'<li><span class="key" data-kind="{kind}"></span>{text}</li>' for kind, text in LEGEND.items())
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{html.escape(title)}</title>
<link rel="stylesheet" href="{static}/graph.css">
<script type="module" src="{static}/graph.js"></script></head>
<body>
<header><h1>{html.escape(title)}</h1>
<form id="search" role="search"><input id="query" type="search" placeholder="op, variable or type" aria-label="Search">
<button>Find</button><output id="found"></output></form>
<p class="buttons">
<button id="in" title="Zoom in (+)">+</button><button id="out" title="Zoom out (-)">-</button>
<button id="fit" title="Show all (0)">Fit</button><button id="fold" title="Fold all blocks (f)">Fold all</button>
<button id="unfold" title="Unfold all blocks (u)">Unfold all</button>
<label><input id="links" type="checkbox"> link ops and adjoints (l)</label></p>
<ul id="legend">{legend}</ul></header>
<main><canvas id="drawing" tabindex="0" role="application" aria-label="Graph of the program" aria-describedby="keys">
</canvas><aside id="details" aria-live="polite"></aside></main>
<footer id="keys">Drag or arrow keys: move. Wheel, + and -: zoom. 0: all. n and p: next and previous op. Enter: fold or
unfold. a: adjoint. /: search.</footer>
<script type="application/json" id="graph">{data}</script>
<script type="application/json" id="colours">{colours}</script>
</body></html>
"""
