"""Gates: places, the waiting room, refusals, and the rate of unpaid work."""

from __future__ import annotations

import asyncio

import pytest

from service.http import admission
from service.http.admission import Admission, Gate, Ticket
from service.http.pacer import PER_TURN, Pacer
from service.settings import Settings

pytestmark = pytest.mark.anyio
SESSION = "/v1/sessions/ses_" + "a" * 26
OTHER = "/v1/sessions/ses_" + "b" * 26


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Visits:
    """Requests at one gate, and their fates in order."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.log: list[str] = []
        self.tickets: dict[str, Ticket] = {}

    def arrive(self, name: str, weight: int = 1, tenant: str = "") -> None:
        ticket = self.tickets[name] = Ticket(self.gate, lambda: self.log.append(f"{name} starts"), weight, tenant)
        if self.gate.enter(ticket, lambda _: self.log.append(f"{name} refused")):
            ticket.start()


async def test_requests_beyond_the_limit_start_in_order_when_others_leave():
    visits = Visits(Gate(2, "calls"))
    for name in "abcd":
        visits.arrive(name)
    assert visits.log == ["a starts", "b starts"]

    visits.tickets["b"].release()
    visits.tickets["b"].release()
    visits.tickets["a"].release()

    assert visits.log == ["a starts", "b starts", "c starts", "d starts"]


async def test_a_newcomer_does_not_pass_a_waiting_request():
    visits = Visits(Gate(10, "bytes"))
    visits.arrive("a", 6)
    visits.arrive("b", 6)
    visits.arrive("c", 1)
    assert visits.log == ["a starts"]

    visits.tickets["b"].release()

    assert visits.log == ["a starts", "c starts"]


async def test_a_request_larger_than_the_limit_passes_an_empty_gate():
    visits = Visits(Gate(10, "bytes"))
    visits.arrive("a", 25)
    assert visits.log == ["a starts"]


async def test_a_tenant_with_large_bodies_leaves_half_of_the_room_to_others():
    visits = Visits(Gate(20, "bytes", halved=True))
    visits.arrive("large", 9, "one")
    visits.arrive("second", 9, "one")  # waits for the first one alone
    visits.arrive("other", 9, "two")
    visits.arrive("small", 1, "two")
    visits.arrive("third", 1, "three")
    assert visits.log == ["large starts", "other starts", "third starts"]

    visits.tickets["other"].release()
    assert visits.log[3:] == ["small starts"]
    visits.tickets["large"].release()
    assert visits.log[4:] == ["second starts"]


async def test_a_service_without_keys_gives_all_of_its_room_to_its_one_tenant():
    visits = Visits(Gate(20, "bytes", halved=True))
    for name in "abc":
        visits.arrive(name, 9, "local")
    assert visits.log == ["a starts", "b starts"]


async def test_a_request_that_waits_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(admission, "ROOM_S", 0.0)
    visits = Visits(Gate(1, "calls"))
    visits.arrive("a")
    visits.arrive("b")
    await asyncio.sleep(0.01)
    visits.tickets["a"].release()
    visits.arrive("c")
    assert visits.log == ["a starts", "b refused", "c starts"]


async def test_retry_after_grows_with_the_queue_and_differs_between_clients():
    short, long = Gate(1, "calls"), Gate(1, "calls")
    for _ in range(100):
        long.enter(Ticket(long, lambda: None), lambda _: None)
    for gate in (short, long):
        gate._interval = 0.2

    assert {short.retry_after for _ in range(50)} == {1}
    found = {long.retry_after for _ in range(200)}
    assert 20 <= min(found) < max(found) <= 40


async def test_each_session_has_its_own_gate_as_wide_as_its_pipeline():
    gates = Admission(Settings(session_pipeline=3))
    first, second = gates.gates(f"{SESSION}/steps", 10), gates.gates(f"{OTHER}/steps", 10)
    assert first[0] is not second[0]
    assert first[0].limit == 4
    assert gates.gates(SESSION, 0) == [gates.calls]  # its view stays readable


async def test_the_gate_of_a_session_is_forgotten_when_no_request_uses_it():
    gates = Admission(Settings())
    visits = Visits(gates.gates(f"{SESSION}/steps", 10)[0])
    visits.arrive("a")
    assert gates.gates(f"{SESSION}/steps", 10)[0] is visits.gate
    visits.tickets["a"].release()
    assert gates.gates(f"{SESSION}/steps", 10)[0] is not visits.gate


async def test_uploads_do_not_take_the_places_of_calls():
    gates = Admission(Settings())
    assert gates.gates("/v1/gradients", 1000) == [gates.calls]
    assert gates.gates("/v1/gradients", 10**6) == [gates.uploads, gates.body_bytes]
    assert gates.gates("/v1/gradients", None) == [gates.uploads, gates.body_bytes]
    assert gates.gates("/docs", 0) == [gates.light]


async def test_unpaid_work_is_done_a_few_pieces_at_a_time(monkeypatch):
    turns: list[int] = []
    done: list[int] = []
    ended = asyncio.Event()
    pacer = Pacer()
    run = pacer._turn

    def turn() -> None:
        run()
        turns.append(len(done))
        if not len(pacer):
            ended.set()

    monkeypatch.setattr(pacer, "_turn", turn)
    for i in range(3 * PER_TURN):
        pacer.add(lambda i=i: done.append(i))
    await ended.wait()
    assert turns == [PER_TURN, 2 * PER_TURN, 3 * PER_TURN]
    assert done == list(range(3 * PER_TURN))
