"""A module of PyTorch whose forward and backward pass run in a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from backpass_client.errors import BackpassError
from backpass_client.programs import Program
from backpass_client.sessions import Session
from backpass_client.torch_tensors import from_array, to_array

__all__ = ["RemoteModule"]


class RemoteModule(nn.Module):
    """Part of a model of PyTorch that lives in a service, with its weights, their gradients and their optimizer.

        head = bp.RemoteModule(program, optimizer={"type": "adam", "learning_rate": 1e-3})
        loss = criterion(head(body(images)), labels)
        loss.backward()      # gradients of `body` as usual; those of `head` are added up in the service
        optimizer.step()     # the weights of `body`
        head.step()          # the weights of `head`

    A call takes the feeds of the program as tensors, in their order or by name, and returns its outputs: one tensor, or
    a tuple. Sessions have no graph: the backward pass computes the forward pass again. Differentiating a gradient of a
    call raises BackpassError. In evaluation mode it runs the
    program's evaluation form, without dropout and with running statistics.
    """

    def __init__(
        self, program: Program, *, outputs: Sequence[str] | None = None, optimizer: Any = None, **settings: Any
    ) -> None:
        """program:   with at least one parameter to train.
        outputs:   variables of the program to return, of floating point; by default those of its ONNX model.
        optimizer: as of a session.
        settings:  more members of the body of POST /v1/sessions, such as clip_norm and lease_s.
        """
        super().__init__()
        self.program = program
        self.outputs = list(program.outputs if outputs is None else outputs)
        if not self.outputs:
            raise BackpassError("name the outputs: the program is not of an ONNX model")
        signature = program.signature
        self._floats = {each["name"] for each in signature["feeds"] if "float" in each["dtype"]}
        trained = [each["name"] for each in signature["parameters"] if each.get("trainable", True)]
        self._settings: dict[str, Any] = {"targets": self.outputs, "inputs": [*trained, *sorted(self._floats)]}
        given = {} if optimizer is None else {"optimizer": optimizer}
        self.session: Session = program.session(**self._settings, **given, **settings)
        self._evaluating: tuple[tuple[int, int], Session] | None = None
        self._is_random = any(_draws(program, op) for op in signature["op_types"])
        self._updates = self._added = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for the feeds as tensors, in their order or by name."""
        if len(args) > len(self.program.inputs):
            raise TypeError(f"the program has {len(self.program.inputs)} feeds, not {len(args)}")
        given = dict(zip(self.program.inputs, args, strict=False))
        if twice := sorted(given.keys() & kwargs.keys()):
            raise TypeError(f"the feed {twice[0]!r} is given twice")
        given |= kwargs
        watched = torch.zeros((), requires_grad=torch.is_grad_enabled())  # the weights need gradients in any case
        results = _Call.apply(self, list(given), watched, *given.values())
        return results[0] if len(results) == 1 else results

    def step(self, **more: Any) -> dict[str, Any]:
        """Update the weights with the added-up gradients. more: as of `Session.update`."""
        said = self.session.update(**more)
        self._updates, self._added = self._updates + 1, 0
        return said

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the added-up gradients."""
        self.session.discard_gradients()
        self._added = 0

    def load_into(self, module: Any) -> None:
        """Copy the weights and buffers into a module that has them under the same names."""
        self.session.load_into(module)

    def close(self) -> None:
        """End the sessions."""
        if self._evaluating is not None:
            self._evaluating[1].close()
            self._evaluating = None
        self.session.close()

    def _session(self) -> Session:
        """The session that the present mode computes with."""
        if self.training:
            return self.session
        present = self._updates, self._added  # backward passes write running statistics
        if self._evaluating is None:
            clone = self.program.clone(for_test=True)
            self._evaluating = present, clone.session(parameters=self.session.parameters(), **self._settings)
        elif self._evaluating[0] != present:
            self._evaluating[1].put_parameters(self.session.parameters())
            self._evaluating = present, self._evaluating[1]
        return self._evaluating[1]


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, remote: RemoteModule, names: list[str], watched: Any, *tensors: Any) -> tuple[Any, ...]:
        ctx.remote, ctx.names, ctx.at = remote, names, (remote._updates, remote._added)
        ctx.session = remote._session()
        ctx.save_for_backward(*(each for each in tensors if isinstance(each, torch.Tensor)))
        ctx.is_tensor = [isinstance(each, torch.Tensor) for each in tensors]
        ctx.others = [each for each in tensors if not isinstance(each, torch.Tensor)]
        fetched = ctx.session.evaluate(_feeds(names, tensors), fetch=remote.outputs)
        device = next((each.device for each in tensors if isinstance(each, torch.Tensor)), torch.device("cpu"))
        return tuple(from_array(fetched[name]).to(device) for name in remote.outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            gradients = _Call._gradients(ctx, cotangents)
        if torch.is_grad_enabled():  # create_graph=True
            gradients = _Constant.apply(torch.zeros((), requires_grad=True), *gradients)
        return None, None, None, *gradients

    @staticmethod
    def _gradients(ctx: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        remote: RemoteModule = ctx.remote
        updates, added = ctx.at
        if remote._updates != updates:
            raise BackpassError("the weights were updated between the forward and the backward pass")
        if remote._is_random and remote.training and remote._added != added:
            raise BackpassError(
                "the program draws random numbers, so each forward pass must be followed by its backward pass"
            )
        saved, others = iter(ctx.saved_tensors), iter(ctx.others)
        tensors = [next(saved) if is_tensor else next(others) for is_tensor in ctx.is_tensor]
        wanted = [
            name
            for name, needed in zip(ctx.names, ctx.needs_input_grad[3:], strict=True)
            if needed and name in remote._floats
        ]
        is_training = ctx.session is remote.session
        found = ctx.session.gradients(
            _feeds(ctx.names, tensors),
            target_gradients=[to_array(each) for each in cotangents],
            accumulate=is_training,
            return_gradients=wanted,
        )
        remote._added += is_training
        by_name: Mapping[str, Any] = found.gradients
        return tuple(
            from_array(by_name[name]).to(tensor.device) if name in by_name and name in wanted else None
            for name, tensor in zip(ctx.names, tensors, strict=True)
        )


class _Constant(torch.autograd.Function):
    """Gradients that cannot be differentiated. Without it torch would take them for constants, and the gradients of a
    penalty on them would lack a term without an error."""

    @staticmethod
    def forward(ctx: Any, watched: Any, *gradients: Any) -> tuple[Any, ...]:
        return tuple(None if each is None else each.view_as(each) for each in gradients)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise BackpassError(
            "a RemoteModule has no gradients of second order: the loss depends on a gradient that it computed with "
            "create_graph=True. Compute this part of the loss in the program, or the module locally"
        )


def _feeds(names: Sequence[str], tensors: Sequence[Any]) -> dict[str, Any]:
    return {
        name: to_array(each) if isinstance(each, torch.Tensor) else each
        for name, each in zip(names, tensors, strict=True)
    }


def _draws(program: Program, op: str) -> bool:
    """Whether an op draws random numbers: then it has a slot for their key."""
    return any(slot["name"] == "key" for slot in program.service.op(op).get("inputs", ()))
