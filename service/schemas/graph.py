"""The graph of a program as JSON."""

from __future__ import annotations

from pydantic import Field

from service.schemas.programs import Strict

__all__ = ["ProgramGraph"]


class GraphNode(Strict):
    """An op, a variable that enters a block, or a result of the program."""

    id: str = Field(description="Id of the node, unique in the graph.")
    label: str = Field(description="Text of the node: the type of an op, or the name of a variable.")
    kind: str = Field(description="forward, backward, parameter, feed, state, variable, loss or gradient.")
    outputs: list[str] = Field([], description="Names and types of the variables that an op writes.")
    of: list[str] = Field([], description="Forward ops of a backward op; the variable of a gradient.")


class GraphEdge(Strict):
    """A variable that one node makes and another reads. Without a name: from an op to a block that it runs."""

    source: str = Field(alias="from", description="Id of the node that makes the variable.")
    target: str = Field(alias="to", description="Id of the node that reads it.")
    variable: str = Field(description="Name of the variable; empty from an op to a block.")
    type: str = Field(description="Dtype and shape of the variable; empty from an op to a block.")


class ProgramGraph(Strict):
    """A block with its inner blocks."""

    id: str = Field(description="Id of the block, unique in the graph.")
    label: str = Field(description="Text of the block.")
    owner: str = Field(description="Id of the op that runs the block; empty for the root.")
    nodes: list[GraphNode] = Field(description="Ops, variables and results of the block.")
    edges: list[GraphEdge] = Field(description="Variables between them.")
    blocks: list[ProgramGraph] = Field(description="Blocks that its ops run.")
