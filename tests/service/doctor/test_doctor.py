"""`backpass doctor`: a sound service has no finding, and each thing that is broken has one with a remedy."""

from __future__ import annotations

import asyncio
import errno
import http.server
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.cli.main import main
from service.doctor import Finding, examine, gpu, machine, storage
from service.objects import Objects
from service.store.directory import DataDirectory
from service.store.file_directory import take_directory
from service.store.sqlite_file import create_database
from service.store.store import Store
from tests.certificates import certificate
from tests.ports import free_port
from tests.service.conftest import Served, serve
from tests.service.prepared import prepared

Patch = pytest.MonkeyPatch
MIB = 2**20


def findings(tmp_path: Path, check: str, **settings: Any) -> list[Finding]:
    """The findings of one check that are not ok."""
    given = {"data_dir": tmp_path, "port": 0, "device": "cpu", "workers": 1} | settings
    found = [each for each in examine(**given) if each.check == check]
    assert found, f"no finding about {check}"
    assert all(bool(each.do) == (each.state != "ok") for each in found)
    return [each for each in found if each.state != "ok"]


# What is broken, the check that tells, its state, and a part of what it tells


def unknown_variable(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setenv("BACKPASS_FOO", "3")
    return {}


def misspelled_variable(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setenv("BACKPASS_WORKER", "3")
    return {}


def invalid_setting(path: Path, patch: Patch) -> dict[str, Any]:
    return {"device": "tpu"}


def deadlines_crossed(path: Path, patch: Patch) -> dict[str, Any]:
    return {"step_deadline": 100, "max_step_deadline": 50}


def delay_too_long(path: Path, patch: Patch) -> dict[str, Any]:
    return {"drain_delay": 20, "graceful_shutdown": 30}


def same_ports(path: Path, patch: Patch) -> dict[str, Any]:
    port = free_port()
    return {"port": port, "metrics_port": port}


def too_many_workers(path: Path, patch: Patch) -> dict[str, Any]:
    return {"workers": 256, "worker_memory": 10**12}


def no_vectors(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(machine, "cpu_features", lambda: {"sse2"})
    return {}


def refused_tiles(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(machine, "cpu_features", lambda: {"avx2", "amx-bf16"})
    patch.setattr(machine, "may_use_tiles", lambda: False)
    return {}


def crowded(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(machine, "available_cores", lambda: 1)
    return {"workers": 3, "worker_memory": 256 * MIB}


def too_many_threads(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(machine, "available_cores", lambda: 2)
    return {"workers": 2, "threads": 4}


def code_not_writable(path: Path, patch: Patch) -> dict[str, Any]:
    return {"cache_dir": "/dev/null/code"}


def code_in_a_file(path: Path, patch: Patch) -> dict[str, Any]:
    return {"cache_dir": "/dev/null"}


def objects_cannot_be_made(path: Path, patch: Patch) -> dict[str, Any]:
    return {"objects_url": "/proc/objects"}


def keys_with_a_wrong_line(path: Path, patch: Patch) -> dict[str, Any]:
    (path / "api_keys").write_text("# none\nacme:hidden\n")
    return {"api_keys_file": path / "api_keys"}


def file_without_keys(path: Path, patch: Patch) -> dict[str, Any]:
    (path / "api_keys").touch(0o600)
    return {"api_keys_file": path / "api_keys", "host": "0.0.0.0"}


def directory_is_a_dead_link(path: Path, patch: Patch) -> dict[str, Any]:
    (path / "link").symlink_to(path / "nothing")
    return {"data_dir": path / "link"}


def objects_are_a_dead_link(path: Path, patch: Patch) -> dict[str, Any]:
    (path / "link").symlink_to(path / "nothing")
    return {"objects_url": str(path / "link")}


def open_to_all(path: Path, patch: Patch) -> dict[str, Any]:
    return {"host": "0.0.0.0"}


def other_key(path: Path, patch: Patch) -> dict[str, Any]:
    for name in ("one", "two"):
        certificate(path / name, name)
    return {"tls_cert": path / "one" / "cert", "tls_key": path / "two" / "key"}


def anonymous(path: Path, patch: Patch) -> dict[str, Any]:
    return {"host": "0.0.0.0", "allow_anonymous": True}


def certificate_for(days: int) -> Callable[[Path, Patch], dict[str, Any]]:
    def apply(path: Path, patch: Patch) -> dict[str, Any]:
        certificate(path / "one", "one", days)
        return {"tls_cert": path / "one" / "cert", "tls_key": path / "one" / "key"}

    return apply


def no_gpu(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(gpu, "visible_gpus", list)
    return {"device": "cuda"}


def gpu_without_cupy(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(gpu, "visible_gpus", lambda: ["0"])
    patch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    return {"device": "auto"}


def gpu_without_driver(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(gpu, "visible_gpus", lambda: ["0"])
    patch.setattr(gpu.ctypes, "CDLL", refused)
    return {"device": "auto"}


def refused(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def little_memory(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr("service.engine.memory.available_memory", lambda: 300 * MIB)
    return {}


def few_files(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(resource, "getrlimit", lambda which: (256, 256))
    return {}


def some_files(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    return {}


def few_processes(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(machine, "available_processes", lambda: 64)
    return {}


def clock_stands(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(machine.time, "monotonic", lambda: 1.0)
    return {}


def clock_of_1970(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(machine.time, "time", lambda: 1000.0)
    return {}


def clock_jumps(path: Path, patch: Patch) -> dict[str, Any]:
    real, began = time.time, time.monotonic()
    patch.setattr(machine.time, "time", lambda: real() + 3600 * (time.monotonic() - began))
    return {}


def no_memfd(path: Path, patch: Patch) -> dict[str, Any]:
    def refuse(*args: Any) -> int:
        raise PermissionError(1, "Operation not permitted")

    patch.setattr(os, "memfd_create", refuse)
    return {}


def no_locks(path: Path, patch: Patch) -> dict[str, Any]:
    def refuse(*args: Any) -> None:
        raise OSError(37, "No locks available")

    patch.setattr(machine.fcntl, "flock", refuse)
    return {}


def directory_is_a_file(path: Path, patch: Patch) -> dict[str, Any]:
    (path / "file").write_text("")
    return {"data_dir": path / "file"}


def directory_read_only(path: Path, patch: Patch) -> dict[str, Any]:
    real = storage.tempfile.TemporaryFile

    def refuse(*args: Any, **more: Any) -> Any:
        if more.get("dir") == path:
            raise OSError(30, "Read-only file system")
        return real(*args, **more)

    patch.setattr(storage.tempfile, "TemporaryFile", refuse)
    return {}


def directory_open_to_all(path: Path, patch: Patch) -> dict[str, Any]:
    path.chmod(0o777)
    return {}


def directory_read_by_all(path: Path, patch: Patch) -> dict[str, Any]:
    path.chmod(0o755)
    return {}


def directory_on_nfs(path: Path, patch: Patch) -> dict[str, Any]:
    patch.setattr(storage, "file_system", lambda path: "nfs4")
    return {}


def disk_with(free: int) -> Callable[[Path, Patch], dict[str, Any]]:
    def apply(path: Path, patch: Patch) -> dict[str, Any]:
        about = SimpleNamespace(f_bavail=free, f_frsize=MIB, f_files=10**6, f_favail=10**6)
        patch.setattr(storage.os, "statvfs", lambda path: about)
        return {"disk_floor": 100 * MIB}

    return apply


def syncs_taking(seconds: float) -> Callable[[Path, Patch], dict[str, Any]]:
    def apply(path: Path, patch: Patch) -> dict[str, Any]:
        now = [0.0]
        patch.setattr(storage.time, "perf_counter", lambda: now[0])
        patch.setattr(storage.os, "fsync", lambda descriptor: now.__setitem__(0, now[0] + seconds))
        return {}

    return apply


def database_of_text(path: Path, patch: Patch) -> dict[str, Any]:
    (path / storage.DATABASE).write_bytes(b"no database at all" * 100)
    return {}


def database_of_the_future(path: Path, patch: Patch) -> dict[str, Any]:
    create_database(path / storage.DATABASE, lambda engine: None)
    with sqlite3.connect(path / storage.DATABASE) as db:
        db.execute("CREATE TABLE alembic_version (version_num TEXT)")
        db.execute("INSERT INTO alembic_version VALUES ('v9999')")
    return {}


def database_of_others(path: Path, patch: Patch) -> dict[str, Any]:
    with sqlite3.connect(path / storage.DATABASE) as db:
        db.execute("CREATE TABLE t (x)")
    return {}


def database_empty(path: Path, patch: Patch) -> dict[str, Any]:
    (path / storage.DATABASE).touch()
    return {}


def log_without_database(path: Path, patch: Patch) -> dict[str, Any]:
    (path / f"{storage.DATABASE}-wal").write_bytes(b"x")
    return {}


def database_locked(path: Path, patch: Patch) -> dict[str, Any]:
    create_database(path / storage.DATABASE, lambda engine: None)
    holder = sqlite3.connect(path / storage.DATABASE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    real = sqlite3.connect
    patch.setattr(storage.sqlite3, "connect", lambda *args, **more: real(*args, **{**more, "timeout": 0.01}))
    patch.setattr(storage, "_holder", holder, raising=False)  # keeps it open until the test ends
    return {}


def no_server(path: Path, patch: Patch) -> dict[str, Any]:
    return {"database_url": f"postgresql+psycopg://user:hidden@127.0.0.1:{free_port()}/none"}


def objects_not_writable(path: Path, patch: Patch) -> dict[str, Any]:
    def refuse(**more: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    (path / "objects").mkdir()
    patch.setattr(storage.tempfile, "TemporaryFile", refuse)
    return {}


def files_of_a_database(path: Path, patch: Patch) -> dict[str, Any]:
    """A store whose directory of files is away."""
    store = Store(path)
    store.open_now()
    asyncio.run(take_directory(store, Objects(str(path / "objects"))))
    store.close_now()
    (path / "objects").rename(path / "away")
    return {}


def files_not_mounted(path: Path, patch: Patch) -> dict[str, Any]:
    files_of_a_database(path, patch)
    (path / "objects").mkdir()
    return {}


def files_away_from_a_service(path: Path, patch: Patch) -> dict[str, Any]:
    files_not_mounted(path, patch)
    holder = DataDirectory(path)
    holder.claim()
    patch.setattr(storage, "_holder", holder, raising=False)  # keeps the lock until the test ends
    return {}


def files_of_another_store(path: Path, patch: Patch) -> dict[str, Any]:
    files_of_a_database(path, patch)
    prepared(str(path / "objects"))
    return {}


def open_key(path: Path, patch: Patch) -> dict[str, Any]:
    key = path / "tls.key"
    key.write_text("secret")
    key.chmod(0o644)
    return {"tls_cert": key, "tls_key": key}


def missing_key(path: Path, patch: Patch) -> dict[str, Any]:
    return {"tls_cert": path, "tls_key": path / "none"}


def port_taken(path: Path, patch: Patch) -> dict[str, Any]:
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.listen()
    patch.setattr(storage, "_holder", holder, raising=False)
    return {"port": holder.getsockname()[1]}


def foreign_address(path: Path, patch: Patch) -> dict[str, Any]:
    return {"host": "192.0.2.1", "port": 8080}


BROKEN: list[tuple[Callable[[Path, Patch], dict[str, Any]], str, str, str]] = [
    (unknown_variable, "settings", "warning", "BACKPASS_FOO is not a setting"),
    (misspelled_variable, "settings", "wrong", "BACKPASS_WORKER is not a setting"),
    (invalid_setting, "settings", "wrong", "BACKPASS_DEVICE"),
    (deadlines_crossed, "settings", "wrong", "BACKPASS_STEP_DEADLINE: 100 is above BACKPASS_MAX_STEP_DEADLINE"),
    (delay_too_long, "settings", "wrong", "BACKPASS_DRAIN_DELAY is 20"),
    (same_ports, "settings", "wrong", "the port of the service"),
    (too_many_workers, "settings", "wrong", "BACKPASS_WORKER_MEMORY"),
    (no_vectors, "processor", "warning", "without AVX2"),
    (refused_tiles, "processor", "warning", "refuses the registers of AMX"),
    (crowded, "processor", "warning", "3 workers share 1 cores"),
    (too_many_threads, "processor", "warning", "2 workers with 4 threads each share 2 cores"),
    (no_gpu, "gpu", "wrong", "no GPU is visible"),
    (gpu_without_cupy, "gpu", "warning", "cupy is not installed"),
    (gpu_without_driver, "gpu", "wrong", "the driver cannot be loaded: libcuda.so.1"),
    (little_memory, "memory", "wrong", "MiB"),
    (few_files, "limits", "wrong", "only 256 files"),
    (some_files, "limits", "warning", "1024 files"),
    (few_processes, "limits", "warning", "64 processes"),
    (clock_stands, "clock", "wrong", "stands still"),
    (clock_of_1970, "clock", "wrong", "1970-01-01"),
    (clock_jumps, "clock", "warning", "moved by"),
    (no_memfd, "kernel", "wrong", "memfd_create"),
    (no_locks, "kernel", "wrong", "flock"),
    (directory_is_a_file, "data directory", "wrong", "not a directory"),
    (directory_is_a_dead_link, "data directory", "wrong", "is a link that leads to nothing"),
    (directory_read_only, "data directory", "wrong", "Read-only file system"),
    (directory_open_to_all, "data directory", "wrong", "every user may write"),
    (directory_read_by_all, "data directory", "warning", "every user may read"),
    (directory_on_nfs, "data directory", "warning", "nfs4"),
    (disk_with(99), "disk", "wrong", "99 MiB are free, the floor is 100 MiB"),
    (disk_with(399), "disk", "warning", "399 MiB"),
    (syncs_taking(0.06), "fsync", "warning", "60.00 ms"),
    (syncs_taking(2.0), "fsync", "wrong", "2000.00 ms"),
    (database_of_text, "database", "wrong", "is not a SQLite database"),
    (database_of_others, "database", "wrong", "belongs to another application"),
    (database_empty, "database", "wrong", "is empty: the store that was here is lost"),
    (log_without_database, "database", "wrong", "is missing, but backpass.sqlite-wal is there"),
    (database_of_the_future, "database", "wrong", "v9999"),
    (database_locked, "database", "wrong", "locked"),
    (no_server, "database", "wrong", "cannot be reached"),
    (objects_not_writable, "objects", "wrong", "cannot be written"),
    (files_of_a_database, "objects", "wrong", "is not the directory of files"),
    (files_not_mounted, "objects", "wrong", "has no file .backpass"),
    (files_away_from_a_service, "objects", "wrong", "has no file .backpass"),
    (files_of_another_store, "objects", "wrong", "is the directory of another store"),
    (objects_are_a_dead_link, "objects", "wrong", "is a link that leads to nothing"),
    (open_key, "secrets", "warning", "others may read"),
    (missing_key, "secrets", "wrong", "No such file"),
    (objects_cannot_be_made, "objects", "wrong", "cannot be created in /proc"),
    (code_not_writable, "machine code", "warning", "/dev/null/code cannot be written"),
    (code_in_a_file, "machine code", "warning", "/dev/null cannot be written"),
    (keys_with_a_wrong_line, "keys", "wrong", "line 2: expected tenant:scopes:key"),
    (file_without_keys, "keys", "warning", "no key exists, so no request is accepted"),
    (anonymous, "keys", "warning", "lets everyone in who reaches 0.0.0.0"),
    (open_to_all, "keys", "wrong", "no key exists, so the service does not listen on 0.0.0.0"),
    (port_taken, "ports", "wrong", "Address already in use"),
    (foreign_address, "ports", "wrong", "cannot listen"),
]


CERTIFICATES = [
    (other_key, "tls", "wrong", "key values mismatch"),
    (certificate_for(-1), "tls", "wrong", "certificate has expired"),
    (certificate_for(3), "tls", "warning", "is valid until"),
]
if shutil.which("openssl"):
    BROKEN += CERTIFICATES


@pytest.mark.parametrize(("broken", "check", "state", "part"), BROKEN, ids=[f"{b[0].__name__}-{b[2]}" for b in BROKEN])
def test_each_broken_thing_has_one_finding_with_a_remedy(
    tmp_path: Path, monkeypatch: Patch, broken: Any, check: str, state: str, part: str
) -> None:
    tmp_path.chmod(0o700)
    settings = broken(tmp_path, monkeypatch)

    (found,) = findings(tmp_path, check, **settings)

    assert found.state == state
    assert part in found.found
    assert "hidden" not in found.found + found.do


def test_a_folder_of_objects_that_is_there_already_is_right(tmp_path: Path) -> None:
    (tmp_path / "objects" / "datasets").mkdir(parents=True)

    assert findings(tmp_path, "objects") == []
    assert not (tmp_path / "objects" / "doctor").exists()


def test_the_remedy_of_a_full_disk_is_space(tmp_path: Path, monkeypatch: Patch) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "objects").mkdir()
    monkeypatch.setattr(storage.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(storage.Objects, "write", refuse)

    for check in ("data directory", "objects"):
        assert [each.do for each in findings(tmp_path, check)] == ["Free space, or raise the quota of the disk."]


@pytest.mark.parametrize(("name", "count"), [("backpass.sqlite-wal", 1), ("objects", 1), ("lost+found", 0)])
def test_files_of_another_user_are_found_but_not_those_of_the_disk(
    tmp_path: Path, monkeypatch: Patch, name: str, count: int
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / name).touch()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != name and real(path, mode))

    found = [each.found for each in findings(tmp_path, "data directory")]

    assert len(found) == count
    assert all(f"may not use {tmp_path / name}" in each for each in found)


def test_only_a_setting_with_a_similar_name_is_suggested(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("BACKPASS_FOO", "1")
    monkeypatch.setenv("BACKPASS_WORKER", "1")

    assert [each.do for each in findings(tmp_path, "settings")] == [
        "Remove the variable: docs/settings.md lists all settings.",
        "Set BACKPASS_WORKERS instead.",
    ]


def test_a_check_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: Patch) -> None:
    def fail() -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(machine, "cpu_features", fail)

    found = list(examine(data_dir=tmp_path, port=0, device="cpu", workers=1))

    assert "RuntimeError: no such thing" in next(each for each in found if each.check == "processor").found
    assert {"disk", "database", "ports"} <= {each.check for each in found}


def test_a_key_closes_a_service_that_takes_anonymous_requests_without_one(tmp_path: Path, capsys: Any) -> None:
    assert main(["keys", "create", "--data-dir", str(tmp_path)]) == 0

    assert findings(tmp_path, "keys", host="0.0.0.0", allow_anonymous=True) == []


def test_keys_in_the_store_of_a_running_service_are_counted(tmp_path: Path, capsys: Any) -> None:
    def found() -> list[str]:
        given = {"data_dir": tmp_path, "port": 0, "device": "cpu", "workers": 1}
        return [each.found for each in examine(**given) if each.check == "keys"]

    with serve(tmp_path, workers=1) as served:
        assert found() == ["no key is needed: only processes of this machine reach 127.0.0.1"]
        assert main(["keys", "create", "--data-dir", str(tmp_path)]) == 0

        assert found() == ["every request needs a key; keys: 1 in the store"]
        served.process.send_signal(signal.SIGSTOP)
        try:
            (text,) = found()
            assert text.startswith("no key is needed unless one is in the store, which cannot be read now: only")
        finally:
            served.process.send_signal(signal.SIGCONT)


def test_a_running_service_is_found_sound_and_stays_untouched(tmp_path: Path, capsys: Any) -> None:
    with serve(tmp_path, workers=1, metrics_port=free_port()) as served:
        tmp_path.chmod(0o700)
        before = files(tmp_path)
        address = ["--data-dir", str(tmp_path), "--port", str(port_of(served)), "--workers", "1", "--device", "cpu"]

        status = main(["doctor", "--json", *address])

        assert files(tmp_path) == before
        assert served.client.get("/healthz/ready").status_code == 200
    report = json.loads(capsys.readouterr().out)
    wrong = [each for each in report["findings"] if each["state"] == "wrong"]
    assert (status, wrong) == (0, [])
    found = {each["check"]: each["found"] for each in report["findings"]}
    assert found["ports"].startswith(f"BACKPASS_PORT: a service answers on 127.0.0.1:{port_of(served)}")
    assert f"the owner is process {served.process.pid}" in found["data directory"]
    assert "is whole; version" in found["database"] or "is held by process" in found["database"]


class Alive(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "alive"}')

    def log_message(self, *_: object) -> None:
        pass


class OnIPv6(http.server.ThreadingHTTPServer):
    """A server on all addresses of IPv6 and on none of IPv4, as asyncio opens it."""

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_a_service_on_all_addresses_of_ipv6_is_found(tmp_path: Path) -> None:
    with OnIPv6(("::", 0), Alive) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            found = findings(tmp_path, "ports", host="::", port=server.server_address[1], require_keys=True)
        finally:
            server.shutdown()
            thread.join()

    assert found == []


def port_of(served: Served) -> int:
    return int(served.url.rpartition(":")[2])


def files(path: Path) -> set[Path]:
    return {each for each in path.rglob("*") if not each.name.endswith(("-wal", "-shm"))}


def test_the_report_for_people_has_a_line_for_each_finding_and_the_remedy_below(tmp_path: Path, capsys: Any) -> None:
    tmp_path.chmod(0o755)

    status = main(["doctor", "--data-dir", str(tmp_path), "--port", "0", "--device", "tpu"])

    out = capsys.readouterr().out.splitlines()
    assert status == 1
    assert out[0].startswith("wrong    settings: BACKPASS_DEVICE")
    assert out[1].strip().startswith("-> ")
    assert out[-1] == "0 ok, 0 warning, 1 wrong"
