"""The order of the nodes of a model. ONNX wants producers first, but some converters append nodes at the end."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from onnx import ModelProto, NodeProto

from core.onnx.reading.subgraphs import subgraphs

__all__ = ["sort_nodes"]


def sort_nodes(model: ModelProto) -> None:
    """Move nodes of each graph of `model` behind those whose outputs they read. The others keep their order.

    Nodes that read each other in a circle, and those behind them, stay at the end.
    """
    for graph in reversed([model.graph, *subgraphs(iter(model.graph.node))]):  # inner ones first: nodes are copied
        nodes = list(graph.node)
        order = _order(nodes)
        del graph.node[:]
        graph.node.extend(nodes[i] for i in order)


def _order(nodes: list[NodeProto]) -> list[int]:
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waits = [{makers[name] for name in _read(node) if name in makers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, sources in enumerate(waits):
        for source in sources:
            readers[source].append(i)
    ready = [i for i, sources in enumerate(waits) if not sources]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for reader in readers[order[-1]]:
            waits[reader].remove(order[-1])
            if not waits[reader]:
                heappush(ready, reader)
    return [*order, *(i for i, sources in enumerate(waits) if sources)]


def _read(node: NodeProto) -> Iterator[str]:
    """The names that a node and its inner graphs read."""
    yield from node.input
    for graph in subgraphs(iter([node])):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from inner.input
