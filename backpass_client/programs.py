"""Programs: register one, then compute its gradients, inspect it, check it, or train it in a session."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self

import numpy as np

from backpass_client.answers import json_of
from backpass_client.builder import BuiltProgram, explain
from backpass_client.checkpoints import with_id
from backpass_client.connection import NO_TENSORS, Service, quoted
from backpass_client.errors import BackpassError, Refused
from backpass_client.hints import Hinted
from backpass_client.lists import as_declared, check_members, declared_dtypes, name_list
from backpass_client.onnx_file import ACCEPT, content_of, model_query, saved
from backpass_client.results import Evaluation, Gradients, gradients_of, group, streamed
from backpass_client.sessions import Session
from backpass_client.streams import GradientStream
from backpass_client.tensorfile import unpack

__all__ = ["Program", "Programs"]


class Program(Hinted):
    """A registered program. The same document always has the same id.

    A program that `program` has built brings its loss and first values along: calls need not repeat them.
    """

    id: str
    signature: dict[str, Any]
    _elsewhere: ClassVar[Mapping[str, str]] = {
        "fit train step": "a session trains: program.session(optimizer=...) has step and fit",
        "create_session": "write session(optimizer=...)",
        "run forward predict call apply eval": "write evaluate(feeds, parameters)",
        "grad gradient value_and_grad": "write gradients(feeds=..., parameters=...)",
        "parameters": 'signature["parameters"] has their names and shapes, values() those that the service keeps',
        "feeds states": 'see signature["feeds"] and signature["states"]',
        "compile jit": 'calls take compile="always"',
        "save export onnx": "write to_onnx(path); document() is the program as JSON",
        "delete_program": "write delete()",
    }

    def __init__(
        self,
        service: Service | str,
        document: BuiltProgram | Mapping[str, Any] | str,
        values: Mapping[str, Any] = NO_TENSORS,
    ) -> None:
        """service:  a connection, or an address; ``with Program(address, ...)`` closes the connection at the end.
        document: a program that `program` has built or a program document, which is registered now; or the id of a
                  registered program.
        values:   initial values of parameters and states, which the service keeps with a new program.

        Raises Refused with every mistake in the document, and the Python lines of a built program that wrote them.
        """
        self._owns_service = isinstance(service, str)
        self.service = Service(service) if isinstance(service, str) else service
        self.built = document if isinstance(document, BuiltProgram) else None
        if isinstance(document, str):
            if values:
                raise ValueError("a registered program keeps its initial values: give values with a document")
            made = self.service.call("GET", f"/v1/programs/{quoted(document)}")
        elif isinstance(document, BuiltProgram):
            try:
                made = self._registered(document.document(), {**document.values, **values})
            except Refused as error:
                explain(error, document)
                raise
        elif isinstance(document, Mapping):
            made = self._registered(document, values)
        else:
            raise TypeError(f"a program is a function under @bp.program, a document or an id, not {document!r}")
        self.id, self.signature = made["id"], made["signature"]

    def _registered(self, document: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a new program. Registering it twice stores it once, so repeating is safe."""
        if values:
            return self.service.upload("/v1/programs", {"program": document}, values, repeat=True)
        return self.service.call("POST", "/v1/programs", {"program": document}, repeat=True)

    @classmethod
    def from_onnx(
        cls,
        service: Service | str,
        model: Any,
        *,
        loss: str | None = None,
        of: str | None = None,
        label: str | None = None,
        axis: int | None = None,
        trainable: Sequence[str] | None = None,
    ) -> Self:
        """Register an ONNX model with its weights.

        model:     the path of a file, the bytes of the protobuf, or an `onnx.ModelProto`. A model with external data
                   beside its file needs the package onnx.
        loss:      an output of one element to be the loss, or a loss to append: "cross_entropy", "mse", ...
        of:        the output that an appended loss judges; by default the first one.
        label:     the name of the new feed of labels; by default "label".
        axis:      the axis of the classes, of "cross_entropy" and "nll"; by default 1.
        trainable: the initialisers to train; by default all of floating point with an axis.

        Raises Refused with every node that the service cannot read.
        """
        owns = isinstance(service, str)
        trained = [""] if trainable is not None and not trainable else trainable  # a query has no empty lists
        asked = {"loss": loss, "of": of, "label": label, "axis": axis, "trainable": trained}
        query = {name: value for name, value in asked.items() if value is not None}
        content = content_of(model)
        connection = Service(service) if isinstance(service, str) else service
        try:
            headers = {"content-type": "application/x-onnx"}
            sent = connection.send("POST", "/v1/programs", repeat=True, content=content, headers=headers, params=query)
        except BaseException:
            if owns:
                connection.close()
            raise
        found = cls._of(connection, json_of(sent, "POST /v1/programs"))
        found._owns_service = owns
        return found

    @classmethod
    def _of(cls, service: Service, made: Mapping[str, Any]) -> Self:
        """A registered program. made: its description."""
        found = cls.__new__(cls)
        found._owns_service, found.service, found.built = False, service, None
        found.id, found.signature = made["id"], made["signature"]
        return found

    @property
    def inputs(self) -> list[str]:
        """The names of the feeds; of an ONNX model in its order."""
        return self.signature.get("inputs") or [feed["name"] for feed in self.signature["feeds"]]

    @property
    def outputs(self) -> list[str]:
        """The variables of the outputs of an ONNX model, in order; empty for other programs."""
        return self.signature.get("outputs") or []

    @property
    def loss(self) -> str | None:
        """The variable of the loss of a built program or of an ONNX model, if it has one."""
        return self._loss(None)

    def values(self) -> dict[str, np.ndarray]:
        """The initial values that the service keeps with the program. Raises Refused (not-found) if it has none."""
        return unpack(self.service.send("GET", f"/v1/programs/{self.id}/values").content)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns_service:
            self.service.close()

    def document(self) -> dict[str, Any]:
        """The registered document."""
        return self.service.call("GET", f"/v1/programs/{self.id}")["program"]

    def clone(self, *, for_test: bool = False) -> Program:
        """The same program; with `for_test` each op has its behaviour in evaluation, such as dropout that passes its
        input, and its attributes say so."""
        made = self.service.call("POST", f"/v1/programs/{self.id}/clone", {"for_test": for_test}, repeat=True)
        found = self._of(self.service, made)
        found.built = self.built  # for its loss, its outputs and its first values
        return found

    def delete(self) -> None:
        """Delete the program and its stored values. Raises Refused (in-use) while sessions use it."""
        self.service.call("DELETE", f"/v1/programs/{self.id}")

    def _loss(self, loss: str | None) -> str | None:
        """`loss`, or that of the built program or of the ONNX model."""
        if loss is not None and not isinstance(loss, str):
            raise TypeError("the first argument is the name of the loss: give values as feeds=... and parameters=...")
        if loss is not None:
            return loss
        return self.signature.get("loss") if self.built is None else self.built.loss

    def _needed_loss(self, loss: str | None) -> str:
        found = self._loss(loss)
        if found is None:
            raise BackpassError("name the loss: the program has no output `loss` and not one number as its only output")
        return found

    def backward(self, loss: str | None = None, **question: Any) -> dict[str, Any]:
        """The program with its backward pass, and the tables that describe it. question: more query parameters."""
        asked = {"loss": self._needed_loss(loss), **question}
        return self.service.call("GET", f"/v1/programs/{self.id}/backward", query=asked)

    def to_onnx(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        outputs: Sequence[str] | None = None,
        for_test: bool = False,
        opset: int | None = None,
    ) -> bytes:
        """The program as an ONNX model, with its initial values; written to the file `path` too if that is given.

        outputs:  the variables that the model returns; by default those of the ONNX model that the program comes from,
                  or the variables that no op reads.
        for_test: write every op with its behaviour in evaluation.
        opset:    the version of the operator set; by default the newest that the service writes.

        Raises Refused with every op that ONNX cannot say.
        """
        query = model_query(outputs, opset) | {"for_test": for_test}
        return saved(self.service.send("GET", f"/v1/programs/{self.id}", params=query, headers=ACCEPT).content, path)

    def backward_to_onnx(
        self,
        loss: str | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        opset: int | None = None,
        **question: Any,
    ) -> bytes:
        """The backward pass as an ONNX model; written to the file `path` too if that is given.

        loss:     by default that of a built program or an ONNX model, unless there are targets.
        question: more members of the body of POST /v1/programs/{id}/backward, such as targets and inputs.

        The inputs are the feeds, parameters and states that the gradients depend on. The outputs are the loss or the
        targets, and the gradients under the names that they have in `params_grads`.
        """
        chosen = loss if loss is not None or question.get("targets") else self._needed_loss(None)
        asked = question if chosen is None else {"loss": chosen, **question}
        target = f"/v1/programs/{self.id}/backward"
        query = model_query(None, opset)
        answer = self.service.send("POST", target, repeat=True, json=asked, params=query, headers=ACCEPT)
        return saved(answer.content, path)

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
        asked, tensors = {"loss": self._needed_loss(loss), **settings}, self._values(feeds, parameters)
        return self.service.upload(f"/v1/programs/{self.id}/check", asked, tensors, repeat=True)

    def gradients(
        self,
        loss: str | None = None,
        feeds: Mapping[str, Any] = NO_TENSORS,
        parameters: Mapping[str, Any] = NO_TENSORS,
        *,
        fetch: str | Sequence[str] = (),
        **question: Any,
    ) -> Gradients:
        """Gradients at these values. The service keeps nothing, so repeating is safe.

        loss:     by default that of a built program or of an ONNX model, unless there are targets.
        feeds, parameters: values, arrays or lists of numbers. Parameters and states without one have the initial values
                           of the program; in a built program, also those that its initializers fix, such as zeros.
        question: more members of the body of POST /v1/programs/{id}/gradients, such as targets and inputs, and
                  compile="always": the first call with these shapes compiles machine code for later ones;
                  "dynamic": it compiles machine code for many sizes of the feeds.
        """
        given = self._with_constants(feeds, parameters)
        path = f"/v1/programs/{self.id}/gradients"
        said, tensors = self.service.exchange("POST", path, self._question(loss, fetch, question), given, repeat=True)
        return gradients_of(said, tensors)

    def stream_gradients(
        self,
        loss: str | None = None,
        feeds: Mapping[str, Any] = NO_TENSORS,
        parameters: Mapping[str, Any] = NO_TENSORS,
        *,
        fetch: str | Sequence[str] = (),
        **question: Any,
    ) -> GradientStream[Gradients]:
        """As `gradients`, each gradient as soon as it is final.

            for name, gradient in program.stream_gradients("loss", feeds, parameters): ...

        `result` of the stream has the loss and the fetched values.
        """
        given = self._with_constants(feeds, parameters)
        return streamed(self.service, f"/v1/programs/{self.id}/gradients", self._question(loss, fetch, question), given)

    def evaluate(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        parameters: Mapping[str, Any] = NO_TENSORS,
        *,
        fetch: str | Sequence[str] = (),
        return_states: bool = False,
        **more: Any,
    ) -> Evaluation:
        """Run forward only at these values: the fetched ones by name. The service keeps nothing.

        feeds, parameters: as of `gradients`; what the fetched values do not depend on may be left out.
        fetch: by default the outputs of a built program or of an ONNX model.
        return_states: also compute all states as they are after the pass, such as the running statistics of batch
               normalization, as `states` of the result. The next call takes them among its parameters:

                found = program.evaluate(feeds, parameters, return_states=True)
                found = program.evaluate(feeds, {**parameters, **found.states}, return_states=True)

        more:  more members of the body of POST /v1/programs/{id}/evaluations: for_test=True for ops with their
               behaviour in evaluation, such as dropout that passes its input; seed and step for random ops;
               compile="always" or "dynamic", as of `gradients`; deadline_s.

        A session evaluates at the parameters that it trains, see `Session.evaluate`.
        """
        check_members(more)
        given = self._with_constants(feeds, parameters)
        names = name_list(fetch) or (self.outputs if self.built is None else list(self.built.outputs))
        if not names:
            raise BackpassError("name the variables to compute, fetch=[...]: the program does not list its outputs")
        states = [each["name"] for each in self.signature["states"]] if return_states else []
        path = f"/v1/programs/{self.id}/evaluations"
        asked = {"fetch": [*names, *(name for name in states if name not in names)], **more}
        _, tensors = self.service.exchange("POST", path, asked, given, repeat=True)
        found = group(tensors, "fetch")
        return Evaluation({name: found[name] for name in names}, {name: found[name] for name in states})

    def _values(self, feeds: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        dtypes = declared_dtypes(self.signature)
        return {**as_declared(feeds, dtypes), **as_declared(parameters, dtypes)}

    def _with_constants(self, feeds: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The given values, and the first values that the initializers of a built program fix."""
        given = self._values(feeds, parameters)
        return given if self.built is None else {**self.built.constant_values(), **given}

    def _question(self, loss: str | None, fetch: str | Sequence[str], more: Mapping[str, Any]) -> dict[str, Any]:
        check_members(more)
        asked = {"fetch": name_list(fetch), **more}
        chosen = loss if "targets" in more else self._loss(loss)
        return asked if chosen is None else {"loss": chosen, **asked}

    def session(self, loss: str | None = None, parameters: Mapping[str, Any] = NO_TENSORS, **settings: Any) -> Session:
        """A session that trains this program.

        parameters: initial values; the others are those of the program, or the service initializes them.
        settings:   more members of the body of POST /v1/sessions, such as optimizer, init, clip_norm, lease_s; targets
                    in place of a loss; from_checkpoint, missing and extra to start from a checkpoint.
        """
        asked, values = self.opening(loss, parameters, settings)
        view = self.service.upload("/v1/sessions", asked, values)
        return Session(self.service, view, declared_dtypes(self.signature))

    def opening(
        self, loss: str | None, parameters: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(members, values) of the request that opens a session. Its arguments are those of `session`."""
        settings = with_id(settings)
        chosen = loss if "targets" in settings else self._loss(loss)
        named = {} if chosen is None else {"loss": chosen}
        as_json = (settings.get("init") or {}).get("parameters") or {}
        if not all(isinstance(each, Mapping) for each in as_json.values()):
            raise TypeError("init['parameters'] holds JSON tensors; give arrays as the argument `parameters`")
        asked = {"program_id": self.id, **named, **settings}
        if self.built is not None and "from_checkpoint" not in settings:
            init = dict(settings.get("init") or {})
            own = {n: spec for n, spec in self.built.initializers.items() if n not in parameters}
            given = init.get("initializers", {})
            if own or given:
                init["initializers"] = {**{n: spec for n, spec in own.items() if not _covered(n, given)}, **given}
                asked["init"] = init
        return asked, as_declared(parameters, declared_dtypes(self.signature))

    def __repr__(self) -> str:
        return f"Program({self.service.url!r}, {self.id!r})"


def _covered(name: str, patterns: Mapping[str, Any]) -> bool:
    """Whether the initializers of a request decide about `name`: they go before those of the program."""
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


class Programs:
    """The programs of a service; `service.programs`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def create(self, document: BuiltProgram | Mapping[str, Any], values: Mapping[str, Any] = NO_TENSORS) -> Program:
        """Register a built program or a program document, with initial values. Raises Refused."""
        return Program(self._service, document, values)

    def create_from_onnx(self, model: Any, **loss: Any) -> Program:
        """Register an ONNX model with its weights; see `Program.from_onnx`. Raises Refused."""
        return Program.from_onnx(self._service, model, **loss)

    def get(self, id: str) -> Program:
        """A registered program."""
        return Program(self._service, id)

    def list(self) -> Iterator[Program]:
        """The registered programs, page by page."""
        return (Program._of(self._service, each) for each in self._service.entries("/v1/programs", "programs"))
