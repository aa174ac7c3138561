"""A service with all that it stores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from backpass_client import connection
from backpass_client.builder import BuiltProgram
from backpass_client.datasets import Datasets
from backpass_client.jobs import Jobs
from backpass_client.programs import Program, Programs
from backpass_client.sessions import Session

__all__ = ["Service"]


class Service(connection.Service):
    __doc__ = connection.Service.__doc__

    @cached_property
    def programs(self) -> Programs:
        """The programs: register and find them."""
        return Programs(self)

    def create_session(
        self,
        program: BuiltProgram | Mapping[str, Any] | str,
        loss: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Session:
        """A session that trains `program`: a built program, a document, or an id. See `Program.session`."""
        return Program(self, program).session(loss, parameters or {}, **settings)

    @cached_property
    def datasets(self) -> Datasets:
        """The stored tables: upload, list, preview and delete them."""
        return Datasets(self)

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs: submit, list, watch, pause and cancel them."""
        return Jobs(self)
