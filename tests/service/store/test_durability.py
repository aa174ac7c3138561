"""Acknowledged writes survive kills, torn logs, and a disk that fails or is full."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select

from service.store.errors import StorageFull, StorageUnavailable
from service.store.sqlite_file import FILE
from service.store.store import Store
from service.store.tables import tenants
from tests.paths import ROOT

WRITER = """
import alembic.command, asyncio, os, sys
from pathlib import Path
from service.store.store import Store
from tests.service.store.test_durability import add

async def main(number):
    store = Store(Path(sys.argv[1]))
    await store.open()

    async def write(name):
        await store.write(add(name))
        os.write(1, name.encode() + b"\\n")  # acknowledged

    while True:
        await asyncio.gather(*(write(f"{number + n:07}") for n in range(5)))
        number += 5

for line in sys.stdin:  # each starts a writer, which the test kills
    child = os.fork()
    if not child:
        asyncio.run(main(int(line)))
    os.write(1, f"writer {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""


def add(name: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        connection.execute(insert(tenants), {"id": name, "limits": "{}" + "x" * 500, "created": 1.0, "changes": 0})

    return work


def names(connection: Connection) -> list[str]:
    return [row.id for row in connection.execute(select(tenants.c.id).order_by(tenants.c.id))]


def kill_writer(directory: Path, kills: int) -> None:
    """Kill a process that writes, again and again at random moments; all that it acknowledged is there each time."""
    rng = random.Random(7)
    acknowledged: set[str] = set()
    arguments = [sys.executable, "-c", WRITER, str(directory)]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for kill in range(kills):
            parent.stdin.write(f"{(kill + 1) * 10_000}\n")
            lines = [parent.stdout.readline()]
            while not lines[-1][0].isdigit():
                lines.append(parent.stdout.readline())  # until the first write
            pid = next(int(line.split()[1]) for line in lines if line.startswith("writer"))
            time.sleep(rng.uniform(0, 0.05))
            os.kill(pid, signal.SIGKILL)
            while lines[-1] != "ended\n":
                lines.append(parent.stdout.readline())
            acknowledged |= {line.strip() for line in lines if line[0].isdigit()}
            store = Store(directory)
            store.open_now()
            found = asyncio.run(store.read(names))
            store.close_now()
            assert acknowledged <= set(found)
            assert len(found) - len(acknowledged) <= 5 * (kill + 1)  # written, not yet acknowledged
        parent.stdin.close()


def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path):
    kill_writer(tmp_path, 10)


@pytest.mark.slow
def test_a_writer_killed_a_hundred_times_loses_nothing_that_was_acknowledged(tmp_path):
    kill_writer(tmp_path, 100)


def crashed(directory: Path, to: Path, count: int) -> list[int]:
    """Copy a database with its log, as after a power failure; the size of the log after each of `count` writes."""
    store = Store(directory)
    store.open_now()
    sizes = []
    for n in range(count):
        asyncio.run(store.write(add(f"{n:03}")))
        sizes.append((directory / f"{FILE}-wal").stat().st_size)
    shutil.copytree(directory, to)
    store.close_now()
    return sizes


def test_a_torn_log_loses_only_the_writes_that_were_torn(tmp_path):
    sizes = crashed(tmp_path / "data", tmp_path / "copy", 6)
    assert sizes == sorted(set(sizes))
    for kept, size in enumerate(sizes):
        for end in (size, size + 1, size + 3000):
            directory = tmp_path / f"cut{kept}-{end}"
            shutil.copytree(tmp_path / "copy", directory)
            if end < (directory / f"{FILE}-wal").stat().st_size:
                os.truncate(directory / f"{FILE}-wal", end)
                expected = kept + 1
            else:
                expected = len(sizes) if end >= sizes[-1] else kept + 1
            store = Store(directory)
            store.open_now()
            assert asyncio.run(store.read(names)) == [f"{n:03}" for n in range(expected)]
            asyncio.run(store.write(add("next")))
            store.close_now()


def test_small_writes_succeed_beside_one_that_the_disk_cannot_take(tmp_path):
    store = Store(tmp_path)
    store.open_now()
    asyncio.run(store.write(add("kept")))
    limit = max(each.stat().st_size for each in tmp_path.iterdir()) + 200_000

    def large(connection: Connection) -> None:
        connection.execute(insert(tenants), {"id": "large", "limits": "x" * 2_000_000, "created": 1.0, "changes": 0})

    async def run() -> list[object]:
        works = [add("a"), large, add("b")]
        return list(await asyncio.gather(*(store.write(work) for work in works), return_exceptions=True))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        done = asyncio.run(run())
        read = asyncio.run(store.read(names))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert [type(each) for each in done] == [type(None), StorageFull, type(None)]
    assert read == ["a", "b", "kept"]
    asyncio.run(store.write(large))
    store.close_now()


def test_a_log_that_a_large_write_made_large_becomes_small_again(tmp_path):
    store = Store(tmp_path)
    store.open_now()
    for n in range(3):
        row = {"id": f"{n}", "limits": "x" * 40_000_000, "created": 1.0, "changes": 0}
        asyncio.run(store.write(lambda c, row=row: c.execute(insert(tenants), row) and None))
        asyncio.run(store.write(lambda c, row=row: c.execute(tenants.delete()) and None))
    asyncio.run(store.write(add("small")))
    sizes = {each.name: each.stat().st_size for each in tmp_path.iterdir()}
    store.close_now()

    assert sizes[f"{FILE}-wal"] <= 64 * 2**20
    assert sizes[FILE] < 100 * 2**20  # freed pages are used again


FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
static int refused(void) {
    const char *flag = FLAG;
    if (access(flag, F_OK) != 0) return 0;
    errno = EIO;
    return 1;
}
int fsync(int fd) { return refused() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { return refused() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""
SYNCED = """
import asyncio, sys
from pathlib import Path
from service.objects import Objects
from service.store.errors import StorageError
from service.store.store import Store
from tests.service.store.test_durability import add, names

store, flag = Store(Path(sys.argv[1])), Path(sys.argv[2])
objects = Objects(sys.argv[1] + "/objects")
store.open_now()
objects.prepare()
asyncio.run(store.write(add("before")))
flag.touch()
for name in ("lost", "lost too"):
    try:
        asyncio.run(store.write(add(name)))
        print("acknowledged", name)
    except StorageError as error:
        print(error.status)
try:
    objects.write("lost", [b"x"])
    print("acknowledged")
except OSError as error:
    print(error.errno)
flag.unlink()
asyncio.run(store.write(add("next")))
print(asyncio.run(store.read(names)), list(objects.keys()))
"""


def test_a_disk_that_does_not_sync_fails_writes_until_it_does(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler makes the library that fails syncs")
    flag, source, library = tmp_path / "flag", tmp_path / "sync.c", tmp_path / "sync.so"
    source.write_text(FAILING_SYNC.replace("FLAG", f'"{flag}"'))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    arguments = [sys.executable, "-c", SYNCED, str(tmp_path / "data"), str(flag)]
    environment = os.environ | {"LD_PRELOAD": str(library)}

    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)

    assert done.stdout.splitlines() == ["503", "503", "5", "['before', 'next'] []"], done.stderr
    with closing(sqlite3.connect(tmp_path / "data" / FILE)) as db:
        assert [row[0] for row in db.execute("SELECT id FROM tenants ORDER BY id")] == ["before", "next"]


def test_a_service_that_lost_its_right_to_write_says_so(tmp_path):
    """The database became read-only: SQLite cannot open it for its next use."""
    store = Store(tmp_path)
    store.open_now()
    asyncio.run(store.write(add("kept")))

    def failing(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only = ON")
        try:
            add("lost")(connection)
        finally:
            connection.exec_driver_sql("PRAGMA query_only = OFF")

    with pytest.raises(StorageUnavailable) as refused:
        asyncio.run(store.write(failing))
    assert refused.value.status == 503
    assert asyncio.run(store.read(names)) == ["kept"]
    store.close_now()
