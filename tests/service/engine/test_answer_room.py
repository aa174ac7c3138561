"""The bound on the bytes of answers that are being sent."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from service.engine.answer_room import AnswerRoom
from service.engine.pending_call import THREAD_COPY_BYTES, PendingCall, SharedMemory
from service.ipc.messages import Returned
from service.ipc.shared_memory import SharedMemoryWriter

pytestmark = pytest.mark.anyio
MIB = 2**20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_answers_fit_until_the_limit_and_again_when_one_was_sent():
    room = AnswerRoom(10 * MIB)
    with room.sending(6 * MIB):
        room.check(4 * MIB)
        room.check(MIB)
        with pytest.raises(MemoryError):
            room.check(5 * MIB)
    room.check(5 * MIB)


def test_one_answer_alone_fits_and_small_ones_do_not_count():
    room = AnswerRoom(MIB)
    room.check(100 * MIB)
    with room.sending(1000):
        assert room.used == 0
        room.check(100 * MIB)


async def test_an_answer_without_room_is_never_copied_from_its_worker(monkeypatch: pytest.MonkeyPatch):
    memory = SharedMemory(AnswerRoom(4 * MIB))
    monkeypatch.setattr(memory.answers, "read", lambda *_: pytest.fail("the answer was copied"))
    ends = []

    def last(call: PendingCall, message: Returned, arrays: dict[str, np.ndarray]) -> None:
        ends.append((call.lacking, arrays))
        assert call.lacking is not None
        call.fail(call.lacking)

    call = PendingCall(1, memory, None, lambda: None, last, lambda error: None)
    writer = SharedMemoryWriter()
    described, _, descriptor = writer.put({"x": np.zeros(THREAD_COPY_BYTES + 8, np.uint8)})
    assert descriptor is not None
    assert memory.room is not None
    with memory.room.sending(4 * MIB):
        call.take(Returned(1, {}, described, bytearray(), {}, 0), [])
        with pytest.raises(MemoryError):
            await asyncio.wait_for(call.reply, 60)
    assert len(ends) == 1
    writer.close()
    memory.close()
