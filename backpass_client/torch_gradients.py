"""Where gradients end or change in a module of PyTorch: `no_grad`, functions with a backward pass of their own, hooks.

`torch.export` records what a module computes, not its gradient. Here blocks without gradients get `detach`, which the
service reads, and what a program cannot hold is refused. torch is imported where it is used.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backpass_client.errors import BackpassError
from backpass_client.torch_graphs import Body, arguments, calls, is_float, place, schema_name

__all__ = ["refuse_hooks", "stop_gradients", "watched"]

_WITHOUT_GRADIENTS = "wrap_with_set_grad_enabled"
"""The operator of torch.export that runs a graph inside `no_grad`. Its arguments: False, the graph, the inputs."""


# --- before tracing ------------------------------------------------------------------------------------------------


def refuse_hooks(module: Any) -> None:
    """Raise BackpassError for hooks that may change gradients."""
    wrong = [f"module {path or type(each).__name__!r}" for path, each in module.named_modules() if _has_hooks(each)]
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    wrong += [f"parameter {name!r}" for name, each in module.named_parameters() if any(getattr(each, k) for k in kinds)]
    if wrong:
        raise BackpassError(f"a program has no hooks of backward passes: remove those of {', '.join(wrong)}")


def _has_hooks(module: Any) -> bool:
    return bool(module._backward_hooks or module._backward_pre_hooks)


# --- while tracing -------------------------------------------------------------------------------------------------


@contextmanager
def watched() -> Iterator[None]:
    """Inside the block calls that torch.export would record without their effect on gradients raise BackpassError, and
    `x.data` is `x.detach()`."""
    import torch
    from torch.autograd.function import _SingleLevelFunction

    grad, enter = torch.autograd.grad, torch.inference_mode.__enter__

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__.startswith("torch._"):  # parts of torch.cond and others
            return super(_SingleLevelFunction, function).apply(*args, **kwargs)
        if function.__module__ == "torch.utils.checkpoint":
            raise BackpassError("pass use_reentrant=False to checkpoint: the other kind has a backward pass of its own")
        raise BackpassError(
            f"{function.__qualname__} is a torch.autograd.Function, whose backward pass would be lost: write it with "
            "operators of torch, such as x + (f(x) - x).detach() for a gradient that passes f"
        )

    def refuse_hook(*_: Any, **__: Any) -> Any:
        raise BackpassError("a program has no hooks of backward passes: do not register one in forward")

    @functools.wraps(grad)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found = grad(*args, **kwargs)
        if inspect.signature(grad).bind(*args, **kwargs).arguments.get("create_graph", False):
            return found
        return tuple(None if each is None else each.detach() for each in found)

    def refuse_backward(*_: Any, **__: Any) -> Any:
        raise BackpassError("a program cannot write gradients in forward: use torch.autograd.grad in place of backward")

    def refuse_inference(mode: Any) -> Any:
        if mode.mode:
            raise BackpassError("torch.export ignores torch.inference_mode: use torch.no_grad or .detach()")
        return enter(mode)

    def refuse_data(tensor: Any, value: Any) -> None:
        raise BackpassError("a program cannot assign to .data in forward: use a buffer, and copy_ in torch.no_grad")

    replaced: list[tuple[Any, str, Any]] = [
        (_SingleLevelFunction, "apply", classmethod(apply)),
        (torch.Tensor, "register_hook", refuse_hook),
        (torch.Tensor, "register_post_accumulate_grad_hook", refuse_hook),
        (torch.Tensor, "backward", refuse_backward),
        (torch.Tensor, "data", property(lambda tensor: tensor.detach(), refuse_data)),
        (torch.autograd, "backward", refuse_backward),
        (torch.autograd, "grad", gradient),
        (torch.inference_mode, "__enter__", refuse_inference),
    ]
    before = [vars(owner).get(name) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(replaced, before, strict=True):
            if value is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, value)


# --- after tracing -------------------------------------------------------------------------------------------------


def stop_gradients(program: Any) -> None:
    """Put `detach` in front of everything that is computed inside `no_grad`.

    Raises BackpassError where this would not give the gradient of torch.
    """
    import torch

    _refuse_writes(program)
    detach = torch.ops.aten.detach.default
    for module in _regions(program):
        for given in [node for node in module.graph.nodes if node.op == "placeholder" and is_float(node)]:
            users = {user for user in given.users if given not in _written(user)}
            if users:
                after = next(node for node in module.graph.nodes if node.op != "placeholder")
                made = Body(after)(detach, given)
                given.replace_all_uses_with(made, delete_user_cb=lambda user, users=users: user in users)
        module.recompile()


def _regions(program: Any) -> dict[Any, Any]:
    """The graphs that run inside `no_grad`, with the nodes that run them."""
    found = {}
    for node in calls(program):
        if getattr(node.target, "__name__", "") == "_set_grad_enabled":
            raise BackpassError(f"a block of torch.no_grad cannot be separated (at {place(node)}): use .detach()")
        if _is_region(node):
            found[getattr(node.graph.owning_module, node.args[1].target)] = node
    return found


def _is_region(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == _WITHOUT_GRADIENTS and node.args[0] is False


def _refuse_writes(program: Any) -> None:
    """Raise BackpassError if a value with a gradient is changed in place, where autograd does not see it.

    Its gradient in torch is that before the change. Buffers and values without a gradient may be changed.
    """
    regions = {module.graph: node for module, node in _regions(program).items()}
    kinds = {each.arg.name: each.kind.name for each in program.graph_signature.input_specs}
    for node in calls(program):
        for target in _written(node):
            base, hidden = _base(target, node.graph in regions, regions)
            kind = kinds.get(base.name, "") if base.op == "placeholder" else ""
            if kind == "PARAMETER":
                reason = "a parameter is changed in place: make it a buffer"
            elif hidden and _has_gradient(base, kinds):
                reason = "a value with a gradient is changed in place where autograd does not see it: change a copy"
            else:
                continue
            raise BackpassError(f"{schema_name(node)} at {place(node)}: {reason}")


def _written(node: Any) -> list[Any]:
    """The tensors that the operator changes in place."""
    if not schema_name(node) or schema_name(node) == "detach_":
        return []
    written = [value for declared, value in arguments(node) if declared.alias_info and declared.alias_info.is_write]
    every = [each for value in written for each in (value if isinstance(value, list | tuple) else [value])]
    return [each for each in every if hasattr(each, "all_input_nodes")]


def _base(node: Any, hidden: bool, regions: dict[Any, Any]) -> tuple[Any, bool]:
    """The value whose memory `node` shares, and whether it is reached through `detach` or from inside of `no_grad`.

    What a block without gradients makes itself is not hidden from autograd: it has no gradient.
    """
    while True:
        if node.op == "placeholder" and node.graph in regions:
            inputs = [each for each in node.graph.nodes if each.op == "placeholder"]
            node = regions[node.graph].args[2 + inputs.index(node)]
            continue
        shared = _shared(node)
        if shared is None:
            return node, hidden and node.graph not in regions
        hidden |= schema_name(node) in ("detach", "detach_")
        node = shared


def _shared(node: Any) -> Any | None:
    """The argument of which the result of the operator is a view, or which it has changed."""
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        source, place_of = node.args
        if _is_region(source):
            inner = getattr(source.graph.owning_module, source.args[1].target)
            return _output(inner)[place_of]
        return source
    if not schema_name(node):
        return None
    return next((value for each, value in arguments(node) if each.alias_info and hasattr(value, "users")), None)


def _output(module: Any) -> Any:
    return next(node for node in module.graph.nodes if node.op == "output").args[0]


def _has_gradient(node: Any, kinds: dict[str, str]) -> bool:
    """Whether the value depends on a parameter or an input through operators with gradients."""
    seen, left = set(), [node]
    while left:
        each = left.pop()
        ends = schema_name(each) in ("detach", "detach_") or (each.op == "call_function" and _is_region(each))
        if each in seen or ends or (hasattr(each.meta.get("val"), "dtype") and not is_float(each)):
            continue
        seen.add(each)
        if each.op == "placeholder" and kinds.get(each.name, "USER_INPUT") in ("PARAMETER", "USER_INPUT"):
            return True
        left.extend(each.all_input_nodes)
    return False
