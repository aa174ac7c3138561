"""Errors of stored files as refusals of requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from service.objects import DamagedFile, DirectoryAway, Objects
from service.problems import HttpProblem, from_exception
from service.store.directory import refusal
from service.store.errors import StoreDamaged

__all__ = ["storage_errors"]


@contextlib.contextmanager
def storage_errors(objects: Objects) -> Iterator[None]:
    """Raise StorageError for what fails in the block, as on the data directory: 507 for a full disk, else 503.

    FileNotFoundError passes: the caller knows whether the file must exist.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except DamagedFile as error:
        raise StoreDamaged("a stored file is damaged", f"{objects.url}: {error}") from error
    except OSError as error:
        raise refusal(error, objects.url) from error


@from_exception.register
def _(error: DirectoryAway) -> HttpProblem:
    """The problem where nothing else expects the error."""
    return refusal(error, error.filename)
