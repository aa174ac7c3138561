"""All checks in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.doctor import access, machine, network, storage
from service.doctor.finding import Finding, wrong
from service.doctor.gpu import gpu
from service.doctor.settings import conflicts, unknown
from service.setting_mistakes import read_settings

__all__ = ["examine"]

CHECKS = (
    conflicts,
    machine.processor,
    gpu,
    machine.memory,
    machine.limits,
    machine.clock,
    machine.kernel,
    storage.data_directory,
    storage.disk,
    storage.sync_time,
    storage.database,
    storage.objects,
    storage.machine_code,
    storage.secrets,
    access.keys,
    access.tls,
    network.ports,
)


def examine(**given: Any) -> Iterator[Finding]:
    """The findings, one after another. given: settings on top of those of the environment.

    A check that fails unexpectedly is a finding too, so that the others still run.
    """
    yield from unknown()
    settings = read_settings(**given)
    if isinstance(settings, list):
        for found in settings:
            yield wrong("settings", found, "Correct the value: see docs/settings.md.")
        return
    for check in CHECKS:
        try:
            yield from check(settings)
        except Exception as error:
            found = f"the check failed: {type(error).__name__}: {error}"
            yield wrong(check.__name__, found, "Report this failure, with the line.")
