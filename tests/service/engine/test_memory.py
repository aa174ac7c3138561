"""The share of each worker of the memory of the machine."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from service.engine.memory import UnusableSettings, worker_memory
from service.settings import Settings

GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize("total", [2 * GIB, 4 * GIB, 24 * GIB, 512 * GIB])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_workers_their_compilers_and_the_service_fit_into_the_memory(total, workers):
    limit = worker_memory(Settings(workers=workers), total=total)

    assert limit >= 256 * MIB
    assert workers * limit * 3 / 2 <= total - min(total // 4, 512 * MIB)


def test_more_workers_than_fit_are_refused_with_the_number_that_fits():
    with pytest.raises(UnusableSettings, match="at most 2 fit into 1200 MiB") as caught:
        worker_memory(Settings(workers=8), total=1200 * MIB)

    assert caught.value.setting == "workers"
    worker_memory(Settings(workers=2), total=1200 * MIB)


def test_a_limit_that_the_machine_does_not_have_is_refused_with_the_largest_that_fits():
    with pytest.raises(UnusableSettings, match="at most 1792 MiB each") as caught:
        worker_memory(Settings(workers=2, worker_memory=2 * GIB), total=4 * GIB)

    assert caught.value.setting == "worker_memory"
    assert worker_memory(Settings(workers=2, worker_memory=1792 * MIB), total=4 * GIB) == 1792 * MIB


@pytest.mark.parametrize("total", [512, 600, 767, 768, 1000, 1024, 2048, 65536])
@pytest.mark.parametrize("cores", [1, 16])
def test_the_workers_of_the_default_fit_into_every_machine(total, cores, monkeypatch):
    monkeypatch.setattr("service.settings.available_memory", lambda: total * MIB)
    monkeypatch.setattr("service.settings.available_cores", lambda: cores)

    settings = Settings()

    assert worker_memory(settings, total=total * MIB) >= 256 * MIB
    with pytest.raises(UnusableSettings) if settings.workers == 1 else nullcontext():
        worker_memory(settings, 2, total * MIB)
