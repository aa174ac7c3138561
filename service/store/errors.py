"""Errors of stored data. Each is a problem document, for requests, and a sentence with paths, for operators.

* StorageError
  + StorageFull         no space is left: the disk, a quota or a limit of file sizes
  + StorageUnavailable  the directory is gone, replaced or read-only, or its files cannot be read
    - StoreDamaged        the store is not one that this version can use
    - DirectoryInUse      another service owns the directory
"""

from __future__ import annotations

from collections.abc import Mapping

from service.problems import HttpProblem

__all__ = ["SILENT", "DirectoryInUse", "StorageError", "StorageFull", "StorageUnavailable", "StoreDamaged"]


SILENT = "the database does not answer"


class StorageError(HttpProblem):
    """The data directory cannot take the request. `str` is the sentence for operators."""

    code_of_problem = "storage-unavailable"

    def __init__(self, detail: str, for_operators: str = "", headers: Mapping[str, str] | None = None) -> None:
        """detail: for clients, without paths of the machine. for_operators: the same with paths."""
        super().__init__(self.code_of_problem, detail, headers=headers)
        self.for_operators = for_operators or detail

    def __str__(self) -> str:
        return self.for_operators


class StorageFull(StorageError):
    """No space is left for stored data."""

    code_of_problem = "storage-full"


class StorageUnavailable(StorageError):
    """Stored data cannot be reached or written now; this may pass."""


class StoreDamaged(StorageUnavailable):
    """The file of a store exists, but this version of the service cannot use it. Only an operator can mend that."""


class DirectoryInUse(StorageUnavailable):
    """Another process owns the data directory."""
