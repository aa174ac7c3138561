"""Modules of PyTorch as programs.

program = bp.from_torch(model, (images,), service, loss="cross_entropy")
with program.session(optimizer={"type": "adam", "learning_rate": 1e-3}) as session:
    for images, labels in loader:
        session.step({"x": images, "label": labels})
    session.load_into(model)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backpass_client.connection import Service
from backpass_client.programs import Program
from backpass_client.torch_export import exported
from backpass_client.torch_tensors import from_array

__all__ = ["from_torch"]


def from_torch(
    module: Any,
    example_inputs: Any,
    service: Service | str = "http://127.0.0.1:8080",
    *,
    dynamic_shapes: Any = None,
    loss: str | Callable[..., Any] | None = None,
    targets: Any = (),
    of: str | None = None,
    label: str | None = None,
    axis: int | None = None,
) -> Program:
    """The module with its weights as a registered program, whose sessions train as the module does.

    The module is exported in its present mode: call ``module.train()`` before, and ``module.eval()`` on layers that
    stay as in evaluation. Parameters with ``requires_grad=False`` are not trained. Variables have the names of the
    module: parameters and buffers those of its state_dict, feeds those of the arguments of ``forward``. A tensor with
    several names has the first.

    example_inputs: a tensor or array, a tuple of arguments, or a dict of arguments by name.
    dynamic_shapes: as of `torch.export.export`: the axes whose sizes stay open, such as
                    ``{"x": {0: torch.export.Dim("batch")}}``. Without it all sizes are those of the examples.
    loss:           an output or a kind of loss, as of `Program.from_onnx`, with `of`, `label` and `axis`. Or a function
                    of the outputs and the targets, such as ``lambda y, target: F.mse_loss(y, target)``. It becomes
                    part of the program.
    targets:        with a function: a tensor, or a tuple of them, as examples of the targets. They become the feed
                    ``target``, or ``target_0``, ``target_1``, ..., behind those of the module.

    Needs torch and onnxscript. Raises BackpassError for a module that cannot be exported, Refused with every operator
    that the service cannot read.
    """
    args, kwargs = _arguments(example_inputs)
    function = loss if callable(loss) else None
    given = [_tensor(each) for each in (targets if isinstance(targets, tuple | list) else [targets])]
    if given and function is None:
        raise TypeError("targets go with a loss that is a function of the outputs and the targets")
    found = exported(module, args, kwargs, dynamic_shapes=dynamic_shapes, loss=function, targets=given)
    named = found.outputs[0] if function is not None else loss
    return Program.from_onnx(service, found.data, loss=named, of=of, label=label, axis=axis)  # type: ignore[arg-type]


def _arguments(examples: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(examples, Mapping):
        return (), {name: _tensor(each) for name, each in examples.items()}
    return [_tensor(each) for each in (examples if isinstance(examples, tuple | list) else (examples,))], {}


def _tensor(example: Any) -> Any:
    """An array as a tensor, which torch.export needs; anything else as it is."""
    return from_array(example) if isinstance(example, np.ndarray) else example
