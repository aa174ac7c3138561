"""The requests of a client's tape: equal iterations send their ops once, and each playback is one request."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import backpass_client as bp
from backpass_client import Service, Variable
from backpass_client.names import Names

W = np.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def sent(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """(last part of the path, body) of every request that changes or differentiates a tape."""
    found: list[tuple[str, bytes]] = []
    request = httpx.Client.request

    def recorded(self: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
        if method == "POST" and "/v1/tapes/" in path:
            found.append((path.rsplit("/", 1)[1], more.get("content", b"")))
        return request(self, method, path, **more)

    monkeypatch.setattr(httpx.Client, "request", recorded)
    yield found


def chain(w: Any, x: Any, length: int = 10) -> Any:
    for _ in range(length):
        w = bp.tanh(w * x)
    return w.sum()


def gradient(w: np.ndarray, x: np.ndarray, length: int = 10) -> np.ndarray:
    slope = np.ones_like(w)
    for _ in range(length):
        w = np.tanh(w * x)
        slope = slope * x * (1 - w**2)
    return slope


def test_equal_iterations_send_their_ops_once_and_one_request_each(service, sent):
    w, x = Variable(W, name="w"), np.full((3, 4), 1.1)
    with bp.lazy(service) as tape:
        for _ in range(14):
            tape.renew()
            w.zero_grad()
            start = w.data.copy()
            loss = chain(w, x)
            played = loss.backward()
            np.testing.assert_allclose(w.grad, gradient(start, x), rtol=1e-12)
            assert played.played == list(range(20, -1, -1)) and loss.place == 20
            assert float(loss) == pytest.approx(float(np.sum(forward(start, x))))
            w.data = w.data - 0.1 * w.grad
    assert [call for call, _ in sent] == ["ops"] * 14
    assert [b'\\"tanh\\"' in body for _, body in sent] == [True] + [False] * 13


def forward(w: np.ndarray, x: np.ndarray, length: int = 10) -> np.ndarray:
    for _ in range(length):
        w = np.tanh(w * x)
    return w


def test_alternating_structures_and_shapes_give_their_own_gradients(service, sent):
    with bp.lazy(service) as tape:
        for step in range(12):
            tape.renew()
            shape, length = [(3, 4), (2, 5)][step % 2], [8, 9, 10][step % 3]
            w = Variable(np.full(shape, 0.3 + step / 50))
            x = np.full(shape, 0.9)
            chain(w, x, length).backward()
            np.testing.assert_allclose(w.grad, gradient(w.data, x, length), rtol=1e-12)


def test_ops_are_sent_again_after_the_service_forgot_their_structure(service, sent):
    w, x = Variable(W), np.full((3, 4), 1.1)
    with bp.lazy(service) as tape:
        chain(w, x).backward()
        known = tape._structures._known
        for ops, (_, appended) in list(known.items()):
            known[ops] = "0" * 32, appended  # as if the service had removed it from its cache
        for _ in range(2):
            tape.renew()
            w.zero_grad()
            chain(w, x).backward()
            np.testing.assert_allclose(w.grad, gradient(W, x), rtol=1e-12)
    assert [b'\\"tanh\\"' in body for _, body in sent] == [True, False, True, False]


def test_a_variable_changed_in_place_is_read_with_its_value_at_each_use(service):
    w = Variable([1.0, 2.0])
    with bp.lazy(service) as tape:
        for _ in range(3):
            tape.renew()
            w.zero_grad()
            w.data[:] = [1.0, 2.0]
            before = w * 10
            w.data[0] = 5.0
            (before + w * w).sum().backward()
            assert before.value.tolist() == [10.0, 20.0]
            assert w.grad.tolist() == [20.0, 14.0]


def test_a_constant_variable_is_sent_again_on_a_renewed_tape(service):
    x = Variable([2.0], requires_grad=False)
    w = Variable([3.0])
    with bp.lazy(service) as tape:
        for _ in range(3):
            tape.renew()
            w.zero_grad()
            (w * x).sum().backward()
            assert w.grad.tolist() == [2.0]


def test_an_immediate_tape_sends_an_expanded_number_with_the_op_that_reads_it(service, sent):
    with bp.immediate(service):
        x = Variable(W)
        found = bp.maximum(x, 0.5)
    assert [call for call, _ in sent] == ["ops"]
    np.testing.assert_array_equal(found.value, np.maximum(W, 0.5))


def test_an_immediate_tape_sends_a_new_variable_with_the_playback(service, sent):
    w = Variable(np.asarray(2.0))
    with bp.immediate(service):
        w.backward()
    assert ([call for call, _ in sent], float(w.grad)) == (["ops"], 1.0)


def test_a_failed_request_loses_its_ops_and_the_next_iteration_works(service):
    w, wrong = Variable(W), np.ones((5, 5))
    with bp.lazy(service) as tape:
        for _ in range(2):
            tape.renew()
            w.zero_grad()
            with pytest.raises(bp.Refused):
                (w @ wrong).sum().backward()
            (w * w).sum().backward()
            np.testing.assert_allclose(w.grad, 2 * W)
            w.data = w.data + 0.0


def test_dead_names_of_an_earlier_generation_are_not_released(service):
    w = Variable([1.0])
    with bp.lazy(service) as tape:
        old = [w * 2, bp.tanh(w)]
        old[0].value  # noqa: B018
        tape.renew()
        new = w * 3
        new.value  # noqa: B018
        assert new.name == old[0].name
        old.clear()
        gc.collect()
        for _ in range(3):  # a dead name is released with the request after the next
            (w * 5).value  # noqa: B018
        assert (new + 0).value.tolist() == [3.0]


def test_a_long_chain_of_names_dies_without_deep_recursion():
    names = Names()
    name = names.new(())
    for _ in range(200_000):
        name = names.new((name,))
    del name
    names.sent()
    assert len(names.releasable()) == 200_001
