"""Sessions: one session trains one program; its parameters stay in the service."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from backpass_client.checkpoints import Checkpoint, with_id
from backpass_client.connection import NO_TENSORS, Service, condition, etag_of, new_key, quoted
from backpass_client.errors import BackpassError
from backpass_client.event_streams import PATIENCE_S, Event, followed
from backpass_client.hints import Answered, Hinted
from backpass_client.idempotent_calls import IdempotentCalls
from backpass_client.jobs import submitted
from backpass_client.lists import as_declared, check_members, chosen_gradients, declared_dtypes, name_list, needs_dtypes
from backpass_client.onnx_file import ACCEPT, model_query, saved
from backpass_client.results import Arrays, Gradients, gradients_of, group, streamed
from backpass_client.rows import from_tensors, to_tensors
from backpass_client.streams import GradientStream
from backpass_client.text import NamedArrays, fields
from backpass_client.torch_tensors import load_into

__all__ = ["OptimizerState", "Session", "Step", "Stopped"]


@dataclass(frozen=True, slots=True, repr=False)
class Step(Answered):
    """The values of one step, computed before its update.

    said:     JSON members, such as step and next_seq.
    recorded: the gradients that hooks recorded, by name.
    """

    loss: np.ndarray | None
    fetched: Arrays
    gradients: dict[str, Any]
    said: dict[str, Any] = field(default_factory=dict)
    recorded: Arrays = field(default_factory=dict)

    def __repr__(self) -> str:
        number = f"Step {self.said['step']}" if "step" in self.said else "Step"
        return fields(self, "loss", "fetched", "gradients", "recorded").replace("Step", number, 1)


class Stopped(BackpassError):
    """A step of several in one call failed after others, which stay applied.

    step:    the values of the steps before it; `step.said["applied"]` is their number.
    reason:  the failure: code, reason, detail, and the number of the batch, from 0.
    """

    def __init__(self, step: Step, reason: dict[str, Any]) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"batch {reason['batch']} failed after {reason['batch']} steps: {reason['detail']}")


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The state of an optimizer. step: number of updates. slots: arrays by ``<parameter>/<slot>``."""

    step: int
    slots: Arrays


class Session(Hinted):
    """One model in training; ``with program.session(...) as session`` closes it.

    Each step and update carries a sequence number. The client sends it again, with the same number, after a broken
    connection or a retryable problem; the service executes it once and repeats its answer.

    said:     the view of the session when this object was made; `view` asks again.
    if_match: an argument of the calls, for sessions with several clients: the version that the call is for, such as
    `etag`. At another version the call changes nothing and raises PreconditionFailed. Without it a step of this client
    that equals the last one of another client, with the same number, is taken for a repetition: one step for both.

        parameters = session.parameters()
        session.put_parameters(averaged(parameters), if_match=session.etag)
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "state_dict weights get_weights named_parameters": "parameters() has the parameters and states by name",
        "load_state_dict set_weights set_parameters": "write put_parameters(values)",
        "backward": "step(feeds) runs forward, backward and update; gradients(feeds) has the gradients alone",
        "zero_grad": "a step has gradients of its own; discard_gradients() drops those that `accumulate` added up",
        "train train_step train_on_batch": "write step(feeds), or fit(dataset)",
        "eval forward predict run loss": "write evaluate(feeds, fetch=[...], for_test=True)",
        "save save_checkpoint": "write checkpoint().download(path)",
        "load load_checkpoint restore": "write bp.Session.from_checkpoint(service, checkpoint)",
        "learning_rate lr set_lr set_learning_rate optimizer": "write change_optimizer(learning_rate=...)",
        "apply_gradients": "write update(gradients)",
        "clip_grad_norm_": "clip_norm=1.0 is a setting of the session",
        "delete": "write close()",
        "status state info": "write view()",
        "export onnx": "write to_onnx(path)",
        "version": "see etag",
        "history curves logs": "see metrics() and events()",
    }

    def __init__(
        self, service: Service, view: Mapping[str, Any] | str, dtypes: Mapping[str, str] | None = None
    ) -> None:
        """view: the id of an open session, such as one of an earlier process; or the response to POST or GET of one.

        dtypes: name -> dtype of the variables of the program: Python's numbers and lists are sent with this dtype. By
                default it is looked up where it is needed.
        """
        about = service.call("GET", f"/v1/sessions/{quoted(view)}") if isinstance(view, str) else view
        self.service = service
        self.said: dict[str, Any] = dict(about)
        self.id: str = about["id"]
        self.path = f"/v1/sessions/{self.id}"
        self._dtypes = dtypes
        self._calls = IdempotentCalls(service, self.path, about["next_seq"], etag_of(about))
        self._etag = etag_of(about) or ""

    @classmethod
    def from_checkpoint(
        cls, service: Service, checkpoint: Checkpoint | str, parameters: Mapping[str, Any] = NO_TENSORS, **settings: Any
    ) -> Self:
        """A session that goes on where the checkpoint was made, to the bit; or, with other settings, starts from it.

        checkpoint: the checkpoint, or its id.
        parameters: values in place of those of the checkpoint.
        settings:   members of the body of POST /v1/sessions: another program_id or program with
                    missing="initialize" and extra="ignore" to fine-tune it; optimizer_state=False to start at step 0;
                    another optimizer.
        Raises Refused with every tensor that does not fit.
        """
        asked = with_id({"from_checkpoint": checkpoint, **settings})
        view = service.upload("/v1/sessions", asked, parameters)
        return cls(service, view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except BackpassError:
            if kind is None:  # otherwise it would hide the error raised in the block
                raise

    def close(self, *, if_match: str | None = None) -> None:
        """End the session: the service deletes it. Its checkpoints stay."""
        self.service.call("DELETE", self.path, headers=condition(if_match))

    @property
    def next_seq(self) -> int:
        """The sequence number of the next step, update or accumulating call."""
        return self._calls.next

    @property
    def etag(self) -> str:
        """The version of the session in the last answer to this object, to be given as `if_match`.

        It covers parameters, states, optimizer state, settings, and added-up gradients.
        """
        return self._etag

    def view(self) -> dict[str, Any]:
        """The state of the session: step, version of the weights, lease."""
        return self._seen(self.service.call("GET", self.path))

    def step(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: str | Sequence[str] = (),
        return_gradients: str | Sequence[str] = "none",
        *,
        target_gradients: Sequence[Any] = (),
        if_match: str | None = None,
        **more: Any,
    ) -> Step:
        """Run forward, backward and update.

        return_gradients: "none", "norms", "all", or a list of parameter names.
        target_gradients: the cotangents of the session's targets; None for ones.
        more:             more members of the body of POST .../steps: learning_rate for this step; batches=k for k
                          steps on feeds with a leading axis; accumulate=k for one update with the gradients of k
                          batches, and reduction="mean"; deadline_s.

        Raises Stopped if one of several steps fails after others. Warns of gradients that are exactly zero: any of them
        in the first step of a session; later, if the answer has norms, all of them.
        """
        returned = chosen_gradients(return_gradients)
        check_members(more)
        asked = {"fetch": name_list(fetch), "return_gradients": returned, **more}
        found = self._step(*self._calls.send("steps", asked, self._tensors(feeds, target_gradients), if_match))
        said = found.said
        for each in said.get("warnings", ()):
            warnings.warn(f"{each['detail']} ({', '.join(each['parameters'])})", stacklevel=2)
        if said.get("stopped") is not None:
            raise Stopped(found, said["stopped"])
        return found

    def stream_step(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: str | Sequence[str] = (),
        return_gradients: str | Sequence[str] = "all",
        *,
        target_gradients: Sequence[Any] = (),
        if_match: str | None = None,
        **more: Any,
    ) -> GradientStream[Step]:
        """One step whose gradients arrive during its backward pass; otherwise as `step`.

        The step takes effect also if the stream is not read to its end; `result` of the stream is the `Step`.

            stream = session.stream_step(feeds)
            for name, gradient in stream: ...
            print(stream.result.loss)
        """
        returned = chosen_gradients(return_gradients)
        check_members(more)
        asked = {"fetch": name_list(fetch), "return_gradients": returned, **more}
        return self._calls.stream("steps", asked, self._tensors(feeds, target_gradients), self._step, if_match)

    def stream_gradients(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: str | Sequence[str] = (),
        *,
        target_gradients: Sequence[Any] = (),
        if_match: str | None = None,
        **more: Any,
    ) -> GradientStream[Gradients]:
        """Gradients at the present parameters, each as soon as it is final; changes nothing.

            for name, gradient in session.stream_gradients(feeds): ...

        `result` of the stream has the loss and the fetched values.
        """
        check_members(more)
        asked, tensors = {"fetch": name_list(fetch), **more}, self._tensors(feeds, target_gradients)
        return streamed(self.service, f"{self.path}/gradients", asked, tensors, condition(if_match))

    def update(
        self, gradients: Mapping[str, Any] = NO_TENSORS, *, if_match: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Apply gradients: those given, or without any those that `gradients` with accumulate=True has added up.

        gradients: parameter -> array, or `Rows` of a table.
        more:      more members of the body of POST .../updates, such as learning_rate and reduction="mean".
        """
        said, _ = self._calls.send("updates", more, to_tensors(gradients), if_match)
        return self._seen(said)

    def gradients(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: str | Sequence[str] = (),
        *,
        target_gradients: Sequence[Any] = (),
        accumulate: bool = False,
        if_match: str | None = None,
        **more: Any,
    ) -> Gradients:
        """Gradients at the present parameters; changes nothing.

        accumulate: add the gradients up in the session for a later `update`, and return only the values.
        more:       more members of the body of POST .../gradients, such as return_gradients, and compile="dynamic" for
                    one machine code for many sizes of the feeds.
        """
        check_members(more)
        asked, tensors = {"fetch": name_list(fetch), **more}, self._tensors(feeds, target_gradients)
        if accumulate:
            said, found = self._calls.send("gradients", {**asked, "accumulate": True}, tensors, if_match)
        else:
            said, found = self._exchange("POST", "gradients", asked, tensors, if_match)
        return gradients_of(self._seen(said), found)

    def discard_gradients(self, *, if_match: str | None = None) -> None:
        """Forget the gradients that `gradients` with accumulate=True has added up."""
        self.service.call("DELETE", f"{self.path}/gradients", headers=condition(if_match))

    def change_optimizer(self, *, if_match: str | None = None, **members: Any) -> dict[str, Any]:
        """Change members of the optimizer; None removes one. Returns the view of the session.

        ``session.change_optimizer(learning_rate=0.01)`` compiles nothing.
        """
        headers, repeat = condition(if_match), _is_repeatable(if_match)
        asked = {"optimizer": members}
        return self._seen(self.service.call("PATCH", self.path, asked, headers=headers, repeat=repeat))

    def evaluate(
        self,
        feeds: Mapping[str, Any] = NO_TENSORS,
        fetch: str | Sequence[str] = (),
        *,
        if_match: str | None = None,
        **more: Any,
    ) -> Arrays:
        """Run forward only: the fetched values, or the loss if `fetch` is empty.

        more: more members of the body of POST .../evaluations: for_test=True for ops with their behaviour in
              evaluation, such as dropout that passes its input; compile="always" for machine code, which the first
              call with these shapes compiles, "dynamic" for one machine code for many sizes of the feeds; deadline_s.
        """
        check_members(more)
        asked = {"fetch": name_list(fetch), **more}
        _, tensors = self._exchange("POST", "evaluations", asked, self._tensors(feeds), if_match)
        return group(tensors, "fetch")

    def fit(
        self,
        dataset: Any,
        *,
        progress: bool | None = None,
        on_event: Callable[[str, dict[str, Any]], Any] | None = None,
        on_interrupt: str = "cancel",
        **settings: Any,
    ) -> dict[str, np.ndarray]:
        """Train on a stored dataset, in a job of the service; returns its curves, as `Job.metrics` does.

        dataset:  a dataset, or its id.
        settings: more members of the body of POST /v1/jobs: epochs or steps, batch_size, feeds, validation, metrics,
                  early_stop, shuffle, seed, ...
        progress, on_event, on_interrupt: as of `Job.wait`.
        Raises Refused with all mistakes, JobFailed.
        """
        job = submitted(self.service, dataset, NO_TENSORS, {"session_id": self.id, **settings})
        try:
            job.wait(progress=progress, on_event=on_event, on_interrupt=on_interrupt)
        finally:
            self._calls.next = self.view()["next_seq"]
        return job.metrics()

    def parameters(self, *, if_match: str | None = None) -> Arrays:
        """Parameters and states by name, as `put_parameters` takes them, in this session or another."""
        return NamedArrays(self._exchange("GET", "parameters", if_match=if_match)[1])

    def put_parameters(self, values: Mapping[str, Any], *, if_match: str = "*") -> None:
        """Replace the named parameters and states. The others, and the optimizer's state, stay."""
        self._exchange("PUT", "parameters", {}, self._declared(values), if_match)

    def load_into(self, module: Any) -> None:
        """Copy the parameters and states into a module of PyTorch that has them under the same names.

        Raises BackpassError, before anything changes, if no name fits or a shape does not.
        """
        load_into(module, self.parameters())

    def to_onnx(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        outputs: Sequence[str] | None = None,
        for_test: bool = True,
        opset: int | None = None,
        if_match: str | None = None,
    ) -> bytes:
        """The trained model as an ONNX model with its weights; written to the file `path` too if that is given.

        outputs:  the variables that the model returns; by default those of the ONNX model that the program comes from,
                  or the variables that no op reads. Feeds that they do not need, such as labels, are left out.
        for_test: write every op with its behaviour in evaluation.
        opset:    the version of the operator set; by default the newest that the service writes.

        Raises Refused with every op that ONNX cannot say.
        """
        query = model_query(outputs, opset) | {"for_test": for_test}
        headers = {**ACCEPT, **condition(if_match)}
        return saved(self.service.send("GET", f"{self.path}/model", params=query, headers=headers).content, path)

    def checkpoint(
        self,
        name: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        ttl: float | None = None,
        if_match: str | None = None,
    ) -> Checkpoint:
        """Save all of the session: a session `from_checkpoint` goes on with the same numbers.

        ttl: seconds after which the service deletes the checkpoint; by default never.
        """
        asked = {"name": name, "labels": dict(labels or {}), "ttl_s": ttl}
        headers = {**new_key(), **condition(if_match)}
        return Checkpoint(self.service, self.service.call("POST", f"{self.path}/checkpoints", asked, headers=headers))

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The checkpoints of the session."""
        return Checkpoint.all(self.service, self.id)

    def fork(self, *, if_match: str | None = None, **settings: Any) -> Self:
        """A new session that is equal to this one to the bit. settings: members of the body, such as lease_s."""
        headers = {**new_key(), **condition(if_match)}
        return type(self)(
            self.service, self.service.call("POST", f"{self.path}/fork", settings, headers=headers), self._dtypes
        )

    def metrics(self, *, after: int = 0, points: int = 10_000) -> Arrays:
        """The curves of the recent steps as columns, NaN for values that are not finite: point, step, time, loss,
        gradient_norm, learning_rate, ms.

        The service keeps the last 5,000 steps in memory, and of earlier ones every second, fourth, ...; when it starts
        again, the curves do.
        after:  the last number in the column `point` that the caller has.
        points: the most points; of more, those of the lowest and the highest losses.
        """
        found = self.service.call("GET", f"{self.path}/metrics", query={"after": after, "points": points})
        return _columns(found["columns"])

    def events(self, after: int = 0, *, patience: float = PATIENCE_S) -> Iterator[Event]:
        """(kind, data) of each event, as it happens, until the session is closed. After a broken connection the stream
        goes on behind the last event.

        The event "steps" has the steps since the one before as `columns`, which are those of `metrics`; "closed" has
        the `reason`, and is the last one.
        after:    number of the last point that the caller has.
        patience: seconds that the service may be away, such as for a restart.
        Raises Refused (gone) for a closed session, and Unreachable when the service was away for longer.
        """
        with closing(followed(self.service, self.path, after, patience)) as events:
            for kind, data in events:
                yield kind, {**data, "columns": _columns(data["columns"])} if kind == "steps" else data
                if kind == "closed":
                    return

    def histograms(
        self, names: str | Sequence[str] = (), *, bins: int = 40, if_match: str | None = None
    ) -> dict[str, dict[str, Any]]:
        """The distribution of the elements of parameters and states, by name: count, zeros, nan, infinite, min, max,
        mean, std, and `counts` in equal intervals from min to max.

        names: by default all. bins: the number of intervals.
        """
        query = {"bins": bins, **({"names": name_list(names)} if names else {})}
        found = self.service.call("GET", f"{self.path}/histograms", query=query, headers=condition(if_match))
        return {each["name"]: each for each in found["histograms"]}

    def optimizer_state(self, names: Sequence[str] = (), *, if_match: str | None = None) -> OptimizerState:
        """The state of the optimizer. names: of parameters or slots; by default all."""
        query = "&".join(f"names={quoted(name)}" for name in names)
        said, slots = self._exchange("GET", f"optimizer{'?' if query else ''}{query}", if_match=if_match)
        return OptimizerState(said["step"], NamedArrays(slots))

    def load_optimizer_state(self, state: OptimizerState, *, if_match: str = "*") -> None:
        """Replace the given slots and the step. Other slots, and the parameters, stay."""
        self._exchange("PUT", "optimizer", {"step": state.step}, state.slots, if_match)

    def _exchange(
        self,
        method: str,
        call: str,
        asked: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] = NO_TENSORS,
        if_match: str | None = None,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The (members, tensors) of the answer to a call without a number."""
        path, headers = f"{self.path}/{call}", condition(if_match)
        repeat = method != "PUT" or _is_repeatable(if_match)
        said, found = self.service.exchange(method, path, asked, tensors, headers=headers, repeat=repeat)
        return self._seen(said), found

    def _seen(self, said: dict[str, Any]) -> dict[str, Any]:
        """The members of an answer, whose version is `etag` from now on."""
        self._etag = etag_of(said) or self._etag
        return said

    def _step(self, said: dict[str, Any], tensors: dict[str, np.ndarray]) -> Step:
        said = self._seen(said)
        fetched, recorded = group(tensors, "fetch"), group(tensors, "recorded")
        return Step(tensors.get("loss"), fetched, from_tensors(said, tensors), said, recorded)

    def _tensors(self, feeds: Mapping[str, Any], cotangents: Sequence[Any] = ()) -> dict[str, Any]:
        """The tensors of a request: the feeds, and the cotangents of targets under their names."""
        given = {f"target_gradients/{i}": each for i, each in enumerate(cotangents) if each is not None}
        return {**self._declared(feeds), **given}

    def _declared(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` as arrays of the dtypes that the program declares."""
        if self._dtypes is None and needs_dtypes(values):
            program = self.service.call("GET", f"/v1/programs/{self.said['program_id']}")
            self._dtypes = declared_dtypes(program["signature"])
        return as_declared(values, self._dtypes or {})

    def __repr__(self) -> str:
        return f"Session({self.service.url!r}, {self.id!r})"


def _columns(columns: Mapping[str, Sequence[float | None]]) -> Arrays:
    """Curves as arrays; None, a value that is not finite, is NaN."""
    return {n: np.array(values, "int64" if n in ("point", "step") else float) for n, values in columns.items()}


def _is_repeatable(if_match: str | None) -> bool:
    """Whether a change without a number may be sent twice: its own effect moves the version on."""
    return if_match in (None, "*")
