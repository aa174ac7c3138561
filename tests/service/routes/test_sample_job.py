"""The sample job of the documentation."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from service.problems import HttpProblem
from service.routes.sample_job import cancel_job


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
