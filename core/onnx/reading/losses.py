"""A loss appended to a model: a named output, or a standard loss of an output against a feed of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.onnx.reading.draft import Draft
from core.onnx.reading.values import Label, Tensor

__all__ = ["Loss", "LossKind", "append_loss"]

LossKind = Literal["output", "cross_entropy", "nll", "mse", "l1", "smooth_l1", "huber", "bce", "bce_with_logits"]

_OPS = {
    "mse": "mse_loss",
    "l1": "l1_loss",
    "smooth_l1": "smooth_l1_loss",
    "bce": "bce_loss",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss for the model.

    kind:      "output" takes an output of the model as the loss. The other kinds compare it with a feed, and the loss
               is the mean over all elements: "cross_entropy" (logits, and int64 class numbers), "nll"
               (log-probabilities, and int64 class numbers), "mse", "l1", "smooth_l1", "huber", "bce" (probabilities)
               and "bce_with_logits" (logits), against targets of the output's shape.
    output:    the name of the output in the model; None for the first one.
    label:     the name of the feed of labels.
    name:      the variable of the loss.
    axis:      the axis of the classes, of "cross_entropy" and "nll".
    """

    kind: LossKind
    output: str | None = None
    label: str = "label"
    name: str = "loss"
    axis: int = 1


def append_loss(draft: Draft, loss: Loss, outputs: dict[str, Tensor]) -> Tensor:
    """The loss, a scalar. Raises ProgramError: bad_loss, bad_output, bad_axis or bad_label, by the member at fault."""
    if loss.kind not in get_args(LossKind):
        raise ProgramError(f"the loss {loss.kind!r} is not one of {', '.join(get_args(LossKind))}", "bad_loss")
    name = next(iter(outputs)) if loss.output is None else loss.output
    if name not in outputs:
        kinds = [kind for kind in get_args(LossKind) if kind != "output"]
        or_append = f", and losses to append are {', '.join(kinds)}" if loss.kind == "output" else ""
        detail = f"the model has no output {name!r}; its outputs are {', '.join(outputs)}{or_append}"
        raise ProgramError(detail, "bad_output")
    output = outputs[name]
    if not output.is_float:
        raise ProgramError(f"the output {name!r} is {output.type}: a loss needs floats", "bad_output")
    if loss.kind == "output":
        return _scalar(output, name)
    by_class = loss.kind in ("cross_entropy", "nll")
    axis = loss.axis if output.rank > 1 else 0
    if by_class and not -output.rank <= axis < output.rank:
        raise ProgramError(f"the output {name!r} is {output.type}: it has no axis {loss.axis}", "bad_axis")
    shape = list(output.shape)
    names = [draft.size_name(output, i) for i in range(output.rank)]
    if by_class:
        del shape[axis], names[axis]
    if any(label.hint == loss.label for label, _ in draft.feeds):
        raise ProgramError(f"the model already has an input {loss.label!r}: choose another label name", "bad_label")
    type = TensorType(tuple(shape), "int64" if by_class else output.dtype)
    label = draft.feed(loss.label, type, names)
    found = _computed(draft, loss, output, label, axis)
    found.label = Label(loss.name, wanted=True) if found.label is None else found.label
    found.label.hint, found.label.wanted = loss.name, True
    return found


def _scalar(output: Tensor, name: str) -> Tensor:
    if all(n == 1 for n in output.shape):
        return output
    raise ProgramError(f"the output {name!r} is {output.type}: a loss has one element", "bad_output")


def _computed(draft: Draft, loss: Loss, output: Tensor, label: Tensor, axis: int) -> Tensor:
    def emit(type: str, *inputs: Tensor, **attrs: object) -> Tensor:
        found = draft.emit(type, inputs, attrs)[0]
        assert isinstance(found, Tensor)
        return found

    if loss.kind in _OPS:
        return emit(_OPS[loss.kind], output, label, reduction="mean")
    if loss.kind == "huber":
        return emit("huber_loss", output, label, reduction="mean")
    if loss.kind == "bce_with_logits":
        return emit("reduce_mean", emit("sigmoid_cross_entropy_with_logits", output, label))
    last = _class_last(output.rank, axis)
    moved = output if last is None else emit("transpose", output, axes=last)
    classes = emit("unsqueeze", label, axes=[label.rank])
    if loss.kind == "cross_entropy":
        moved = emit("log_softmax", moved, axis=-1)
    picked = emit("take_along_axis", moved, classes, axis=-1)
    return emit("scale", emit("reduce_mean", picked), scale=-1.0)


def _class_last(rank: int, axis: int) -> list[int] | None:
    """The order of axes that moves `axis` to the end; None if it is there."""
    axis %= rank
    return None if axis == rank - 1 else [*(i for i in range(rank) if i != axis), axis]
