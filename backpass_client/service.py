"""A service with all that it stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from functools import cached_property
from typing import Any

from backpass_client import connection
from backpass_client.builder import BuiltProgram
from backpass_client.checkpoints import Checkpoints
from backpass_client.datasets import Datasets
from backpass_client.job_queue import Jobs
from backpass_client.keys import Keys
from backpass_client.open_sessions import Sessions, Tapes
from backpass_client.operations import Operations
from backpass_client.programs import Program, Programs
from backpass_client.sessions import Session
from backpass_client.tenants import AuditEntry, Tenants, UsageRow

__all__ = ["Service"]


class Service(connection.Service):
    """One service. ``with Service(url) as service: ...`` closes the connections at the end.

    url:      base address, such as "http://127.0.0.1:8080".
    api_key:  key of the service; by default the environment variable BACKPASS_API_KEY. A service without keys takes
              requests without one. Use https for services on other machines: the key is part of each request.
    timeout:  seconds to wait for a response. The service has its own deadline, by default 60 s.
    attempts: the most times one request is sent. The client sends a request again after a broken connection, a
              retryable problem, or a status 502, 503 or 504 of a proxy, if repeating is safe: the request changes
              nothing, or carries a sequence number. It never sends a request again that timed out: the next one would
              take as long. It waits as long as the service or the proxy asks for, unless that is more than a minute;
              otherwise 0.1 s, then three times as long after each try, twelve seconds in all by default.
    verify:   file with the certificates to trust for https, for services that sign their own; by default those of the
              system.
    """

    @cached_property
    def programs(self) -> Programs:
        """The programs: register and find them."""
        return Programs(self)

    def create_session(
        self,
        program: Program | BuiltProgram | Mapping[str, Any] | str,
        loss: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Session:
        """A session that trains `program`: a registered or built one, a document, or an id. See `Program.session`."""
        registered = program if isinstance(program, Program) else Program(self, program)
        return registered.session(loss, parameters or {}, **settings)

    @cached_property
    def datasets(self) -> Datasets:
        """The stored tables: upload, list, preview, change and delete them."""
        return Datasets(self)

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs: submit, list, watch, pause and cancel them."""
        return Jobs(self)

    @cached_property
    def operations(self) -> Operations:
        """The operations: start long calls, list, await and cancel them."""
        return Operations(self)

    @cached_property
    def sessions(self) -> Sessions:
        """The sessions: find and list them."""
        return Sessions(self)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """The saved sessions: upload, find and list them."""
        return Checkpoints(self)

    @cached_property
    def keys(self) -> Keys:
        """The API keys: make, find, rotate and revoke them, with the scope admin."""
        return Keys(self)

    @cached_property
    def tenants(self) -> Tenants:
        """The tenants: read and set their limits, with the scope admin."""
        return Tenants(self)

    def usage(
        self, first: date | str | None = None, last: date | str | None = None, *, tenant: str | None = None
    ) -> list[UsageRow]:
        """The use of the service by day: of the own tenant, and of all tenants with the scope admin.

        first, last: days in UTC, such as "2026-11-22"; by default the last 31 days.
        tenant:      only this one. Raises Refused (forbidden) for another tenant than the own one without the scope.
        """
        days = {name: str(day) for name, day in (("from", first), ("to", last)) if day is not None}
        asked = days if tenant is None else {**days, "tenant": tenant}
        return [UsageRow.of(each) for each in self.call("GET", "/v1/usage", query=asked)["usage"]]

    def audit(self, tenant: str | None = None) -> Iterator[AuditEntry]:
        """The audit log of all tenants, or of one, page by page, the newest entry first. Needs the scope admin."""
        return (AuditEntry.of(each) for each in self.entries("/v1/audit", "entries", tenant=tenant))

    def workers(self) -> list[dict[str, Any]]:
        """The worker processes: device, memory, sessions, restarts, last fatal error. Needs the scope admin."""
        return self.call("GET", "/v1/workers")["workers"]

    def metrics(self) -> str:
        """The metrics of the process that answers, in the text format of Prometheus. Needs the scope admin.

        Raises Refused (not-found) if the metrics have a port of their own. Curves of a training are
        `Session.metrics` and `Job.metrics`.
        """
        return self.send("GET", "/metrics").text

    @cached_property
    def tapes(self) -> Tapes:
        """The open tapes: list and delete them."""
        return Tapes(self)
