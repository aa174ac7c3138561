"""A module of PyTorch as an ONNX model that trains as the module does.

`torch.onnx.export` gives the forward pass. Added here, because a model in training needs it:

* batch normalisation over the batch, which the exporter writes as in evaluation;
* dropout inside of attention, which the exporter leaves out;
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
    _check_training(program)
    try:
        found = torch.onnx.export(
            program, dynamo=True, optimize=False, verbose=False, opset_version=OPSET,
            custom_translation_table=_translations(),
        )  # fmt: skip
        _keep_apart(found.model)
        model = found.model_proto
    except Exception as error:
        raise BackpassError(f"torch.onnx.export cannot convert {type(module).__name__}: {_cause(error)}") from error
    _name_tied(model, module)
    _bind_buffers(model, list(buffers))
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


def _check_training(program: Any) -> None:
    """Raises BackpassError if an operator would be exported as in evaluation."""
    graphs = [each.graph for each in program.graph_module.modules() if hasattr(each, "graph")]
    wrong = []
    for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name.split("::")[-1].rstrip("_") in _RIGHT_IN_TRAINING:
            continue
        given = {each.name: each.default_value for each in schema.arguments if each.name in _TRAINING}
        given |= {a.name: v for a, v in zip(schema.arguments, node.args, strict=False) if a.name in given}
        given |= {name: v for name, v in node.kwargs.items() if name in given}
        if any(given.values()):
            wrong.append(f"{schema.name} (at {_place(node)})")
    if wrong:
        raise BackpassError(f"the export of these operators in training mode is not supported: {', '.join(wrong)}")


def _place(node: Any) -> str:
    modules = [path for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
    return modules[-1] if modules else node.name


# --- operators -----------------------------------------------------------------------------------------------------


def _translations() -> dict[Any, Callable[..., Any]]:
    import torch

    aten = torch.ops.aten
    return {
        aten._native_batch_norm_legit_functional.default: _batch_norm,
        aten._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
        aten.scaled_dot_product_attention.default: _attention,
    }


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Batch normalisation with running statistics: out, mean and 1 / deviation of the batch, new statistics.

    ONNX's new variance has the biased variance of the batch, torch's the unbiased one.
    """
    from onnxscript import opset20 as op

    weight, bias = _affine(x, weight, bias)
    if not training:
        out = op.BatchNormalization(x, weight, bias, mean, var, epsilon=eps)
        return out, mean, op.Reciprocal(op.Sqrt(op.Add(var, _like(eps, var)))), mean, var
    out, new_mean, biased = op.BatchNormalization(
        x, weight, bias, mean, var, epsilon=eps, momentum=1.0 - momentum, training_mode=1
    )
    count = op.CastLike(op.Div(op.Size(x), op.Size(mean)), mean)
    kept = op.Mul(var, _like(1.0 - momentum, var))
    unbiased = op.Div(op.Mul(op.Sub(biased, kept), count), op.Sub(count, _like(1.0, mean)))
    return (out, *_of_batch(x, eps), new_mean, op.Add(kept, unbiased))


def _batch_norm_without_statistics(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Batch normalisation with the statistics of the batch, in training and in evaluation."""
    from onnxscript import opset20 as op

    weight, bias = _affine(x, weight, bias)
    zeros = op.Mul(weight, _like(0.0, weight))
    out, _, _ = op.BatchNormalization(x, weight, bias, zeros, zeros, epsilon=eps, training_mode=1)
    return (out, *_of_batch(x, eps))


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention. A query that may look at nothing gets zeros, as torch gives it."""
    import onnx
    from onnxscript import opset20 as op

    if enable_gqa:
        key, value = _for_each_query(query, key), _for_each_query(query, value)
    size = op.CastLike(op.Shape(query, start=-1), query)
    factor = op.Reciprocal(op.Sqrt(size)) if scale is None else _like(scale, query)
    rank = len(query.shape)
    turned = [*range(rank - 2), rank - 1, rank - 2]
    scores = op.MatMul(op.Mul(query, factor), op.Transpose(key, perm=turned))
    allowed = attn_mask if attn_mask is not None and attn_mask.dtype == onnx.TensorProto.BOOL else None
    if is_causal:
        sizes = op.Concat(op.Shape(query, start=-2, end=-1), op.Shape(key, start=-2, end=-1), axis=0)
        ones = op.Expand(op.Constant(value_int=1), sizes)
        allowed = op.Cast(op.Trilu(ones, upper=0), to=onnx.TensorProto.BOOL)
    if allowed is None:
        weights = op.Softmax(scores if attn_mask is None else op.Add(scores, attn_mask), axis=-1)
    else:  # a finite number, so that the gradients of a query without any allowed key are finite, too
        lowest = -6e4 if query.dtype == onnx.TensorProto.FLOAT16 else -1e30
        weights = op.Softmax(op.Where(allowed, scores, _like(lowest, scores)), axis=-1)
        weights = op.Where(allowed, weights, _like(0.0, scores))
    if dropout_p > 0:
        weights, _ = op.Dropout(weights, op.Constant(value_float=dropout_p), op.Cast(1, to=onnx.TensorProto.BOOL))
    return op.MatMul(weights, value)


def _for_each_query(query: Any, key: Any) -> Any:
    """Keys or values with their heads repeated up to the number of heads of the queries."""
    from onnxscript import opset20 as op

    repeats = op.Div(op.Shape(query, start=-3, end=-2), op.Shape(key, start=-3, end=-2))
    apart = op.Unsqueeze(key, op.Constant(value_ints=[-3]))
    lead, rest = op.Shape(key, start=0, end=-2), op.Shape(key, start=-2)
    wide = op.Expand(apart, op.Concat(lead, repeats, rest, axis=0))
    heads = op.Mul(op.Shape(key, start=-3, end=-2), repeats)
    return op.Reshape(wide, op.Concat(op.Shape(key, start=0, end=-3), heads, rest, axis=0))


def _affine(x: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Factors and terms: ones and zeros for a layer that learns none."""
    from onnxscript import opset20 as op

    channels = op.Shape(x, start=1, end=2)
    ones = op.Expand(_like(1.0, x), channels) if weight is None else weight
    return ones, op.Expand(_like(0.0, x), channels) if bias is None else bias


def _of_batch(x: Any, eps: float) -> tuple[Any, Any]:
    """The mean and the reciprocal of the deviation of each channel."""
    from onnxscript import opset20 as op

    axes = op.Constant(value_ints=[i for i in range(len(x.shape)) if i != 1])
    mean = op.ReduceMean(x, axes, keepdims=1)
    difference = op.Sub(x, mean)
    var = op.ReduceMean(op.Mul(difference, difference), axes, keepdims=0)
    return op.Squeeze(mean, axes), op.Reciprocal(op.Sqrt(op.Add(var, _like(eps, var))))


def _like(number: float, x: Any) -> Any:
    from onnxscript import opset20 as op

    return op.CastLike(op.Constant(value_float=number), x)


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


def _bind_buffers(model: Any, buffers: Sequence[str]) -> None:
    """Move the last outputs of the graph, the buffers after a step, to the training information of the model."""
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
    del graph.output[first:]


def _source(name: str, given_by: Mapping[str, Any]) -> str:
    """The value that `name` is a copy of."""
    while name in given_by and given_by[name].op_type == "Identity":
        name = given_by[name].input[0]
    return name
