"""Jobs: training on stored datasets by the service alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from backpass_client.checkpoints import Checkpoint
from backpass_client.connection import Service, quoted
from backpass_client.errors import BackpassError
from backpass_client.event_streams import PATIENCE_S, Event, followed
from backpass_client.hints import Hinted

__all__ = ["Job", "JobFailed", "submitted"]

ENDED = ("succeeded", "failed", "canceled", "aborted")


class JobFailed(BackpassError):
    """A job has ended without success. view: the job; its members `reason` and `error` tell the cause."""

    def __init__(self, view: dict[str, Any]) -> None:
        self.view = view
        error = view.get("error") or {}
        detail = f": {error['detail']}" if error.get("detail") else ""
        super().__init__(f"job {view['id']} {view['state']} at step {view['step']} ({view['reason']}){detail}")


class Job(Hinted):
    """One job of a service. said: its view when this object was made; `view` asks again."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "status state info progress": "write view()",
        "result join": "write wait()",
        "stop kill abort": "write cancel()",
        "session": "write service.sessions.get(job.session_id)",
        "logs history curves": "see events() and metrics()",
        "best": 'see view()["best"]',
    }

    def __init__(self, service: Service, view: Mapping[str, Any]) -> None:
        """view: the response to POST or GET of a job."""
        self.service = service
        self.said: dict[str, Any] = dict(view)
        self.id: str = view["id"]
        self.session_id: str = view["session_id"]
        self.path = f"/v1/jobs/{quoted(self.id)}"

    def view(self) -> dict[str, Any]:
        """The state of the job, its position and its last metrics. Its member `waiting` tells why the job waits, and
        since when; it is None while the job does not wait."""
        return self.service.call("GET", self.path)

    def cancel(self) -> dict[str, Any]:
        """End the job after its running call; its session keeps the steps that were done."""
        return self._act("cancel")

    def pause(self) -> dict[str, Any]:
        """Let the job wait until `resume`."""
        return self._act("pause")

    def resume(self) -> dict[str, Any]:
        """Let a paused job go on."""
        return self._act("resume")

    def _act(self, action: str) -> dict[str, Any]:
        return self.service.call("POST", f"{self.path}/{action}", repeat=True)

    def delete(self) -> None:
        """Delete the ended job with its events and metrics; its session and its checkpoints stay."""
        self.service.call("DELETE", self.path)

    def metrics(self, points: int = 1000) -> dict[str, np.ndarray]:
        """The curves as columns, NaN for values that are not finite: step, loss, gradient_norm, learning_rate, ...

        Metrics of validations are ``validation/step`` and ``validation/<metric>``.
        """
        found = self.service.call("GET", f"{self.path}/metrics", query={"points": points})
        columns = {"step": found["step"], **found["columns"]}
        columns |= {f"validation/{name}": values for name, values in found["validation"].items()}
        return {name: np.array(values, "int64" if name.endswith("step") else float) for name, values in columns.items()}

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of its session, oldest first."""
        found = sorted(
            self.service.entries(f"{self.path}/checkpoints", "checkpoints"), key=lambda each: each["created"]
        )
        return [Checkpoint(self.service, each) for each in found]

    def events(self, after: int = 0, *, patience: float = PATIENCE_S) -> Iterator[Event]:
        """(kind, data) of each event, as it happens, until the job has ended. After a broken connection the stream goes
        on behind the last event.

        after:    number of the last event that the caller has; data["id"] is that of an event.
        patience: seconds that the service may be away, such as for a restart.
        Raises Refused, and Unreachable when the service was away for longer.
        """
        return followed(self.service, self.path, after, patience)

    def wait(
        self,
        *,
        progress: bool | None = None,
        on_event: Callable[[str, dict[str, Any]], Any] | None = None,
        on_interrupt: str = "cancel",
        patience: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """Wait for the end of the job; returns its view.

        progress:     show a progress bar and the reasons of waits, if tqdm is installed; by default in a terminal.
        on_event:     called with each event as it happens.
        on_interrupt: Ctrl-C cancels the job, or with "detach" leaves it running; in both cases it raises
                      KeyboardInterrupt.
        patience:     seconds that the service may be away, such as for a restart.
        Raises JobFailed if the job has not succeeded, and Unreachable when the service was away for longer; the job
        goes on when it is back.
        """
        try:
            with _bar(progress) as show:
                for kind, data in self.events(patience=patience):
                    show(kind, data)
                    if on_event is not None:
                        on_event(kind, data)
        except KeyboardInterrupt as error:
            if on_interrupt == "cancel":
                self.cancel()
                error.add_note(f"job {self.id} is canceled")
            else:
                error.add_note(f"job {self.id} goes on")
            raise
        view = self.view()
        if view["state"] != "succeeded":
            raise JobFailed(view)
        return view

    def __repr__(self) -> str:
        return f"Job({self.service.url!r}, {self.id!r})"


def submitted(service: Service, dataset: Any, parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> Job:
    """The new job. dataset: a dataset, or its id. parameters, settings: as of `Jobs.submit`."""
    asked = {"dataset_id": id_of(dataset), **settings}
    if isinstance(asked.get("validation"), Mapping) and "dataset" in asked["validation"]:
        validation = dict(asked["validation"])
        asked["validation"] = {"dataset_id": id_of(validation.pop("dataset")), **validation}
    return Job(service, service.upload("/v1/jobs", asked, parameters))


def id_of(dataset: Any) -> str:
    """The id of a dataset, or the id that was given. Raises TypeError for anything else, such as arrays by name."""
    id = dataset if isinstance(dataset, str) else getattr(dataset, "id", None)
    if not isinstance(id, str):
        raise TypeError(
            f"a job needs a stored dataset, or its id, not a {type(dataset).__name__}: store the data first, with "
            "dataset = service.datasets.upload(data)"
        )
    return id


@contextmanager
def _bar(wanted: bool | None) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """A function that shows events as a progress bar."""
    shown = sys.stderr.isatty() if wanted is None else wanted
    try:
        tqdm = import_module("tqdm").tqdm if shown else None
    except ImportError:
        tqdm = None
    if tqdm is None:
        yield lambda kind, data: None
        return
    with tqdm(unit="step") as bar:

        def show(kind: str, data: dict[str, Any]) -> None:
            if kind == "progress":
                bar.total = data["steps"]
                values = {name: value for name, value in data["metrics"].items() if value is not None}
                bar.set_postfix({"loss": f"{values['loss']:.4g}"} if "loss" in values else {}, refresh=False)
                bar.update(data["step"] - bar.n)
            elif kind == "validation":
                values = data["metrics"]
                text = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
                bar.write(f"step {data['step']}: {text}")
            elif kind == "waiting":
                bar.write(f"waits: {data['detail']}")

        yield show
