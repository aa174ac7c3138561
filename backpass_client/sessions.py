"""Sessions: one session trains one program; its parameters stay in the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from backpass_client.connection import NO_TENSORS, Service
from backpass_client.errors import BackpassError
from backpass_client.idempotent_calls import IdempotentCalls
from backpass_client.results import Arrays, Gradients, gradients_of, group
from backpass_client.rows import from_tensors, to_tensors
from backpass_client.text import NamedArrays, fields

__all__ = ["Session", "Step", "Stopped"]


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """The values of one step, computed before its update. said: JSON members, such as step and next_seq."""

    loss: np.ndarray | None
    fetched: Arrays
    gradients: dict[str, Any]
    said: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        number = f"Step {self.said['step']}" if "step" in self.said else "Step"
        return fields(self, "loss", "fetched", "gradients").replace("Step", number, 1)


class Stopped(BackpassError):
    """A step of several in one call failed after others, which stay applied.

    step:    the values of the steps before it; `step.said["applied"]` is their number.
    reason:  the failure: code, detail, and the number of the batch, from 0.
    """

    def __init__(self, step: Step, reason: dict[str, Any]) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"batch {reason['batch']} failed after {reason['batch']} steps: {reason['detail']}")


class Session:
    """One model in training; ``with program.session(...) as session`` closes it.

    Each step and update carries a sequence number. The client sends it again, with the same number, after a broken
    connection or a retryable problem; the service executes it once and repeats its answer.
    """

    def __init__(self, service: Service, view: Mapping[str, Any]) -> None:
        """view: the response to POST or GET of a session."""
        self.service = service
        self.id: str = view["id"]
        self.path = f"/v1/sessions/{self.id}"
        self._calls = IdempotentCalls(service, self.path, view["next_seq"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except BackpassError:
            if kind is None:  # otherwise it would hide the error raised in the block
                raise

    def close(self) -> None:
        self.service.call("DELETE", self.path)

    @property
    def next_seq(self) -> int:
        """The sequence number of the next step, update or accumulating call."""
        return self._calls.next

    def view(self) -> dict[str, Any]:
        """The state of the session: step, version of the weights, lease."""
        return self.service.call("GET", self.path)

    def step(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: Sequence[str] = (),
        return_gradients: str | Sequence[str] = "none",
        *,
        target_gradients: Sequence[Any] = (),
        **more: Any,
    ) -> Step:
        """Run forward, backward and update.

        return_gradients: "none", "norms", "all", or a list of parameter names.
        target_gradients: the cotangents of the session's targets; None for ones.
        more:             more members of the body of POST .../steps: learning_rate for this step; batches=k for k
                          steps on feeds with a leading axis; accumulate=k for one update with the gradients of k
                          batches, and reduction="mean"; deadline_s.

        Raises Stopped if one of several steps fails after others.
        """
        returned = return_gradients if isinstance(return_gradients, str) else list(return_gradients)
        asked = {"fetch": list(fetch), "return_gradients": returned, **more}
        said, tensors = self._calls.send("steps", asked, _with_cotangents(feeds, target_gradients))
        found = Step(tensors.get("loss"), group(tensors, "fetch"), from_tensors(said, tensors), said)
        if said.get("stopped") is not None:
            raise Stopped(found, said["stopped"])
        return found

    def update(self, gradients: Mapping[str, Any] = NO_TENSORS, **more: Any) -> dict[str, Any]:
        """Apply gradients: those given, or without any those that `gradients` with accumulate=True has added up.

        gradients: parameter -> array, or `Rows` of a table.
        more:      more members of the body of POST .../updates, such as learning_rate and reduction="mean".
        """
        said, _ = self._calls.send("updates", more, to_tensors(gradients))
        return said

    def gradients(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: Sequence[str] = (),
        *,
        target_gradients: Sequence[Any] = (),
        accumulate: bool = False,
        **more: Any,
    ) -> Gradients:
        """Gradients at the present parameters; changes nothing.

        accumulate: add the gradients up in the session for a later `update`, and return only the values.
        """
        asked, tensors = {"fetch": list(fetch), **more}, _with_cotangents(feeds, target_gradients)
        if accumulate:
            return gradients_of(*self._calls.send("gradients", {**asked, "accumulate": True}, tensors))
        return gradients_of(*self.service.exchange("POST", f"{self.path}/gradients", asked, tensors, repeat=True))

    def discard_gradients(self) -> None:
        """Forget the gradients that `gradients` with accumulate=True has added up."""
        self.service.call("DELETE", f"{self.path}/gradients")

    def change_optimizer(self, **members: Any) -> dict[str, Any]:
        """Change members of the optimizer; None removes one. Returns the view of the session.

        ``session.change_optimizer(learning_rate=0.01)`` compiles nothing.
        """
        return self.service.call("PATCH", self.path, {"optimizer": members})

    def evaluate(self, feeds: Mapping[str, Any] = NO_TENSORS, fetch: Sequence[str] = (), **more: Any) -> Arrays:
        """Run forward only: the fetched values, or the loss if `fetch` is empty."""
        asked = {"fetch": list(fetch), **more}
        _, tensors = self.service.exchange("POST", f"{self.path}/evaluations", asked, feeds, repeat=True)
        return group(tensors, "fetch")

    def parameters(self) -> Arrays:
        """Parameters and states by name, as `put_parameters` takes them, in this session or another."""
        return NamedArrays(self.service.exchange("GET", f"{self.path}/parameters")[1])

    def put_parameters(self, values: Mapping[str, Any]) -> None:
        """Replace the named parameters and states. The others, and the optimizer's state, stay."""
        self.service.exchange("PUT", f"{self.path}/parameters", {}, values, headers={"if-match": "*"})

    def __repr__(self) -> str:
        return f"Session({self.service.url!r}, {self.id!r})"


def _with_cotangents(feeds: Mapping[str, Any], cotangents: Sequence[Any]) -> Mapping[str, Any]:
    """The tensors of a request: the feeds, and the cotangents of targets under their names."""
    if not cotangents:
        return feeds
    return {**feeds, **{f"target_gradients/{i}": each for i, each in enumerate(cotangents) if each is not None}}
