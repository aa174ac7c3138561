"""Calls of a pool: arguments and tensors arrive unchanged in both directions, and errors arrive as errors."""

from __future__ import annotations

import asyncio

import ml_dtypes
import numpy as np
import pytest

from service.engine import EmbeddedPool, NoCapacity, QueueFull, RemoteError, WorkerLost

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture(scope="module")
def pool(shared_pool: EmbeddedPool) -> EmbeddedPool:
    return shared_pool


async def test_arguments_and_tensors_of_every_dtype_come_back(pool: EmbeddedPool):
    dtypes = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", ml_dtypes.bfloat16]
    tensors = {str(np.dtype(dtype)): np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes}
    tensors |= {"scalar": np.array(2.5), "empty": np.zeros((0, 3)), "strided": np.arange(10)[::3]}

    reply = await pool.call("echo", {"a": [1, {"b": None}]}, tensors, deadline=60)

    assert reply.result["args"] == {"a": [1, {"b": None}]}
    assert reply.tensors.keys() == tensors.keys()
    for name, sent in tensors.items():
        assert reply.tensors[name].dtype == sent.dtype
        np.testing.assert_array_equal(reply.tensors[name], sent)


async def test_a_reply_names_its_worker_and_times_every_phase(pool: EmbeddedPool):
    reply = await pool.call("echo", {}, deadline=60)

    assert reply.worker in {worker.id for worker in pool.workers()}
    assert reply.worker == reply.result["worker"]
    assert reply.timing_ms.keys() == {"queue", "transfer_in", "compute", "transfer_out", "total"}


async def test_shared_memory_grows_and_shrinks_with_the_tensors(pool: EmbeddedPool):
    worker = pool.workers()[0].id
    for megabytes in (1, 50, 3, 130, 1):
        x = np.random.default_rng(0).random((megabytes, 2**17))

        reply = await pool.call("double", {}, {"x": x}, worker=worker, deadline=60)

        np.testing.assert_array_equal(reply.tensors["x"], 2 * x)


async def test_tensors_kept_by_a_handler_survive_later_calls(pool: EmbeddedPool):
    worker = pool.workers()[0].id
    await pool.call("keep", {"id": "ses_1"}, {"w": np.full(1000, 7.0)}, worker=worker, deadline=60)
    first = await pool.call("recall", {"id": "ses_1"}, worker=worker, deadline=60)
    await pool.call("double", {}, {"w": np.full(1000, -1.0)}, worker=worker, deadline=60)

    second = await pool.call("recall", {"id": "ses_1"}, worker=worker, deadline=60)

    assert set(second.tensors["w"]) == set(first.tensors["w"]) == {7.0}
    assert pool.workers()[0].sessions == 1


async def test_a_program_error_arrives_with_all_its_problems(pool: EmbeddedPool):
    with pytest.raises(RemoteError) as caught:
        await pool.call("wrong_program", {}, deadline=60)

    assert (caught.value.kind, caught.value.code) == ("program", "use_before_write")
    [problem] = caught.value.problem["problems"]
    assert problem["pointer"] == "/blocks/1/ops/3/inputs/x/0"
    assert problem["location"]["op"] == 3


async def test_an_execution_error_arrives_with_its_location(pool: EmbeddedPool):
    with pytest.raises(RemoteError) as caught:
        await pool.call("fail_here", {}, deadline=60)

    assert (caught.value.kind, caught.value.code) == ("execution", "too_many_trips")
    assert caught.value.problem["location"]["type"] == "while"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", ["bug", "unsendable_result", "unsendable_error", "no such op"])
async def test_a_handler_bug_is_an_internal_error_without_details_and_keeps_the_worker(open_pool, op):
    async with open_pool(workers=1) as pool:
        before = pool.workers()[0].pid

        with pytest.raises(RemoteError) as caught:
            await pool.call(op, {}, {"x": np.zeros(2**20)}, deadline=60)

        assert (caught.value.kind, caught.value.code) == ("internal", "internal")
        assert "secret" not in str(caught.value.problem)
        big = np.ones(3 * 2**20, np.uint8)
        np.testing.assert_array_equal((await pool.call("echo", {}, {"x": big}, deadline=60)).tensors["x"], big)
        assert pool.workers()[0].pid == before


async def test_out_of_memory_fails_one_call_and_leaves_the_worker_alive(open_pool):
    # The tensor is as large as the limit, and no larger, because writing it takes long on a busy machine.
    limit = 2**28
    calls = [
        ("out_of_memory", {}, ("memory", "out_of_memory")),  # the system refuses what the handler did not ask for
        ("echo", {"x": np.zeros(limit, np.uint8)}, ("execution", "too_large")),
    ]
    async with open_pool(workers=1, worker_memory=limit) as pool:
        before = pool.workers()[0].pid

        for op, tensors, expected in calls:
            with pytest.raises(RemoteError) as caught:
                await pool.call(op, {"bytes": 10 * limit}, tensors, deadline=120)
            assert (caught.value.kind, caught.value.code) == expected

        assert (await pool.call("echo", {}, {"x": np.ones(5)}, deadline=60)).result["pid"] == before


async def test_arguments_other_than_plain_data_raise_type_error_in_the_caller(pool: EmbeddedPool):
    with pytest.raises(TypeError):
        await pool.call("echo", {"x": object()}, {"x": np.zeros(2**21)}, deadline=60)

    assert (await pool.call("double", {}, {"x": np.ones(2**21)}, deadline=60)).tensors["x"][-1] == 2


async def test_a_call_for_an_unknown_worker_raises_worker_lost(pool: EmbeddedPool):
    with pytest.raises(WorkerLost):
        await pool.call("echo", {}, worker="wrk_of_last_week", deadline=60)


async def test_workers_run_calls_at_the_same_time(pool: EmbeddedPool):
    async with asyncio.timeout(60):
        replies = await asyncio.gather(*(pool.call("sleep", {"seconds": 0.3}, deadline=60) for _ in range(2)))

    assert len({reply.worker for reply in replies}) == 2


async def test_calls_beyond_the_queue_limit_are_refused_and_the_others_answered(open_pool):
    async with open_pool(workers=2, queue_per_worker=4) as pool:
        calls = [pool.call("sleep", {"seconds": 0.05}, deadline=60) for _ in range(40)]

        answers = await asyncio.gather(*calls, return_exceptions=True)

        refused = [answer for answer in answers if isinstance(answer, QueueFull)]
        assert (len(refused), len(answers) - len(refused)) == (30, 10)
        assert all(error.retryable and error.retry_after >= 1 for error in refused)
        assert pool.waiting == 0


async def test_the_queue_of_one_worker_is_bounded(open_pool):
    async with open_pool(workers=2, queue_per_worker=2) as pool:
        worker = pool.workers()[1].id
        calls = [pool.call("sleep", {"seconds": 0.05}, worker=worker, deadline=60) for _ in range(10)]

        answers = await asyncio.gather(*calls, return_exceptions=True)

        assert sum(isinstance(answer, QueueFull) for answer in answers) == 7
        assert {answer.worker for answer in answers if not isinstance(answer, QueueFull)} == {worker}


async def test_each_worker_gets_its_share_of_the_cores(open_pool):
    async with open_pool(workers=1, threads=3) as pool:
        libraries = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]
        names = [*libraries, "BACKPASS_THREADS", "CUDA_VISIBLE_DEVICES"]

        reply = await pool.call("environment", {"names": names}, deadline=60)

        assert list(reply.result.values()) == ["3", "3", "3", "3", ""]


async def test_a_stopped_pool_refuses_calls(open_pool):
    async with open_pool(workers=1) as pool:
        pass

    with pytest.raises(NoCapacity):
        await pool.call("echo", {}, deadline=1)
    assert pool.workers()[0].state == "stopped"
