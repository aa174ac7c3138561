"""The part of a checkpoint that is not tensors: JSON in the metadata of the file."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = ["FORMAT", "STATE", "CheckpointState", "GradientRows", "OptimizerWords", "decode", "encode"]

STATE = "backpass"
"""The member of the file's metadata with the state."""

FORMAT = 3
"""Goes up when a file cannot be read by earlier versions of the service."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class GradientRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An added-up gradient. shape: of the table if only some of its rows are stored, else None."""

    shape: list[Count] | None = None


class OptimizerWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An optimiser as `core.optim.optimizers.Optimizer.document` writes it."""

    type: str
    attrs: dict[str, Any]


class CheckpointState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state of a session besides its tensors.

    Tensors of the file: ``<parameter>``, ``<state>``, ``<parameter>/<slot>``, and for an added-up gradient
    ``<parameter>@GRAD`` with ``<parameter>@GRAD@ROWS`` if it is sparse.

    program_id: of the program; "" if the session had none.
    optimizer:  type and attributes, complete. shown: the optimiser in the client's words; None in files of
                earlier versions.
    query, clip, loss_scale: in their JSON form.
    slots:      the names of the tensors that are optimiser state.
    gradients:  parameter -> form of its added-up gradient; accumulated: the number of added gradients.
    layouts:    tensor -> its axes in the order of memory, if this is not their order in the shape.
    seen:       the open shapes of feeds that have code of their own (`WorkerSession`); since format 2.
    roomy:      other open shapes -> the number of their training steps; since format 3.
    """

    format: Annotated[int, Meta(ge=1, le=FORMAT)]
    program_id: str
    seed: Count
    step: Count
    version: Count
    seq: Count
    accumulated: Count
    query: dict[str, Any]
    optimizer: OptimizerWords
    shown: dict[str, Any] | None
    clip: dict[str, Any] | None
    loss_scale: Any
    slots: list[str]
    gradients: dict[str, GradientRows]
    layouts: dict[str, list[int]]
    seen: list[str] = []
    roomy: dict[str, Count] = {}


# Made once, at import: msgspec crashes if several threads first use a type at the same time.
_decoder = msgspec.json.Decoder(CheckpointState)


def encode(state: CheckpointState) -> str:
    return msgspec.json.encode(state).decode()


def decode(text: str | bytes) -> CheckpointState:
    """Raises msgspec.ValidationError or msgspec.DecodeError; both name the place."""
    return _decoder.decode(text)
