"""Programs: register one, then compute its gradients, inspect it, check it, or train it in a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self

from backpass_client.builder import BuiltProgram, explain
from backpass_client.connection import NO_TENSORS, Service, quoted
from backpass_client.errors import BackpassError, Refused
from backpass_client.results import Gradients, gradients_of, streamed
from backpass_client.sessions import Session
from backpass_client.streams import GradientStream

__all__ = ["Program", "Programs"]


class Program:
    """A registered program. The same document always has the same id.

    A program that `program` has built brings its loss and first values along: calls need not repeat them.
    """

    id: str
    signature: dict[str, Any]

    def __init__(self, service: Service | str, document: BuiltProgram | Mapping[str, Any] | str) -> None:
        """service:  a connection, or an address; ``with Program(address, ...)`` closes the connection at the end.
        document: a program that `program` has built or a program document, which is registered now; or the id of a
                  registered program.

        Raises Refused with every mistake in the document, and the Python lines of a built program that wrote them.
        """
        self._owns_service = isinstance(service, str)
        self.service = Service(service) if isinstance(service, str) else service
        self.built = document if isinstance(document, BuiltProgram) else None
        if isinstance(document, BuiltProgram):
            try:
                made = self.service.call("POST", "/v1/programs", {"program": document.document()}, repeat=True)
            except Refused as error:
                explain(error, document)
                raise
            self.id, self.signature = made["id"], made["signature"]
        elif isinstance(document, str):
            self.id = document
            self.signature = self.service.call("GET", f"/v1/programs/{quoted(document)}")["signature"]
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

    def _loss(self, loss: str | None) -> str | None:
        """`loss`, or that of the built program."""
        return self.built.loss if loss is None and self.built is not None else loss

    def _needed_loss(self, loss: str | None) -> str:
        found = self._loss(loss)
        if found is None:
            raise BackpassError("name the loss: the program has no output `loss` and not one number as its only output")
        return found

    def _values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given`, and the first values that the built program has for other parameters."""
        return {**(self.built.values if self.built is not None else {}), **given}

    def backward(self, loss: str | None = None, **question: Any) -> dict[str, Any]:
        """The program with its backward pass, and the tables that describe it. question: more query parameters."""
        asked = {"loss": self._needed_loss(loss), **question}
        return self.service.call("GET", f"/v1/programs/{self.id}/backward", query=asked)

    def analysis(
        self, loss: str | None = None, shapes: Mapping[str, Sequence[int]] | None = None, **question: Any
    ) -> dict[str, Any]:
        """The predicted cost of a step and its causes; nothing runs. shapes: shapes of feeds with open sizes."""
        sizes = [f"{name}:{','.join(map(str, shape))}" for name, shape in (shapes or {}).items()]
        query = {"loss": self._needed_loss(loss), "shape": sizes, **question}
        return self.service.call("GET", f"/v1/programs/{self.id}/analysis", query=query)

    def check(
        self,
        loss: str | None = None,
        feeds: Mapping[str, Any] = NO_TENSORS,
        parameters: Mapping[str, Any] = NO_TENSORS,
        **settings: Any,
    ) -> dict[str, Any]:
        """Compare every gradient with finite differences of the loss. Missing parameters are drawn at random.

        settings: more members of the body of POST /v1/programs/{id}/check, such as samples and tolerance.
        """
        asked, tensors = {"loss": self._needed_loss(loss), **settings}, {**feeds, **self._values(parameters)}
        return self.service.upload(f"/v1/programs/{self.id}/check", asked, tensors, repeat=True)

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
        given = {**feeds, **self._values(parameters)}
        path = f"/v1/programs/{self.id}/gradients"
        said, tensors = self.service.exchange("POST", path, self._question(loss, fetch, question), given, repeat=True)
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
        given = {**feeds, **self._values(parameters)}
        return streamed(self.service, f"/v1/programs/{self.id}/gradients", self._question(loss, fetch, question), given)

    def _question(self, loss: str | None, fetch: Sequence[str], more: Mapping[str, Any]) -> dict[str, Any]:
        asked = {"fetch": list(fetch), **more}
        chosen = loss if "targets" in more else self._loss(loss)
        return asked if chosen is None else {"loss": chosen, **asked}

    def session(self, loss: str | None = None, parameters: Mapping[str, Any] = NO_TENSORS, **settings: Any) -> Session:
        """A session that trains this program.

        parameters: initial values; the service initializes the others.
        settings:   more members of the body of POST /v1/sessions, such as optimizer, init, clip_norm, lease_s; targets
                    in place of a loss; from_checkpoint, missing and extra to start from a checkpoint.
        """
        chosen = loss if "targets" in settings else self._loss(loss)
        named = {} if chosen is None else {"loss": chosen}
        asked = {"program_id": self.id, **named, **settings}
        if self.built is not None and "from_checkpoint" not in settings:
            parameters = self._values(parameters)
            init = dict(settings.get("init") or {})
            own = {n: spec for n, spec in self.built.initializers.items() if n not in parameters}
            given = init.get("initializers", {})
            if own or given:
                init["initializers"] = {**{n: spec for n, spec in own.items() if not _covered(n, given)}, **given}
                asked["init"] = init
        return Session(self.service, self.service.upload("/v1/sessions", asked, parameters))

    def __repr__(self) -> str:
        return f"Program({self.service.url!r}, {self.id!r})"


def _covered(name: str, patterns: Mapping[str, Any]) -> bool:
    """Whether the initializers of a request decide about `name`: they go before those of the program."""
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


class Programs:
    """The programs of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def create(self, document: BuiltProgram | Mapping[str, Any]) -> Program:
        """Register a built program or a program document. Raises Refused."""
        return Program(self._service, document)

    def get(self, id: str) -> Program:
        """A registered program."""
        return Program(self._service, id)
