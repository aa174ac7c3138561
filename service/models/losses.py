"""The loss of a model in the words of a request: an output, or the name of a loss to append."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["KINDS", "BadLoss", "loss_of", "option_of"]

KINDS = ("cross_entropy", "nll", "mse", "l1", "smooth_l1", "huber", "bce", "bce_with_logits")
"""Losses that can be appended to a model: those of `core.onnx`, which the API process does not import."""

MEMBERS = {"of": "output", "label": "label", "axis": "axis"}


OPTIONS = {
    "bad_loss": "loss",
    "bad_output": "of",
    "bad_axis": "axis",
    "bad_label": "label",
    "unknown_initializer": "trainable",
}
"""Code of a mistake that `core.onnx` finds -> the option at fault. The output is `loss` itself if that names one."""


class BadLoss(ValueError):
    """An option does not go with the others. option: its name."""

    def __init__(self, option: str, detail: str) -> None:
        super().__init__(detail)
        self.option = option


def loss_of(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The members of a `core.onnx.Loss`, from the options loss, of, label and axis. Raises BadLoss."""
    kind = given.get("loss")
    members = {member: given[name] for name, member in MEMBERS.items() if name in given}
    if kind in KINDS:
        return {"kind": kind, **members}
    if members:
        name = next(name for name in MEMBERS if name in given)
        raise BadLoss(name, f"{name} goes with a loss to append: {', '.join(KINDS)}")
    return None if kind is None else {"kind": "output", "output": kind}


def option_of(code: str, loss: Mapping[str, Any] | None) -> str | None:
    """The option of a request that a mistake is about; None for a mistake in the model. loss: as `loss_of` gives it."""
    if code == "bad_output" and loss is not None and loss["kind"] == "output":
        return "loss"
    return OPTIONS.get(code)
