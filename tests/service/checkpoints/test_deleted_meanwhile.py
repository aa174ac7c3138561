"""A checkpoint or program that is deleted while a request reads its file is a 404, as if it had been deleted before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from starlette.testclient import TestClient

from service.app import create_app
from service.caller import tenant
from service.engine import RemoteError
from service.schemas.examples import REGRESSION, REGRESSION_ID, SAMPLE_SETTINGS
from service.settings import Settings
from service.store.checkpoints import StoredCheckpoint
from tests.service.store.test_service import Accepting
from tests.service.wire import problem, tensor

OF_VALUES = {"gradients", "evaluate", "session.create", "check", "onnx.program"}


class Reading(Accepting):
    """Workers that find no file of a checkpoint, or of values. delete: called before they look for it."""

    delete: Any = None

    async def call(self, op: str, *more: Any, **others: Any) -> Any:
        if op not in OF_VALUES | {"session.derive"}:
            return await super().call(op, *more, **others)
        if self.delete is not None:
            await self.delete()
        code = "values_missing" if op in OF_VALUES else "checkpoint_missing"
        raise RemoteError("execution", code, "the file is missing", {})


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "pointers"),
    [
        ("/v1/gradients", {"program_id": "<id>", "loss": "loss"}, ["/program_id"]),
        ("/v1/gradients", {"program": {**REGRESSION, "values": "<sha256>"}, "loss": "loss"}, ["/program/values"]),
        ("/v1/sessions", {"program_id": "<id>", "loss": "loss"}, ["/program_id"]),
        ("/v1/programs/<id>/gradients", {"loss": "loss"}, []),
        ("/v1/programs/<id>/evaluations", {"fetch": ["loss"]}, []),
        ("/v1/programs/<id>/check", {"loss": "loss"}, []),
        ("/v1/programs/<id>", None, []),
    ],
)
def test_values_that_another_request_deletes_are_missing_as_if_deleted_before(client, path, body, pointers, deleted):
    given = {"program": REGRESSION, "values": {"w": tensor(np.full((2, 1), 2.0, np.float32))}}
    made = client.post("/v1/programs", json=given).json()

    def named(text: str) -> str:
        return text.replace("<id>", made["id"]).replace("<sha256>", made["values"]["sha256"])

    async def delete() -> None:
        await client.app.state.programs.delete(tenant(), made["id"])

    def answer() -> Any:
        if body is None:
            return client.get(named(path), headers={"Accept": "application/x-onnx"})
        return client.post(named(path), json=json.loads(named(json.dumps(body))))

    client.app.state.engine.delete = delete if deleted else None
    first = answer()
    client.app.state.engine.delete = None
    if not deleted:
        problem(first, 409, "values-damaged")
        return
    found, later = first.json(), answer().json()
    assert (found["status"], found["code"]) == (later["status"], later["code"])
    assert [each["pointer"] for each in found.get("errors", [])] == pointers
    assert found.get("errors", []) == later.get("errors", [])
