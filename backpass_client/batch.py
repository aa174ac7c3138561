"""Batches: the ops and leaves that a tape records between two requests, and the answer about them.

A training loop records the same ops, under the same names, in every iteration. The service names the ops of a request,
so the next request with the same ops sends only that name: see `Structures`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from backpass_client.names import Name

__all__ = ["Batch", "Inputs", "RecordedOp", "Structures", "document", "in_stacks"]

Inputs = tuple[str | tuple[str, ...] | None, ...]
"""The names in the input slots of an op, in order: a tuple of them for a variadic slot, None for an empty slot."""

RecordedOp = tuple[str, Inputs, str, tuple[str, ...]]
"""An op: type, inputs, attributes as JSON (empty for none), and the names of its outputs (empty for a variadic op)."""

CONSTANT = "constant/"
SMALL, FEWEST = 2**12, 4
"""Most bytes of a constant to stack, and fewest constants in a stack."""

KEPT = 64
"""Structures that a client remembers for one tape."""


class Leaf(Protocol):
    """A variable whose value is on the tape under the name `named`."""

    named: Name

    def unbind(self) -> None:
        """Forget the leaf: the request with it failed."""


class Batch:
    """Recorded ops and leaves, and, after their request, the answer about them.

    owner:      the tape that records them; `generation`: how often it had been renewed.
    leaves:    ``parameter/<name>`` or ``constant/<name>`` -> array.
    variables: whose values the leaves hold.
    first:     place of the first op on the tape; None before the request.
    appended:  the description of each op in the answer.
    values:    by name, those that the answer contains.
    lost:      whether the request failed, so that the service does not have these ops.
    """

    __slots__ = ("appended", "first", "generation", "leaves", "lost", "ops", "owner", "values", "variables")

    def __init__(self, owner: Any, generation: int) -> None:
        self.owner = owner
        self.generation = generation
        self.ops: list[RecordedOp] = []
        self.leaves: dict[str, np.ndarray] = {}
        self.variables: list[Leaf] = []
        self.first: int | None = None
        self.appended: list[dict[str, Any]] = []
        self.values: Mapping[str, np.ndarray] = {}
        self.lost = False

    def answered(self, first: int | None, appended: list[dict[str, Any]], values: Mapping[str, np.ndarray]) -> None:
        """Set the answer, and drop everything that was sent."""
        self.first, self.appended, self.values = first, appended, values
        self.ops, self.leaves, self.variables = [], {}, []


class Structures:
    """The names that the service gave to the ops of earlier requests, and its descriptions of these ops."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[RecordedOp, ...], tuple[str, list[dict[str, Any]]]] = OrderedDict()

    def get(self, ops: tuple[RecordedOp, ...]) -> tuple[str, list[dict[str, Any]]] | None:
        """(name, descriptions) of `ops`, or None."""
        found = self._known.get(ops)
        if found is not None:
            self._known.move_to_end(ops)
        return found

    def put(self, ops: tuple[RecordedOp, ...], name: str, appended: list[dict[str, Any]]) -> None:
        self._known[ops] = name, appended
        while len(self._known) > KEPT:
            self._known.popitem(last=False)

    def forget(self, ops: tuple[RecordedOp, ...]) -> None:
        self._known.pop(ops, None)


def in_stacks(leaves: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """`leaves` with the small constants of equal type in one tensor; (tensors, name of a stack -> names in it).

    Each tensor of a request takes some microseconds in every process on its way.
    """
    alike: dict[tuple[np.dtype, tuple[int, ...]], list[str]] = {}
    for name, value in leaves.items():
        if value.nbytes <= SMALL and name.startswith(CONSTANT):
            alike.setdefault((value.dtype, value.shape), []).append(name)
    stacks = {names[0].removeprefix(CONSTANT): names for names in alike.values() if len(names) >= FEWEST}
    inside = {name for names in stacks.values() for name in names}
    found = {name: value for name, value in leaves.items() if name not in inside}
    found |= {CONSTANT + stack: np.stack([leaves[name] for name in names]) for stack, names in stacks.items()}
    return found, {stack: [name.removeprefix(CONSTANT) for name in names] for stack, names in stacks.items()}


def document(op: RecordedOp, slots: tuple[str, ...], outputs: tuple[str, ...]) -> dict[str, Any]:
    """An op as in a JSON program. slots, outputs: the names of its input and output slots."""
    type, inputs, attrs, names = op
    given = {
        slot: [each] if isinstance(each, str) else list(each)
        for slot, each in zip(slots, inputs, strict=False)
        if each is not None
    }
    found: dict[str, Any] = {"type": type, "inputs": given}
    if attrs:
        found["attrs"] = json.loads(attrs)
    if names:
        found["outputs"] = {slot: [name] for slot, name in zip(outputs, names, strict=True)}
    return found
