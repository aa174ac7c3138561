"""The graphs inside of nodes: branches and bodies."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import AttributeProto, GraphProto

__all__ = ["subgraphs"]


def subgraphs(nodes: Iterator[onnx.NodeProto]) -> Iterator[GraphProto]:
    """The graphs among the attributes of `nodes`, and those inside them."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs:
                yield graph
                yield from subgraphs(iter(graph.node))
