"""A module of PyTorch as an ONNX model that trains as the module does.

`torch.onnx.export` gives the forward pass. Added here, because a model in training needs it:

* batch normalisation over the batch, which the exporter writes as in evaluation;
* dropout inside of attention, which the exporter leaves out;
* where gradients end, which the exporter does not keep (`torch_gradients`);
* operators that the exporter translates wrongly (`torch_operators`, `torch_rewrites`);
* the new values of buffers, such as running statistics, as `training_info` of the model: ONNX binds an initialiser to
  the value that a training step writes to it;
* the names of the trainable parameters, as metadata of the model.

All names are those of the module's state_dict. torch and onnx are imported where they are used.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from backpass_client.errors import BackpassError
from backpass_client.torch_gradients import refuse_hooks, stop_gradients, watched
from backpass_client.torch_graphs import argument_values, calls, place, replace, schema_name
from backpass_client.torch_operators import translations
from backpass_client.torch_rewrites import refuse_features, rewrites

__all__ = ["Exported", "exported"]

OPSET = 20
TRAINABLE = "backpass.trainable"
"""Key in the metadata of a model: the names of the initialisers to train, as JSON."""
_TRAINING = {"train", "training", "use_input_stats", "dropout_p"}
"""Arguments of operators of torch that change what they compute in training."""
_RIGHT_IN_TRAINING = {
    "batch_norm", "instance_norm", "lstm", "gru", "scaled_dot_product_attention",
    "dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
}  # fmt: skip

_UNRECORDED = (
    "torch.export has not recorded how a tensor is computed, such as a gradient in forward: write it with operators"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """data: the ONNX model. outputs: names of the outputs, in the order in which pytrees have them."""

    data: bytes
    outputs: tuple[str, ...]


def exported(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any = None,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
) -> Exported:
    """The module in its present mode, called with these arguments, as an ONNX model.

    loss: a function of the module's outputs and `targets`, whose result becomes the first output. The targets become
    the inputs `target`, or `target_0`, `target_1`, ....
    Raises BackpassError for a module that cannot be exported, or not without changing what it computes.
    """
    import torch

    refuse_hooks(module)
    buffers = dict(module.named_buffers())
    args, dynamic_shapes = _with_targets(module, args, kwargs, dynamic_shapes, targets)
    traced = _as_traced(module, loss, len(targets), list(buffers))
    with traced, _without_packing([*args, *kwargs.values()]), torch.enable_grad():
        try:
            program = torch.export.export(
                module, tuple(args), dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False
            )
        except Exception as error:
            raise BackpassError(f"torch.export cannot trace {type(module).__name__}: {_cause(error)}") from error
    _check_constants(program)
    _check_training(program)
    refuse_features(program)
    stop_gradients(program)
    try:
        replace(program, rewrites())
        found = torch.onnx.export(
            program, dynamo=True, optimize=False, verbose=False, opset_version=OPSET,
            custom_translation_table=translations(),
        )  # fmt: skip
        _keep_apart(found.model)
        model = found.model_proto
    except Exception as error:
        raise BackpassError(f"torch.onnx.export cannot convert {type(module).__name__}: {_cause(error)}") from error
    _move_behind(model, len(targets))
    _name_tied(model, module)
    _bind_buffers(model, buffers)
    names = [name for name, each in module.named_parameters() if each.requires_grad]
    model.metadata_props.add(key=TRAINABLE, value=json.dumps(names))
    try:
        return Exported(model.SerializeToString(), tuple(each.name for each in model.graph.output))
    except ValueError as error:  # protobuf ends at 2 GiB
        raise BackpassError(f"the ONNX model of {type(module).__name__} is too large: {error}") from error


def _cause(error: BaseException) -> str:
    """The first error of a chain; torch puts long advice around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BackpassError):
        return str(error)
    if "fake tensor in the exported program constant" in str(error):
        return _UNRECORDED
    return f"{type(error).__name__}: {error}"


# --- tracing -------------------------------------------------------------------------------------------------------


def _with_targets(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any, targets: Sequence[Any]
) -> tuple[list[Any], Any]:
    """The positional arguments and the dynamic shapes, both with the targets in front: they have to be positional."""
    if not targets or dynamic_shapes is None:
        return [*targets, *args], dynamic_shapes
    from torch.export import Dim

    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    named = (
        dict(dynamic_shapes) if isinstance(dynamic_shapes, Mapping) else dict(zip(bound, dynamic_shapes, strict=False))
    )
    open_sizes = {name: [Dim.AUTO] * each.ndim for name, each in zip(_target_names(len(targets)), targets, strict=True)}
    return [*targets, *args], {**open_sizes, **named}


def _move_behind(model: Any, targets: int) -> None:
    """Let the inputs of the graph be the arguments of the module, then the targets."""
    inputs = list(model.graph.input)
    del model.graph.input[:]
    model.graph.input.extend([*inputs[targets:], *inputs[:targets]])


def _target_names(count: int) -> list[str]:
    return ["target"] if count == 1 else [f"target_{i}" for i in range(count)]


@contextmanager
def _as_traced(module: Any, loss: Callable[..., Any] | None, targets: int, buffers: Sequence[str]) -> Iterator[None]:
    """Inside the block a call of the module takes the targets first, and returns the loss, the outputs and the
    buffers after the call.

    The forward function of the module is replaced, not the module wrapped: so all names stay.
    """
    forward = module.forward
    replaced = module.__dict__.get("forward")
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with watched():
            outputs = forward(*args[targets:], **kwargs)
            if loss is not None:
                outputs = (loss(outputs, *args[:targets]), outputs)
        now = dict(module.named_buffers())
        return outputs, [now[name].clone() for name in buffers]

    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in _target_names(targets)]
    traced.__signature__ = signature.replace(parameters=[*first[:targets], *signature.parameters.values()])  # type: ignore[attr-defined]
    module.forward = traced
    try:
        yield
    finally:
        if replaced is None:
            del module.forward
        else:
            module.forward = replaced


@contextmanager
def _without_packing(inputs: Sequence[Any]) -> Iterator[None]:
    """Inside the block no sequence can be packed: torch.export would fail later, with an error about sizes."""
    from torch import _VF
    from torch.nn.utils.rnn import PackedSequence

    def refuse(*_: Any, **__: Any) -> Any:
        raise BackpassError(
            "packed sequences have no counterpart in ONNX: pass the padded sequences with their lengths as a feed, and "
            "mask or pick the states by length"
        )

    if any(isinstance(each, PackedSequence) for each in inputs):
        refuse()
    pack = _VF._pack_padded_sequence
    _VF._pack_padded_sequence = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        _VF._pack_padded_sequence = pack  # type: ignore[method-assign]


def _check_constants(program: Any) -> None:
    """Raises BackpassError if the module uses a tensor that torch.export has computed, but not recorded."""
    import torch
    from torch._subclasses import FakeTensor

    is_inside_transform = torch._C._functorch.is_functorch_wrapped_tensor  # of torch.func
    tensors = [each for each in program.constants.values() if isinstance(each, torch.Tensor)]
    if any(isinstance(each, FakeTensor) or is_inside_transform(each) for each in tensors):
        raise BackpassError(_UNRECORDED)


def _check_training(program: Any) -> None:
    """Raises BackpassError if an operator would be exported as in evaluation."""
    wrong = [
        f"{node.target._schema.name} (at {place(node)})"
        for node in calls(program)
        if schema_name(node) and schema_name(node).rstrip("_") not in _RIGHT_IN_TRAINING
        if any(value for name, value in argument_values(node).items() if name in _TRAINING)
    ]
    if wrong:
        raise BackpassError(f"the export of these operators in training mode is not supported: {', '.join(wrong)}")


# --- the model -----------------------------------------------------------------------------------------------------


def _keep_apart(model: Any) -> None:
    """Give inputs and results that are named like a parameter or buffer names of their own: `scale_1` for `scale`.

    torch writes an argument `scale` under the name of the parameter `scale`, and the result of `x.t()` under that of a
    parameter `t`; in the file they would be the same value.
    """
    states = set(model.graph.initializers)
    results = [each for node in model.graph.all_nodes() for each in node.outputs]
    taken = states | {each.name for each in (*model.graph.inputs, *results)}
    for each in (*model.graph.inputs, *results):
        if each.name in states and each is not model.graph.initializers[each.name]:
            each.name = next(name for i in itertools.count(1) if (name := f"{each.name}_{i}") not in taken)
            taken.add(each.name)


def _name_tied(model: Any, module: Any) -> None:
    """Give a parameter or buffer that the module has under several names the first of them."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    for name, each in every:
        first.setdefault(id(each), name)
    _rename(model, {name: first[id(each)] for name, each in every if first[id(each)] != name})


def _rename(model: Any, names: Mapping[str, str]) -> None:
    """Rename values of the model, in inner graphs and functions too: no inner name hides an outer one."""
    present = {each.name for each in model.graph.initializer}
    names = {old: new for old, new in names.items() if old in present}
    if not names:
        return

    def rename(graph: Any) -> None:
        for node in graph.node:
            for values in (node.input, node.output):
                for i, name in enumerate(values):
                    if name in names:
                        values[i] = names[name]
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    rename(inner)
        for each in (*graph.initializer, *graph.output, *graph.value_info):
            each.name = names.get(each.name, each.name)

    rename(model.graph)
    kept: dict[str, Any] = {}
    for each in model.graph.initializer:
        kept.setdefault(each.name, each)
    kept_list = list(kept.values())
    if len(kept_list) < len(model.graph.initializer):
        copies = [type(each).FromString(each.SerializeToString()) for each in kept_list]
        del model.graph.initializer[:]
        model.graph.initializer.extend(copies)


def _bind_buffers(model: Any, buffers: Mapping[str, Any]) -> None:
    """Move the last outputs of the graph, the buffers after a step, to the training information of the model."""
    from onnxscript import ir

    if not buffers:
        return
    graph = model.graph
    first = len(graph.output) - len(buffers)
    outputs = list(graph.output[first:])
    given_by = {name: node for node in graph.node for name in node.output}
    initialisers = {each.name for each in graph.initializer}
    written = [
        (name, output)
        for name, output in zip(buffers, outputs, strict=True)
        if _source(output.name, given_by) not in initialisers
    ]
    if written:
        info = model.training_info.add()
        info.algorithm.name = "buffers"
        for name, output in written:
            new = f"{name}.next"
            info.algorithm.node.add(op_type="Identity", input=[output.name], output=[new])
            copied = info.algorithm.output.add()
            copied.CopyFrom(output)
            copied.name = new
            info.update_binding.add(key=name, value=new)
            if name not in initialisers:  # no step reads it
                value = ir.serde.serialize_tensor(ir.tensor(buffers[name].detach(), name=name))
                graph.initializer.add().ParseFromString(value.SerializeToString())
    del graph.output[first:]


def _source(name: str, given_by: Mapping[str, Any]) -> str:
    """The value that `name` is a copy of."""
    while name in given_by and given_by[name].op_type == "Identity":
        name = given_by[name].input[0]
    return name
