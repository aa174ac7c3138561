"""Checkpoints: sessions as files in the service, which can be downloaded, uploaded and opened again."""

from __future__ import annotations

import os
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np

from backpass_client.connection import Service
from backpass_client.errors import Refused
from backpass_client.tensorfile import MEDIA_TYPE, pack, unpack

__all__ = ["Checkpoint", "Checkpoints", "with_id"]


class Checkpoint:
    """One checkpoint of a service. said: its description, as GET answers it."""

    def __init__(self, service: Service, said: Mapping[str, Any]) -> None:
        self.service = service
        self.said: dict[str, Any] = dict(said)
        self.id: str = said["id"]
        self.path = f"/v1/checkpoints/{self.id}"

    @classmethod
    def get(cls, service: Service, id: str) -> Self:
        """The checkpoint with this id. Raises Refused (not-found)."""
        return cls(service, service.call("GET", f"/v1/checkpoints/{id}"))

    @classmethod
    def all(
        cls, service: Service, session: str | None = None, labels: Mapping[str, str | None] | None = None
    ) -> Iterator[Self]:
        """All checkpoints of the service, or of the session with this id, page by page.

        labels: that they have; None for any value.
        """
        path = "/v1/checkpoints" if session is None else f"/v1/sessions/{session}/checkpoints"
        return (cls(service, each) for each in service.entries(path, "checkpoints", labels=labels))

    @classmethod
    def upload(
        cls,
        service: Service,
        source: str | os.PathLike[str] | Mapping[str, Any],
        *,
        name: str = "",
        ttl: float | None = None,
    ) -> Self:
        """A new checkpoint from a file, or from parameters and states by name.

        source: path of a downloaded checkpoint, or of any safetensors file of parameters; or arrays by name.
        ttl:    seconds after which the service deletes the checkpoint.
        Raises Refused with every tensor that is wrong, and if the file changed on its way.
        """
        with tempfile.TemporaryFile() if isinstance(source, Mapping) else Path(source).open("rb") as file:
            if isinstance(source, Mapping):
                file.write(pack(source, {}))
                file.seek(0)
            digest = b64encode(file_digest(file, "sha256").digest()).decode()
            headers = {
                "content-type": MEDIA_TYPE,
                "content-length": str(file.tell()),
                "repr-digest": f"sha-256=:{digest}:",
                "idempotency-key": str(uuid4()),
            }
            query = {"name": name, **({} if ttl is None else {"ttl_s": ttl})}
            return cls(service, service.send_file("/v1/checkpoints", file, headers=headers, query=query))

    def download(self, path: str | os.PathLike[str]) -> Path:
        """Write the file to `path`, which appears whole or not at all. Goes on after a broken connection.

        Raises BackpassError if its digest is wrong.
        """
        target = Path(path)
        self.service.download(f"{self.path}/content", target)
        return target

    def arrays(self) -> dict[str, np.ndarray]:
        """All tensors of the file by name: parameters, states, and optimizer state as ``<parameter>/<slot>``."""
        with tempfile.TemporaryFile() as file:
            self.service.receive_file(f"{self.path}/content", file)
            file.seek(0)
            return unpack(file.read())[1]

    def change(self, **members: Any) -> None:
        """Change name, labels or expires_at; None removes one."""
        self.said = self.service.call("PATCH", self.path, members)

    def delete(self) -> None:
        """Delete the checkpoint; safe to repeat. Sessions that were opened from it go on."""
        try:
            self.service.call("DELETE", self.path)
        except Refused as error:
            if error.code != "not-found":
                raise

    def __repr__(self) -> str:
        return f"Checkpoint({self.service.url!r}, {self.id!r}, step {self.said['step']})"


def with_id(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with the id of the checkpoint in place of a `Checkpoint` as `from_checkpoint`.

    Raises TypeError for the path of a file, which the service does not have.
    """
    given = settings.get("from_checkpoint")
    if isinstance(given, Checkpoint):
        return {**settings, "from_checkpoint": given.id}
    if isinstance(given, Path) or (isinstance(given, str) and Path(given).is_file()):
        raise TypeError(
            f"from_checkpoint is a Checkpoint of the service, or its id, not the file {str(given)!r}: store the file "
            "first, with service.checkpoints.upload(path)"
        )
    return dict(settings)


class Checkpoints:
    """The checkpoints of a service; `service.checkpoints`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def upload(
        self, source: str | os.PathLike[str] | Mapping[str, Any], *, name: str = "", ttl: float | None = None
    ) -> Checkpoint:
        """A new checkpoint from a file, or from parameters and states by name: see `Checkpoint.upload`."""
        return Checkpoint.upload(self._service, source, name=name, ttl=ttl)

    def get(self, id: str) -> Checkpoint:
        """The checkpoint with this id. Raises Refused (not-found)."""
        return Checkpoint.get(self._service, id)

    def list(self, session: str | None = None, labels: Mapping[str, str | None] | None = None) -> Iterator[Checkpoint]:
        """All checkpoints, or those of the session with this id, page by page.

        labels: that they have, such as ``{"run": "7"}``; None for any value.
        """
        return Checkpoint.all(self._service, session, labels)
