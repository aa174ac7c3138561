"""Histories of steps: complete while they are short, coarser with age, bounded in all."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import time
from typing import Any

import numpy as np
import pytest

from service.http.sse import EventStream, Streams
from service.sessions import live
from service.sessions.live import History, LiveMetrics, LivePoints

S, T = ("local", "s"), ("local", "t")


def step(n: int, loss: float, **more: Any) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, float]]:
    result = {"step": n, "applied": 1, "learning_rate": 0.1, **more}
    return result, {"loss": np.array(loss, "float32")}, {"compute": 2.0}


def test_a_step_is_a_point_with_its_loss_norm_rate_and_time():
    metrics = LiveMetrics()
    metrics.record(S, *step(1, 0.5, gradient_norms={"w": 3.0, "global": 5.0}))
    metrics.record(S, *step(2, math.nan, gradient_norms={"global": None}))
    columns = metrics.history(S).columns()

    assert columns["point"] == [1, 2]
    assert columns["step"] == [1, 2]
    assert columns["loss"] == [0.5, None]
    assert columns["gradient_norm"] == [5.0, None]
    assert columns["learning_rate"] == [0.1, 0.1]
    assert columns["ms"] == [2.0, 2.0]


def test_a_call_of_several_steps_is_one_point_for_each():
    metrics = LiveMetrics()
    several = {
        "step": 12,
        "applied": 3,
        "learning_rate": [0.3, 0.2, 0.1],
        "gradient_norms": {"global": [1.0, None, 3.0]},
    }
    metrics.record(S, several, {"loss": np.array([3.0, 2.0, 1.0])}, {"compute": 6.0})
    columns = metrics.history(S).columns()

    assert columns["step"] == [10, 11, 12]
    assert columns["loss"] == [3.0, 2.0, 1.0]
    assert columns["gradient_norm"] == [1.0, None, 3.0]
    assert columns["learning_rate"] == [0.3, 0.2, 0.1]
    assert columns["ms"] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("rate", "shown"),
    [({"default": 0.2, "slow": 0.1}, 0.2), ({"slow": 0.1}, 0.1), ({"slow": [0.1]}, 0.1), (None, None), ([0.3], 0.3)],
)
def test_the_rate_of_the_first_group_is_shown(rate, shown):
    metrics = LiveMetrics()
    metrics.record(S, {"step": 1, "applied": 1, "learning_rate": rate}, {}, {})

    assert metrics.history(S).columns()["learning_rate"] == [shown]


def test_accumulated_gradients_are_no_step_and_an_update_has_no_loss():
    metrics = LiveMetrics()
    metrics.record(S, {"step": 0, "gradient_norms": {}}, {"loss": np.array(1.0)}, {})
    metrics.record(S, {"step": 1, "learning_rate": 0.1}, {}, {})

    assert metrics.history(S).columns()["loss"] == [None]


@pytest.mark.parametrize("count", [9_999, 10_001, 50_000, 123_456])
def test_a_full_history_keeps_its_latest_points_and_equal_distances_between_earlier_ones(count):
    history = History()
    for i in range(1, count + 1):
        history.add(i, float(i), 1 / i, 1.0, 0.1, 1.0)
    columns = history.columns()
    earlier = columns["step"][:-5000]

    assert len(columns["step"]) <= live.MOST_POINTS
    assert columns["step"][-5000:] == list(range(count - 4_999, count + 1))
    assert earlier[0] == 1
    assert max(b - a for a, b in itertools.pairwise(columns["step"])) < 2 + count / 1000
    assert columns["loss"] == [1 / step for step in columns["step"]]
    assert history.columns(after=count - 2)["step"] == [count - 1, count]


def test_a_coarser_curve_keeps_the_ends_and_every_peak():
    history = History()
    for i in range(1, 5001):
        history.add(i, 0.0, 100.0 if i == 3333 else -7.0 if i == 1234 else 1.0, 1.0, 0.1, 1.0)
    columns = history.columns(most=100)

    assert len(columns["step"]) <= 101
    assert {1234, 3333, 5000} <= set(columns["step"])
    assert columns["loss"][columns["step"].index(3333)] == 100.0


def test_a_loss_that_is_not_finite_is_kept_as_a_peak():
    history = History()
    for i in range(1, 5001):
        history.add(i, 0.0, math.nan if i == 777 else 1.0, 1.0, 0.1, 1.0)

    assert None in history.columns(most=100)["loss"]


def test_the_least_recently_recorded_histories_are_dropped_above_the_limits(monkeypatch):
    monkeypatch.setattr(live, "MOST_OF_ALL", 100)
    monkeypatch.setattr(live, "MOST_HISTORIES", 5)
    metrics = LiveMetrics()
    for i in range(1, 31):
        for name in "abc":
            metrics.record(("local", name), *step(i, 1.0))
    metrics.record(("local", "a"), *step(31, 1.0))
    for i in range(1, 31):
        metrics.record(("local", "d"), *step(i, 1.0))

    assert len(metrics.history(("local", "b"))) == 0
    assert len(metrics.history(("local", "a"))) == 31
    for name in "efghijk":
        metrics.record(("local", name), *step(1, 1.0))
    assert sum(len(metrics.history(("local", name))) > 0 for name in "abcdefghijk") == 5


def test_a_watcher_wakes_when_a_point_is_recorded():
    async def watched() -> bool:
        metrics = LiveMetrics()
        with metrics.watching(S) as changed:
            metrics.record(T, *step(1, 1.0))
            assert not changed.is_set()
            metrics.record(S, *step(1, 1.0))
            await asyncio.wait_for(changed.wait(), 30)
        return not metrics._watched

    assert asyncio.run(watched())


def test_a_stream_has_every_step_once_in_a_few_events():
    """Steps are recorded faster than events are sent."""

    async def streamed() -> tuple[list[bytes], float]:
        metrics, sent, streams = LiveMetrics(), [], Streams(1)
        metrics.record(S, *step(1, 1.0))

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))

        task = asyncio.create_task(EventStream(streams, "local", LivePoints(metrics, S), 1)({}, None, send))  # type: ignore[arg-type]
        began = time.monotonic()
        for i in range(2, 61):
            metrics.record(S, *step(i, 1 / i))
            await asyncio.sleep(0.005)
        took = time.monotonic() - began
        await asyncio.sleep(0.25)
        streams.close()
        await asyncio.wait_for(task, 30)
        return sent, took

    sent, took = asyncio.run(streamed())
    text = b"".join(sent).decode()
    events = [json.loads(data) for data in re.findall(r"event: steps\ndata: (.*)", text)]
    assert [number for event in events for number in event["columns"]["step"]] == list(range(2, 61))
    assert 2 <= len(events) <= 10 + took / live.GATHER_S
    assert text.count("event: shutdown") == 1
    assert re.findall(r"id: (\d+)", text)[-1] == "60"
