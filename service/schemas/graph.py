"""The graph of a program as JSON."""

from __future__ import annotations

from pydantic import Field

from service.schemas.programs import Strict

__all__ = ["ProgramGraph"]


class GraphNode(Strict):
    """An op, a variable that enters a block, or a result of the program."""

    id: str
    label: str
    kind: str = Field(description="forward, backward, parameter, feed, state, variable, loss or gradient.")
    outputs: list[str] = Field([], description="Names and types of the variables that an op writes.")
    of: list[str] = Field([], description="Forward ops of a backward op; the variable of a gradient.")


class GraphEdge(Strict):
    """A variable that one node makes and another reads. Without a name: from an op to a block that it runs."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    variable: str
    type: str


class ProgramGraph(Strict):
    """A block with its inner blocks."""

    id: str
    label: str
    owner: str = Field(description="Id of the op that runs the block.")
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    blocks: list[ProgramGraph]
