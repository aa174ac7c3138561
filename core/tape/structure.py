"""Structures: the ops of repeated requests, with their types and the plans of their passes.

A training loop records the same ops in every iteration, under the same names. Reading them takes longer than running
them, so a tape keeps the ops that were read, and the plans of the passes over them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.ir import Op, Type
from core.tape.steps import Form, Step
from core.wire.site import Env

__all__ = ["Plan", "ReadOps", "Structure"]


@dataclass(slots=True)
class Plan:
    """One pass over the ops of a tape. runs: how often it has run.

    places:  of its ops.
    missing: of a backward pass, variable -> reason why it has no gradient.
    nbytes:  of a forward pass, the bytes of its results of known size.
    """

    places: Sequence[int]
    form: Form
    step: Step
    missing: Mapping[str, str] = field(default_factory=dict)
    nbytes: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True)
class ReadOps:
    """Typed ops at their places on a tape.

    ops:   by place, in order.
    given: name -> type of each variable that they read and do not write.
    types: of the variables that they write.
    env:   as of the trace, the variables that they write and the client may name.
    plans: of passes over a tape that holds these ops and no others.
    """

    first: int
    ops: Mapping[int, Op]
    given: Mapping[str, Type]
    types: Mapping[str, Type]
    env: Env
    writer: Mapping[str, int]
    uses: Counter[str]
    plans: dict[Hashable, Plan] = field(default_factory=dict)


class Structure:
    """The ops of one request.

    documents: the ops as the client sent them.
    read:      the result of reading them last.
    """

    __slots__ = ("documents", "read")

    def __init__(self, documents: Sequence[Any]) -> None:
        self.documents = documents
        self.read: ReadOps | None = None

    def __len__(self) -> int:
        return len(self.documents)
