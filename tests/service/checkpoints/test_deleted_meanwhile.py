"""A checkpoint that is deleted while a request reads its file is a 404, as if it had been deleted before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from starlette.testclient import TestClient

from service.app import create_app
from service.caller import tenant
from service.engine import RemoteError
from service.schemas.examples import REGRESSION_ID, SAMPLE_SETTINGS
from service.settings import Settings
from service.store.checkpoints import StoredCheckpoint
from tests.service.store.test_service import Accepting
from tests.service.wire import problem


class Reading(Accepting):
    """Workers that find no file of a checkpoint. delete: called before they look for it."""

    delete: Any = None

    async def call(self, op: str, *more: Any, **others: Any) -> Any:
        if op != "session.derive":
            return await super().call(op, *more, **others)
        if self.delete is not None:
            await self.delete()
        raise RemoteError("execution", "checkpoint_missing", "the file of the checkpoint is missing", {})


@pytest.fixture
def client(tmp_path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(data_dir=tmp_path), Reading())) as opened:  # type: ignore[arg-type]
        yield opened


@pytest.fixture
def checkpoint(client) -> str:
    file = save({"w": np.ones((2, 1), np.float32), "b": np.ones(1, np.float32)})
    made = client.post("/v1/checkpoints", content=file, headers={"Content-Type": "application/x-safetensors"})
    return made.json()["id"]


@pytest.mark.parametrize("deleted", [True, False])
def test_opening_a_session_answers_404_if_another_request_deletes_its_checkpoint(client, checkpoint, deleted):
    async def delete() -> None:
        await client.app.state.checkpoints.remove(tenant(), checkpoint)

    client.app.state.engine.delete = delete if deleted else None
    asked = {**SAMPLE_SETTINGS, "program_id": REGRESSION_ID, "from_checkpoint": checkpoint}
    answer = client.post("/v1/sessions", json=asked)

    if deleted:
        found = problem(answer, 404, "not-found")
        assert [error["pointer"] for error in found["errors"]] == ["/from_checkpoint"]
    else:
        problem(answer, 409, "checkpoint-damaged")


@pytest.mark.parametrize("deleted", [True, False])
def test_a_download_answers_404_if_another_request_deletes_the_checkpoint(client, checkpoint, deleted, monkeypatch):
    kept = client.app.state.checkpoints
    opened = kept.open

    def opens(found: StoredCheckpoint) -> Any:
        if deleted:
            client.portal.call(kept.remove, tenant(), checkpoint)
        else:
            kept.objects.delete(found.key)
        return opened(found)

    monkeypatch.setattr(kept, "open", opens)
    answer = client.get(f"/v1/checkpoints/{checkpoint}/content")
    problem(answer, *((404, "not-found") if deleted else (409, "checkpoint-damaged")))
