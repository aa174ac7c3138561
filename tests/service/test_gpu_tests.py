"""Records of tests of GPUs: which of them stop the next worker, and for how long."""

from __future__ import annotations

import pytest

from service import gpu_tests


@pytest.fixture
def clock(monkeypatch):
    now = [1e9]
    monkeypatch.setattr(gpu_tests.time, "time", lambda: now[0])
    return now


def test_a_test_that_ended_leaves_no_record(tmp_path, clock):
    gpu_tests.begin(tmp_path, "machine code")
    gpu_tests.done(tmp_path, "machine code")

    assert gpu_tests.last(tmp_path, "machine code") is None


def test_a_test_whose_worker_was_ended_is_made_once_more(tmp_path, clock):
    gpu_tests.begin(tmp_path, "machine code")
    assert not gpu_tests.last(tmp_path, "machine code").has_failed
    assert not list(gpu_tests.unfinished(tmp_path))

    gpu_tests.begin(tmp_path, "machine code")

    assert gpu_tests.last(tmp_path, "machine code").has_failed
    ((_, record),) = gpu_tests.unfinished(tmp_path)
    assert record.why == "the worker was ended before the test of machine code ended"


def test_a_failure_counts_for_its_gpu_its_part_its_versions_and_an_hour(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1/2")
    gpu_tests.begin(tmp_path, "machine code")
    gpu_tests.failed(tmp_path, "machine code", "no end")
    assert not gpu_tests.last(tmp_path, "machine code").has_failed
    gpu_tests.begin(tmp_path, "machine code")
    gpu_tests.failed(tmp_path, "machine code", "no end again")

    assert gpu_tests.last(tmp_path, "machine code").has_failed
    assert gpu_tests.last(tmp_path, "machine code").why == "no end again"
    assert gpu_tests.last(tmp_path, "the first op") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3")
    assert gpu_tests.last(tmp_path, "machine code") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1/2")
    with monkeypatch.context() as other:
        other.setattr(gpu_tests, "_versions", lambda: "another driver")
        assert gpu_tests.last(tmp_path, "machine code") is None
    clock[0] += gpu_tests.AGAIN_S
    assert gpu_tests.last(tmp_path, "machine code") is None


def test_a_damaged_record_and_a_directory_without_rights_stop_no_worker(tmp_path, clock, caplog):
    for _ in range(2):
        gpu_tests.begin(tmp_path, "machine code")
    ((path, _),) = gpu_tests.unfinished(tmp_path)
    path.write_text("{")
    gpu_tests.begin(tmp_path / "missing" / "code", "machine code")

    assert gpu_tests.last(tmp_path, "machine code") is None
    assert "cannot record the test" in caplog.text
