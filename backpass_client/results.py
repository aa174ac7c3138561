"""Results of passes over a program: the loss, the gradients and the fetched values of one response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backpass_client.connection import NO_HEADERS, NO_TENSORS, Service
from backpass_client.hints import Answered
from backpass_client.rows import from_tensors
from backpass_client.streams import MEDIA_TYPE, GradientStream
from backpass_client.tensorfile import MEDIA_TYPE as TENSORS
from backpass_client.tensorfile import pack
from backpass_client.text import NamedArrays, fields

__all__ = ["Arrays", "Evaluation", "Gradients", "gradients_of", "group", "streamed"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, repr=False)
class Gradients(Answered):
    """The result of one backward pass.

    gradients: arrays by parameter name; `Rows` for a table that the program reads only by lookups with `is_sparse`.
    fetched:   the requested values by name.
    missing:   variable -> the reason why it has no gradient.
    said:      the JSON members of the response.
    recorded:  the gradients that hooks recorded, by name.
    states:    the states that the program writes, such as running statistics, as they are after the pass. Give them
               among the parameters of the next call without a session; a session keeps its own.
    """

    loss: np.ndarray | None
    gradients: dict[str, Any]
    fetched: Arrays
    missing: dict[str, str]
    said: dict[str, Any] = field(default_factory=dict)
    recorded: Arrays = field(default_factory=dict)
    states: Arrays = field(default_factory=dict)

    def __repr__(self) -> str:
        return fields(self, "loss", "gradients", "fetched", "missing", "recorded", "states")


class Evaluation(NamedArrays):
    """The fetched values of a forward pass by name.

    states: with ``return_states=True``, all states by name as they are after the pass, else empty.
    """

    __slots__ = ("states",)

    def __init__(self, values: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray] = NO_TENSORS) -> None:
        super().__init__(values)
        self.states: Arrays = NamedArrays(states)


def gradients_of(said: dict[str, Any], tensors: dict[str, np.ndarray]) -> Gradients:
    """The `Gradients` in a response, from its JSON members and its tensors."""
    return Gradients(
        loss=tensors.get("loss"),
        gradients=from_tensors(said, tensors),
        fetched=group(tensors, "fetch"),
        missing=said.get("missing", {}),
        said=said,
        recorded=group(tensors, "recorded"),
        states=group(tensors, "state"),
    )


def streamed(
    service: Service,
    path: str,
    asked: Mapping[str, Any],
    tensors: Mapping[str, Any],
    headers: Mapping[str, str] = NO_HEADERS,
) -> GradientStream[Gradients]:
    """The stream of the gradients that POST `path` answers with. The request changes nothing, so repeating is safe."""
    content, headers = pack(tensors, asked), {"content-type": TENSORS, "accept": MEDIA_TYPE, **headers}
    opened = lambda: service.stream("POST", path, content=content, headers=headers)
    return GradientStream(opened, gradients_of, attempts=service.attempts)


def group(tensors: dict[str, np.ndarray], prefix: str) -> Arrays:
    """The tensors called `prefix`/<name>, keyed by <name>."""
    start = f"{prefix}/"
    return NamedArrays({name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)})
