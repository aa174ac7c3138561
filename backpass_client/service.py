"""A service with all that it stores."""

from __future__ import annotations

from functools import cached_property

from backpass_client import connection
from backpass_client.datasets import Datasets
from backpass_client.jobs import Jobs

__all__ = ["Service"]


class Service(connection.Service):
    __doc__ = connection.Service.__doc__

    @cached_property
    def datasets(self) -> Datasets:
        """The stored tables: upload, list, preview and delete them."""
        return Datasets(self)

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs: submit, list, watch, pause and cancel them."""
        return Jobs(self)
