"""A session: a program in training, whose parameters stay in the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from backpass_client.answers import Arrays, Gradients, gradients_of, group
from backpass_client.connection import NO_TENSORS, Service
from backpass_client.errors import BackpassError
from backpass_client.numbered import Numbered
from backpass_client.rows import from_tensors, to_tensors

__all__ = ["Session", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gave, before its update. said: the rest of the answer, with step, next_seq and weights_version."""

    loss: np.ndarray | None
    fetched: Arrays
    gradients: dict[str, Any]
    said: dict[str, Any] = field(default_factory=dict)


class Session:
    """One model in training; ``with program.session(...) as session`` closes it.

    Steps and updates carry a number each. One that got no answer, or a retryable problem, is sent again under its
    number: the service does it once, and answers it as often as it is asked.
    """

    def __init__(self, service: Service, view: Mapping[str, Any]) -> None:
        """view: what POST or GET of a session answered."""
        self.service = service
        self.id: str = view["id"]
        self.path = f"/v1/sessions/{self.id}"
        self._calls = Numbered(service, self.path, view["next_seq"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except BackpassError:
            if kind is None:  # else it would hide the error that led here
                raise

    def close(self) -> None:
        self.service.call("DELETE", self.path)

    @property
    def next_seq(self) -> int:
        """The number of the next step or update."""
        return self._calls.next

    def view(self) -> dict[str, Any]:
        """Its state, version, lease."""
        return self.service.call("GET", self.path)

    def step(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: Sequence[str] = (),
        return_gradients: str | Sequence[str] = "none",
        **more: Any,
    ) -> Step:
        """Forward, backward, update.

        return_gradients: "none", "norms", "all", or the names of some. more: whatever else the body of POST .../steps
        takes, such as deadline_s.
        """
        returned = return_gradients if isinstance(return_gradients, str) else list(return_gradients)
        asked = {"fetch": list(fetch), "return_gradients": returned, **more}
        said, tensors = self._calls.send("steps", asked, feeds)
        return Step(tensors.get("loss"), group(tensors, "fetch"), from_tensors(said, tensors), said)

    def update(self, gradients: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Apply gradients that were computed elsewhere, by parameter: arrays, or Rows of a table."""
        said, _ = self._calls.send("updates", more, to_tensors(gradients))
        return said

    def gradients(self, feeds: Mapping[str, Any] = NO_TENSORS, fetch: Sequence[str] = (), **more: Any) -> Gradients:
        """Gradients at the present parameters, which stay."""
        asked = {"fetch": list(fetch), **more}
        return gradients_of(*self.service.exchange("POST", f"{self.path}/gradients", asked, feeds, repeat=True))

    def evaluate(self, feeds: Mapping[str, Any] = NO_TENSORS, fetch: Sequence[str] = (), **more: Any) -> Arrays:
        """Forward only: the fetched values, or the loss if nothing is named."""
        asked = {"fetch": list(fetch), **more}
        _, tensors = self.service.exchange("POST", f"{self.path}/evaluations", asked, feeds, repeat=True)
        return group(tensors, "fetch")

    def parameters(self) -> Arrays:
        """Parameters and states by name: what `put_parameters` takes, here or in another session."""
        return self.service.exchange("GET", f"{self.path}/parameters")[1]

    def put_parameters(self, values: Mapping[str, Any]) -> None:
        """Replace parameters and states; those that are not named stay. The optimizer's state stays too."""
        self.service.exchange("PUT", f"{self.path}/parameters", {}, values, headers={"if-match": "*"})

    def __repr__(self) -> str:
        return f"Session({self.service.url!r}, {self.id!r})"
