"""The samples of the documentation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.problems import HttpProblem
from service.routes.sample_job import cancel_job
from service.schemas.examples import SAMPLE_JOB, SAMPLE_LINE, SAMPLE_TAPE
from tests.service.conftest import serve
from tests.service.wire import problem


def test_the_sample_job_may_end_by_itself_while_it_is_canceled():
    waited = []

    class Jobs:
        async def get(self, tenant: str, id: str) -> Any:
            return SimpleNamespace(state="running", tenant=tenant, id=id)

        async def ask(self, tenant: str, id: str, action: str) -> Any:
            raise HttpProblem("invalid-state", "the job is succeeded; only a job that is running takes 'cancel'")

    async def ended(id: str) -> None:
        waited.append(id)

    runner = SimpleNamespace(jobs=Jobs(), ended=ended, wake=lambda job: None)
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(runner=runner)))

    asyncio.run(cancel_job(request))

    assert len(waited) == 1


def test_the_sample_job_has_the_id_of_the_documentation_in_all_answers(tmp_path: Path):
    with serve(tmp_path) as served:
        client, path = served.client, f"/v1/jobs/{SAMPLE_JOB}"
        shown = client.get(path)
        paused = client.post(f"{path}/pause", headers={"If-Match": shown.headers["etag"]})
        listed = client.get("/v1/jobs", params={"page_size": 1}).json()["jobs"]

        assert (shown.json()["id"], paused.json()["id"]) == (SAMPLE_JOB, SAMPLE_JOB)
        assert [each["id"] for each in listed] == [SAMPLE_JOB]


def test_a_sample_without_a_place_is_not_found_by_requests_that_make_nothing(tmp_path: Path):
    with serve(tmp_path, tapes=1) as served:
        client, path = served.client, f"/v1/tapes/{SAMPLE_TAPE}"
        assert client.post("/v1/tapes", json={}).status_code == 201

        for method in ("GET", "DELETE"):
            assert "1 of 1 tapes" in problem(client.request(method, path), 404, "not-found")["detail"]
        problem(client.post(f"{path}/ops", json=SAMPLE_LINE), 429, "quota-exceeded")
