"""Programs: register one, then compute its gradients, inspect it, check it, or train it in a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from backpass_client.connection import NO_TENSORS, Service, quoted
from backpass_client.results import Gradients, gradients_of, streamed
from backpass_client.sessions import Session
from backpass_client.streams import GradientStream

__all__ = ["Program"]


class Program:
    """A registered program. The same document always has the same id."""

    def __init__(self, service: Service | str, document: Mapping[str, Any] | str) -> None:
        """service:  a connection, or an address; ``with Program(address, ...)`` closes the connection at the end.
        document: a program document, which is registered now; or the id of a registered program.

        Raises Refused with every mistake in the document.
        """
        self._owns_service = isinstance(service, str)
        self.service = Service(service) if isinstance(service, str) else service
        if isinstance(document, str):
            self.id = document
            self.signature: dict[str, Any] = self.service.call("GET", f"/v1/programs/{quoted(document)}")["signature"]
        else:
            # registering the same program twice stores it once, so repeating is safe
            made = self.service.call("POST", "/v1/programs", {"program": document}, repeat=True)
            self.id, self.signature = made["id"], made["signature"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns_service:
            self.service.close()

    def document(self) -> dict[str, Any]:
        """The registered document."""
        return self.service.call("GET", f"/v1/programs/{self.id}")["program"]

    def backward(self, loss: str, **question: Any) -> dict[str, Any]:
        """The program with its backward pass, and the tables that describe it. question: more query parameters."""
        return self.service.call("GET", f"/v1/programs/{self.id}/backward", query={"loss": loss, **question})

    def analysis(self, loss: str, shapes: Mapping[str, Sequence[int]] | None = None, **question: Any) -> dict[str, Any]:
        """The predicted cost of a step and its causes; nothing runs. shapes: shapes of feeds with open sizes."""
        sizes = [f"{name}:{','.join(map(str, shape))}" for name, shape in (shapes or {}).items()]
        query = {"loss": loss, "shape": sizes, **question}
        return self.service.call("GET", f"/v1/programs/{self.id}/analysis", query=query)

    def check(
        self,
        loss: str,
        feeds: Mapping[str, Any] = NO_TENSORS,
        parameters: Mapping[str, Any] = NO_TENSORS,
        **settings: Any,
    ) -> dict[str, Any]:
        """Compare every gradient with finite differences of the loss. Missing parameters are drawn at random.

        settings: more members of the body of POST /v1/programs/{id}/check, such as samples and tolerance.
        """
        asked = {"loss": loss, **settings}
        return self.service.upload(f"/v1/programs/{self.id}/check", asked, {**feeds, **parameters}, repeat=True)

    def gradients(
        self,
        loss: str | None = None,
        feeds: Mapping[str, Any] = NO_TENSORS,
        parameters: Mapping[str, Any] = NO_TENSORS,
        *,
        fetch: Sequence[str] = (),
        **question: Any,
    ) -> Gradients:
        """Gradients at these values. The service keeps nothing, so repeating is safe.

        question: more members of the body of POST /v1/programs/{id}/gradients, such as targets and inputs.
        """
        asked = {"fetch": list(fetch), **question}
        if loss is not None:
            asked["loss"] = loss
        path = f"/v1/programs/{self.id}/gradients"
        said, tensors = self.service.exchange("POST", path, asked, {**feeds, **parameters}, repeat=True)
        return gradients_of(said, tensors)

    def stream_gradients(
        self,
        loss: str | None = None,
        feeds: Mapping[str, Any] = NO_TENSORS,
        parameters: Mapping[str, Any] = NO_TENSORS,
        *,
        fetch: Sequence[str] = (),
        **question: Any,
    ) -> GradientStream[Gradients]:
        """As `gradients`, each gradient as soon as it is final.

            for name, gradient in program.stream_gradients("loss", feeds, parameters): ...

        `result` of the stream has the loss and the fetched values.
        """
        asked = {"fetch": list(fetch), **question} | ({} if loss is None else {"loss": loss})
        return streamed(self.service, f"/v1/programs/{self.id}/gradients", asked, {**feeds, **parameters})

    def session(self, loss: str | None = None, parameters: Mapping[str, Any] = NO_TENSORS, **settings: Any) -> Session:
        """A session that trains this program.

        parameters: initial values; the service initializes the others.
        settings:   more members of the body of POST /v1/sessions, such as optimizer, init, clip_norm, lease_s; targets
                    in place of a loss; from_checkpoint, missing and extra to start from a checkpoint.
        """
        named = {} if loss is None else {"loss": loss}
        asked = {"program_id": self.id, **named, **settings}
        return Session(self.service, self.service.upload("/v1/sessions", asked, parameters))

    def __repr__(self) -> str:
        return f"Program({self.service.url!r}, {self.id!r})"
