"""The faults that a run injects, one at a time, at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tests.reliability.house import House

__all__ = ["FAULTS", "Fire"]


def kill_service(house: House, rng: random.Random) -> None:
    house.kill()
    house.start()


def kill_worker(house: House, rng: random.Random) -> None:
    signal_worker(house, rng, signal.SIGKILL)


def stop_worker(house: House, rng: random.Random) -> None:
    """Stop a worker for longer than its heartbeat may be missing: the service replaces it."""
    pid = signal_worker(house, rng, signal.SIGSTOP)
    time.sleep(2.5)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def signal_worker(house: House, rng: random.Random, sent: signal.Signals) -> int:
    """Send a signal to a worker; its process id. Raises Missed if there is none, or if it ended meanwhile."""
    workers = house.workers()
    if not workers:
        raise Missed
    pid = rng.choice(workers)
    try:
        os.kill(pid, sent)
    except ProcessLookupError:
        raise Missed from None
    return pid


def pause_service(house: House, rng: random.Random) -> None:
    assert house.process is not None
    house.process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    house.process.send_signal(signal.SIGCONT)


def tear_write(house: House, rng: random.Random) -> None:
    """Kill the service while a file is being written, if one is within a second."""
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):  # a folder that is deleted meanwhile
            if any(house.objects.rglob("*.partial")):
                break
    else:
        raise Missed
    kill_service(house, rng)


def fill_disk(house: House, rng: random.Random) -> None:
    """Let no file of the service grow for a moment, as on a full disk."""
    for limit in (1, resource.RLIM_INFINITY):
        for pid in house.processes():  # a worker that started meanwhile has the limit of the service
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        time.sleep(0.3)


def set_clock_back(house: House, rng: random.Random) -> None:
    house.clock.write_text(str(-rng.randrange(3600, 10**6)))


def restart_store(house: House, rng: random.Random) -> None:
    """End the database server at once, and start it again."""
    assert house.postgres is not None
    house.postgres.kill()
    time.sleep(rng.uniform(0.0, 0.5))
    house.postgres.start()


def silence_store(house: House, rng: random.Random) -> None:
    """Let the database server answer nothing for some time, as in a network that loses all packets."""
    assert house.postgres is not None
    with house.postgres.silent():
        time.sleep(rng.choice([0.3, 2.0, 12.0]))


Fault = Callable[[House, random.Random], None]
FAULTS: dict[str, Fault] = {
    "service killed": kill_service,
    "worker killed": kill_worker,
    "worker stopped": stop_worker,
    "service stopped": pause_service,
    "write torn": tear_write,
    "disk full": fill_disk,
    "clock set back": set_clock_back,
    "store restarted": restart_store,
    "store silent": silence_store,
}


FIRST_FAULTS, ANSWERS = 3, 8
"""Most faults before the first answer, and answers that allow another fault. On a slow machine a start takes longer
than the pause between two faults: without this limit no call would ever end."""


class Missed(Exception):
    """The moment for the fault did not come."""


class Fire:
    """Injects faults until it is put out. counts: those that happened, by name. enough: set when `least` happened."""

    def __init__(
        self,
        houses: Sequence[House],
        seed: int,
        faults: Mapping[str, float],
        pause: float,
        least: Mapping[str, int],
        progress: Callable[[], int],
    ) -> None:
        """houses: one of them has each fault, by chance. faults: name -> weight. pause: seconds between two at most.

        least: name -> how often. progress: answers that the clients have got, for which workers had to compute.
        """
        self.counts: Counter[str] = Counter()
        self.enough = threading.Event()
        if not least:
            self.enough.set()
        self.error: BaseException | None = None
        self._houses, self._rng, self._faults = houses, random.Random(seed), faults
        self._pause, self._least, self._progress = pause, Counter(least), progress
        self._out = threading.Event()
        self._thread = threading.Thread(target=self._burn, name="fire")

    def __enter__(self) -> Fire:
        self._thread.start()
        return self

    def watch(self, clients: Sequence[threading.Thread]) -> None:
        """Wait for the end of the clients, or for an error: a service that does not start again has no answers."""
        for each in clients:
            while each.is_alive() and self.error is None:
                each.join(0.2)

    def __exit__(self, *_: object) -> None:
        self._out.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _burn(self) -> None:
        names, weights = list(self._faults), list(self._faults.values())
        try:
            while not self._out.wait(self._rng.uniform(0, self._pause)):
                name = self._rng.choices(names, weights)[0]
                if self.counts.total() >= FIRST_FAULTS + self._progress() // ANSWERS:
                    missing = list(self._least - self.counts)
                    if not missing:
                        continue
                    name = missing[0]
                try:
                    FAULTS[name](self._rng.choice(self._houses), self._rng)
                except Missed:
                    continue
                self.counts[name] += 1
                if self.counts >= self._least:
                    self.enough.set()
        except BaseException as error:
            self.error = error
