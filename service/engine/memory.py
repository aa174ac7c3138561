"""The memory of each worker: configured, or its share of the memory of the machine or container."""

from __future__ import annotations

from service.machine import available_memory
from service.settings import LEAST_WORKER_MEMORY, MIB, OF_WORKER, Settings, service_memory

__all__ = ["UnusableSettings", "worker_memory"]


class UnusableSettings(ValueError):
    """Settings that cannot work on this machine. setting: the name of the first one."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


def worker_memory(settings: Settings, workers: int | None = None, total: int | None = None) -> int:
    """The limit of the private memory of each worker, in bytes.

    workers: their number; by default that of CPU workers. total: bytes of the machine or container; by default
    measured. Raises UnusableSettings if the workers do not fit.
    """
    total = available_memory() if total is None else total
    left = max(0, total - service_memory(total))
    given, count = settings.worker_memory, settings.workers if workers is None else workers
    if given is not None:
        if count * given > left:
            raise UnusableSettings(
                "worker_memory",
                f"{count} workers of {given // MIB} MiB need {count * given // MIB} MiB, but {left // MIB} MiB of "
                f"{total // MIB} MiB are left for workers: at most {left // count // MIB} MiB each",
            )
        return given
    part, parts = OF_WORKER
    share = left // count * part // parts
    if share < LEAST_WORKER_MEMORY:
        fit = left * part // parts // LEAST_WORKER_MEMORY
        raise UnusableSettings(
            "workers",
            f"{count} workers get {share // MIB} MiB each, but a worker needs {LEAST_WORKER_MEMORY // MIB} MiB: "
            + (f"at most {fit} fit into {total // MIB} MiB" if fit else f"{total // MIB} MiB are too few for one"),
        )
    return share
