"""Listings of the Python client: typed, page by page, and complete."""

from __future__ import annotations

import inspect
import json
from itertools import islice
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from backpass_client import connection
from examples.models import line
from tests.paths import ROOT

API = json.loads((ROOT / "openapi/openapi.json").read_text())
LISTINGS: dict[str, str] = {
    "/v1/programs": "programs.list",
    "/v1/sessions": "sessions.list",
    "/v1/checkpoints": "checkpoints.list",
    "/v1/sessions/{session_id}/checkpoints": "checkpoints.list",
    "/v1/jobs/{job_id}/checkpoints": "jobs.get",
    "/v1/datasets": "datasets.list",
    "/v1/uploads": "datasets.uploads",
    "/v1/jobs": "jobs.list",
    "/v1/tapes": "tapes.list",
    "/v1/ops": "ops",
    "/v1/keys": "keys.list",
    "/v1/tenants": "tenants.list",
    "/v1/audit": "audit",
    "/v1/operations": "operations.list",
}


def test_every_listing_of_the_service_has_one_in_the_client():
    parameters = API["components"]["parameters"]
    found = {
        path
        for path, methods in API["paths"].items()
        for each in [methods.get("get", {})]
        for p in each.get("parameters", ())
        if (parameters[p["$ref"].split("/")[-1]] if "$ref" in p else p)["name"] == "page_token"
    }
    assert found == set(LISTINGS)
    for name in LISTINGS.values():
        target: Any = bp.Service("http://service")
        for part in name.split("."):
            target = getattr(target, part)
        assert callable(target)


@pytest.fixture
def one_each(service):
    """Objects of each kind."""
    programs = [service.programs.create(line()).id]
    made = [service.create_session(line(), "loss", {"w": np.zeros(2)}, optimizer={"type": "sgd"}) for _ in range(3)]
    sessions = [each.id for each in made]
    checkpoints = [each.checkpoint().id for each in made]
    opened = [bp.Tape(service) for _ in range(3)]
    tapes = [each.id for each in opened]
    columns = [{"x": np.full((4, 2), i + 0.5), "y": np.zeros(4)} for i in range(3)]
    stored = [service.datasets.upload(each, name=f"listed {i}") for i, each in enumerate(columns)]
    datasets = [each.id for each in stored]
    jobs = [service.jobs.submit(each, session_id=s.id).id for each, s in zip(stored, made, strict=True)]
    uploads = [service.call("POST", "/v1/uploads", {"size": 8})["id"] for _ in range(3)]
    steps = {"batches": 20_000, "return_gradients": "none"}
    feeds = {"x": np.ones((1, 2)), "y": np.zeros(1)}
    long = [service.create_session(line(), "loss", {"w": np.zeros(2)}, optimizer={"type": "sgd"}) for _ in range(3)]
    operations = [service.operations.start(f"{each.path}/steps", steps, feeds) for each in long]
    for id in jobs:
        service.jobs.get(id).wait(progress=False)
    yield {
        "programs.list": programs, "sessions.list": sessions, "checkpoints.list": checkpoints,
        "tapes.list": tapes, "datasets.list": datasets, "jobs.list": jobs, "datasets.uploads": uploads,
        "operations.list": [each.id for each in operations],
    }  # fmt: skip
    for each in operations:
        each.wait()
        each.delete()
    for each in opened:
        each.close()
    for session in made + long:
        session.close()
    for id in uploads:
        service.call("DELETE", f"/v1/uploads/{id}")


def test_listings_are_lazy_iterators_over_all_pages(service, one_each, monkeypatch):
    monkeypatch.setattr(connection, "PAGE", 2)
    kinds = {"programs": bp.Program, "sessions": bp.Session, "checkpoints": bp.Checkpoint, "jobs": bp.Job}
    kinds["operations"] = bp.Operation
    asked: list[str] = []
    call = connection.Service.call

    def counted(self, method, path, *args, **options):
        asked.append(path)
        return call(self, method, path, *args, **options)

    monkeypatch.setattr(connection.Service, "call", counted)
    for name, ids in one_each.items():
        collection, _, method = name.partition(".")
        listing = getattr(getattr(service, collection), method)
        asked.clear()
        found = listing()
        assert inspect.isgenerator(found) and asked == []
        first = list(islice(found, 2))
        assert len(asked) == 1
        every = [*first, *found]
        got = [each["id"] if isinstance(each, dict) else each.id for each in every]
        assert set(ids) <= set(got) and len(set(got)) == len(got) and len(asked) >= len(got) / 2
        wanted = dict if name in ("tapes.list", "datasets.uploads") else kinds.get(collection, bp.Dataset)
        assert {type(each) for each in every} == {wanted}


def test_listed_objects_can_be_used_as_those_that_were_opened(service, one_each):
    (id,) = one_each["programs.list"]
    program = next(each for each in service.programs.list() if each.id == id)
    assert program.evaluate({"x": [[1, 2]], "y": [0]}, {"w": [1, 1]}, fetch=["error"])["error"].tolist() == [3.0]
    session = next(each for each in service.sessions.list() if each.id in one_each["sessions.list"])
    assert session.step({"x": [[1, 2]], "y": [0]}).said["step"] == session.said["step"] + 1
    assert service.sessions.get(session.id).next_seq == session.next_seq
    with pytest.raises(bp.Refused, match="not-found"):
        service.sessions.get("ses_" + "a" * 26)
    saved = next(each for each in service.checkpoints.list() if each.id in one_each["checkpoints.list"])
    assert service.checkpoints.get(saved.id).arrays()["w"].tolist() == [0.0, 0.0]
    assert [each.id for each in service.checkpoints.list(session=saved.said["session"])] == [saved.id]
    assert {each.said["state"] for each in service.jobs.list("succeeded")} == {"succeeded"}
    job = service.jobs.get(one_each["jobs.list"][0])
    assert all(isinstance(each, bp.Checkpoint) for each in job.checkpoints())
    data = next(each for each in service.datasets.list() if each.name.startswith("listed"))
    assert data.columns is None and "4 rows)" in repr(data)
    assert service.datasets.get(data.id).columns[0]["name"] in ("x", "y")
    assert service.datasets.change(data, name="listed again", labels={"kind": "test"}).name == "listed again"
    tape = bp.Tape(service)
    service.tapes.delete(tape.id)
    assert tape.id not in [each["id"] for each in service.tapes.list()]


def test_a_program_is_cloned_for_evaluation_and_deleted(service):
    @bp.program
    def dropped(x=bp.f32[64]):
        return {"out": bp.nn.Dropout(0.5)(x * bp.parameter("w", [64], init="ones"))}

    program = service.programs.create(dropped)
    tested = program.clone(for_test=True)

    assert tested.id != program.id and (tested.evaluate({"x": np.ones(64, "f")})["out"] == 1).all()
    tested.delete()
    with pytest.raises(bp.Refused, match="not-found"):
        service.programs.get(tested.id)


def test_listings_of_things_with_labels_can_be_limited_to_some(service):
    session = service.create_session(line(), "loss", {"w": np.zeros(2)}, optimizer={"type": "sgd"})
    data = [service.datasets.upload({"x": np.full((4, 2), i), "y": np.ones(4)}, labels={"i": f"{i}"}) for i in range(3)]
    saved = [session.checkpoint(labels={"run": "limited", "i": f"{i}"}) for i in range(3)]
    settings = {"session": session, "name": "limited", "labels": {"run": "limited:1"}}
    job = service.jobs.submit(data[0].id, **settings)
    job.wait(progress=False)

    def ids(found: Any) -> set[str]:
        return {each.id for each in found}

    assert ids(service.datasets.list(labels={"i": "1"})) == {data[1].id}
    assert ids(service.datasets.list(labels={"i": None})) == ids(data)
    assert ids(service.checkpoints.list(labels={"run": "limited", "i": None})) == ids(saved)
    assert ids(service.checkpoints.list(session=session.id, labels={"i": "2"})) == {saved[2].id}
    assert ids(service.checkpoints.list(labels={"run": "limited", "i": "3"})) == set()
    assert ids(service.jobs.list(labels={"run": "limited:1"})) == {job.id}
    assert ids(service.jobs.list("failed", labels={"run": "limited:1"})) == set()
    session.close()
