"""Failures of stored files as refusals of requests."""

from __future__ import annotations

import errno

import pytest

from service.objects import DamagedFile
from service.store.errors import StorageFull, StorageUnavailable, StoreDamaged
from service.store.files import storage_errors
from tests.service.prepared import prepared


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (OSError(errno.ENOSPC, "full"), StorageFull, 507),
        (OSError(errno.EDQUOT, "quota"), StorageFull, 507),
        (OSError(errno.EIO, "broken"), StorageUnavailable, 503),
        (PermissionError(errno.EACCES, "denied"), StorageUnavailable, 503),
        (DamagedFile("bytes differ"), StoreDamaged, 503),
    ],
)
def test_a_failure_of_a_stored_file_is_a_refusal_without_paths_for_clients(tmp_path, error, kind, status):
    with pytest.raises(kind) as refused, storage_errors(prepared(str(tmp_path))):
        raise error

    assert refused.value.status == status
    assert str(tmp_path) not in refused.value.detail
    assert str(tmp_path) in str(refused.value)


def test_a_missing_file_is_for_the_caller_to_judge(tmp_path):
    objects = prepared(str(tmp_path))
    with pytest.raises(FileNotFoundError), storage_errors(objects):
        objects.read("none")
