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
from backpass_client.text import fields

__all__ = ["Session", "Step"]


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
        """The sequence number of the next step or update."""
        return self._calls.next

    def view(self) -> dict[str, Any]:
        """The state of the session: step, version of the weights, lease."""
        return self.service.call("GET", self.path)

    def step(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: Sequence[str] = (),
        return_gradients: str | Sequence[str] = "none",
        **more: Any,
    ) -> Step:
        """Run forward, backward and update.

        return_gradients: "none", "norms", "all", or a list of parameter names.
        more:             more members of the body of POST .../steps, such as deadline_s.
        """
        returned = return_gradients if isinstance(return_gradients, str) else list(return_gradients)
        asked = {"fetch": list(fetch), "return_gradients": returned, **more}
        said, tensors = self._calls.send("steps", asked, feeds)
        return Step(tensors.get("loss"), group(tensors, "fetch"), from_tensors(said, tensors), said)

    def update(self, gradients: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Apply gradients computed elsewhere. gradients: parameter -> array, or `Rows` of a table."""
        said, _ = self._calls.send("updates", more, to_tensors(gradients))
        return said

    def gradients(self, feeds: Mapping[str, Any] = NO_TENSORS, fetch: Sequence[str] = (), **more: Any) -> Gradients:
        """Gradients at the present parameters; changes nothing."""
        asked = {"fetch": list(fetch), **more}
        return gradients_of(*self.service.exchange("POST", f"{self.path}/gradients", asked, feeds, repeat=True))

    def evaluate(self, feeds: Mapping[str, Any] = NO_TENSORS, fetch: Sequence[str] = (), **more: Any) -> Arrays:
        """Run forward only: the fetched values, or the loss if `fetch` is empty."""
        asked = {"fetch": list(fetch), **more}
        _, tensors = self.service.exchange("POST", f"{self.path}/evaluations", asked, feeds, repeat=True)
        return group(tensors, "fetch")

    def parameters(self) -> Arrays:
        """Parameters and states by name, as `put_parameters` takes them, in this session or another."""
        return Arrays(self.service.exchange("GET", f"{self.path}/parameters")[1])

    def put_parameters(self, values: Mapping[str, Any]) -> None:
        """Replace the named parameters and states. The others, and the optimizer's state, stay."""
        self.service.exchange("PUT", f"{self.path}/parameters", {}, values, headers={"if-match": "*"})

    def __repr__(self) -> str:
        return f"Session({self.service.url!r}, {self.id!r})"
