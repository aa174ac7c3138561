"""The jobs of a service: submit and find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backpass_client.builder import BuiltProgram
from backpass_client.checkpoints import with_id
from backpass_client.connection import NO_TENSORS, Service, quoted
from backpass_client.jobs import Job, submitted
from backpass_client.programs import Program
from backpass_client.sessions import Session

__all__ = ["Jobs"]


class Jobs:
    """The jobs of a service; `service.jobs`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def submit(
        self,
        dataset: Any,
        parameters: Mapping[str, Any] = NO_TENSORS,
        *,
        program: Program | BuiltProgram | Mapping[str, Any] | None = None,
        session: Session | str | None = None,
        **settings: Any,
    ) -> Job:
        """Queue a job.

        dataset:    a dataset, or its id.
        parameters: initial values of the session to open.
        program:    the program of a session to open: a registered or built one, which brings its loss and first values
                    along, or a document.
        session:    the session to train, or its id, in place of a program.
        settings:   more members of the body of POST /v1/jobs: optimizer, init, from_checkpoint and others that open a
                    session; feeds, epochs or steps, batch_size, validation, metrics, early_stop, ...
        Raises Refused with all mistakes.
        """
        if isinstance(program, BuiltProgram):
            program = Program(self._service, program)
        if isinstance(program, Program):
            settings, parameters = program.opening(settings.pop("loss", None), parameters, settings)
        elif program is not None:
            settings = {"program": program, **settings}
        if session is not None:
            settings = {"session_id": session if isinstance(session, str) else session.id, **settings}
        return submitted(self._service, dataset, parameters, with_id(settings))

    def get(self, id: str) -> Job:
        """The job with this id. Raises Refused (not-found)."""
        return Job(self._service, self._service.call("GET", f"/v1/jobs/{quoted(id)}"))

    def list(self, state: str | None = None, labels: Mapping[str, str | None] | None = None) -> Iterator[Job]:
        """All jobs, or those in one state such as "running", page by page.

        labels: that they have, such as ``{"run": "7"}``; None for any value.
        """
        found = self._service.entries("/v1/jobs", "jobs", state=state, labels=labels)
        return (Job(self._service, each) for each in found)
