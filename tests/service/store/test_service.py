"""Stored data over HTTP: the problems of a full disk and of a lost directory, readiness, and refusals at start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.cli.main import main
from service.engine import Reply
from service.schemas.examples import EXAMPLES, REGRESSION_ID
from service.settings import Settings
from service.store.directory import DataDirectory
from service.store.errors import DirectoryInUse
from service.store.sqlite_file import FILE, create_database
from tests.paths import ROOT
from tests.postgres import postgres
from tests.service.conftest import serve
from tests.service.http.test_worker_calls import FullQueue
from tests.service.routes.test_programs import fresh
from tests.service.wire import problem


class Accepting(FullQueue):
    """An engine without workers that accepts every program."""

    async def call(self, op: str, *args: Any, **more: Any) -> Reply:
        signature = b'{"feeds":[],"parameters":[],"states":[],"blocks":1,"ops":0,"op_types":{}}'
        return Reply({}, {"json": np.frombuffer(signature, np.uint8)}, {}, "wrk_1")


@contextmanager
def served(directory: Path, **settings: Any) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(data_dir=directory, **settings), Accepting())) as client:  # type: ignore[arg-type]
        yield client


@contextmanager
def file_sizes(limit: int) -> Iterator[None]:
    """A limit of file sizes for this process, which fails writes as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def checks(client: TestClient) -> set[str]:
    """The failed checks of stored data."""
    answer = client.get("/healthz/ready").json()["checks"]
    return {name for name, check in answer.items() if not check["ok"]} - {"workers"}


def test_a_full_disk_is_a_507_and_keeps_the_registered_programs(tmp_path):
    large = fresh("full")
    large["blocks"][0]["vars"] += [{"name": f"v{i}", "dtype": "float32", "shape": [2]} for i in range(600)]
    with served(tmp_path) as client:
        with file_sizes(30_000):
            refused = problem(client.post("/v1/programs", json={"program": large}), 507, "storage-full")
            assert client.get(f"/v1/programs/{REGRESSION_ID}").status_code == 200
        assert str(tmp_path) not in refused["detail"]
        assert len(client.get("/v1/programs").json()["programs"]) == len(EXAMPLES)

        assert client.post("/v1/programs", json={"program": large}).status_code == 201


def test_a_service_starts_on_a_full_disk_and_serves_the_programs_it_has(tmp_path):
    with served(tmp_path):
        pass
    with file_sizes(1000), served(tmp_path) as client:
        assert client.get(f"/v1/programs/{REGRESSION_ID}").status_code == 200
        assert checks(client) == {"data_directory"}


def test_readiness_names_the_lost_directory_until_it_is_back(tmp_path):
    directory = tmp_path / "data"
    with served(directory) as client:
        assert checks(client) == set()
        id = client.post("/v1/programs", json={"program": fresh("back")}).json()["id"]
        directory.rename(tmp_path / "away")

        assert client.get("/healthz/ready").status_code == 503
        assert checks(client) == {"data_directory", "objects"}
        lost = problem(client.post("/v1/programs", json={"program": fresh("lost")}), 503, "storage-unavailable")
        assert lost["retryable"]
        problem(client.delete(f"/v1/programs/{REGRESSION_ID}"), 503, "storage-unavailable")
        assert not directory.exists()  # nothing creates it again

        (tmp_path / "away").rename(directory)
        assert checks(client) == set()
        assert client.get(f"/v1/programs/{id}").status_code == 200
        assert client.post("/v1/programs", json={"program": fresh("lost")}).status_code == 201


def test_a_running_service_is_backed_up_by_a_command(tmp_path, capsys):
    with served(tmp_path / "data") as client:
        id = client.post("/v1/programs", json={"program": fresh("copied")}).json()["id"]
        assert main(["backup", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "data")]) == 0
        client.delete(f"/v1/programs/{id}")
    assert main(["restore", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "restored")]) == 0
    assert "restored: " in capsys.readouterr().out

    with served(tmp_path / "restored") as client:
        assert client.get(f"/v1/programs/{id}").status_code == 200


def test_a_service_refuses_changes_while_postgresql_is_down_and_goes_on_without_a_restart(tmp_path):
    with postgres() as server, served(tmp_path / "data", database_url=server.new_database()) as client:
        assert client.post("/v1/programs", json={"program": fresh("kept")}).status_code == 201
        assert checks(client) == set()
        server.kill()

        answer = client.post("/v1/programs", json={"program": fresh("lost")})
        problem(answer, 503, "storage-unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert checks(client) == {"store"}
        assert client.get("/healthz/live").status_code == 200

        server.start()
        assert client.post("/v1/programs", json={"program": fresh("lost")}).status_code == 201
        assert checks(client) == set()
        names = {each["id"] for each in client.get("/v1/programs").json()["programs"]}
        assert len(names) == len(EXAMPLES) + 2


def test_a_lost_database_url_is_one_sentence_at_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("service.logs.configure", lambda *_, **__: None)
    monkeypatch.setenv("BACKPASS_DATABASE_URL", "postgresql://user:secret@127.0.0.1:1/x")

    assert main(["serve", "--data-dir", str(tmp_path), "--port", "0"]) == 1

    told = capsys.readouterr().err
    assert told.startswith("backpass: the database cannot be used: ")
    assert told.count("\n") == 1
    assert "secret" not in told


def test_the_directory_above_a_cache_of_machine_code_is_created_at_start_only(tmp_path):
    with served(tmp_path / "data", cache_dir=tmp_path / "a" / "b" / "code"):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_service_refuses_to_start_with_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("service.logs.configure", lambda *_, **__: None)
    start = ["serve", "--data-dir", str(tmp_path), "--port", "0"]
    owned = DataDirectory(tmp_path)
    owned.claim()
    create_database(tmp_path / FILE, lambda engine: None)
    second = main(start), capsys.readouterr().err
    owned.release()
    (tmp_path / FILE).write_bytes(b"")
    damaged = main(start), capsys.readouterr().err

    told = f"process {os.getpid()} already uses the data directory {tmp_path}; set another BACKPASS_DATA_DIR"
    assert second == (1, f"backpass: {told}\n")
    assert damaged[0] == 1
    assert damaged[1].startswith(f"backpass: the store {tmp_path / FILE} is empty")
    assert damaged[1].count("\n") == 1
    assert (tmp_path / FILE).read_bytes() == b""


def test_the_owner_of_a_directory_is_replaced_when_its_process_is_killed(tmp_path):
    code = "import sys; from pathlib import Path; from service.store.directory import DataDirectory as D\n"
    code += "D(Path(sys.argv[1])).claim(); print('owned', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdin=pipe, stdout=pipe) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"owned\n"
        with pytest.raises(DirectoryInUse, match=f"process {owner.pid} "):
            DataDirectory(tmp_path).claim()
        owner.kill()
        owner.wait()

        next_owner = DataDirectory(tmp_path)
        next_owner.claim()
        next_owner.release()


@pytest.mark.slow
def test_a_full_disk_of_logs_and_of_machine_code_breaks_no_call(tmp_path):
    """Standard error goes to a device without space, and no file may grow: not even one of machine code."""
    from service.schemas.examples import REGRESSION_FEEDS

    (tmp_path / "code").write_text("in the way of the directory of machine code")
    with (
        open("/dev/full", "w") as full,
        serve(tmp_path, workers=1, log_level="debug", stderr=full) as running,
    ):
        asked = {"program_id": REGRESSION_ID, "loss": "loss"}
        opened = running.client.post("/v1/sessions", json=asked)
        assert opened.status_code == 201, opened.text
        for step in (1, 2):
            done = running.client.post(f"/v1/sessions/{opened.json()['id']}/steps", json={"feeds": REGRESSION_FEEDS})
            assert done.json()["step"] == step
