"""The caches of object code, in memory and on disk."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from core.codegen import machine
from core.codegen.cache import DiskCache
from core.codegen.cpus import cpu, generating_for

LIMIT = 2**20


def adding(number: int) -> str:
    """A module whose function adds `number`."""
    return f"define i64 @add(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}"


def call(library: machine.Library, x: int) -> int:
    return library.function("add", ctypes.c_int64, returns=ctypes.c_int64)(x)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The directory of the disk cache of a fresh process."""
    monkeypatch.setattr(machine, "STATE", machine.CompilerState())
    machine.keep_on_disk(tmp_path / "code", LIMIT)
    return tmp_path / "code"


def forget() -> None:
    """Clear the memory cache, as in another process."""
    machine.STATE.memory.clear()


def only_file(directory: Path) -> Path:
    (file,) = directory.iterdir()
    return file


def test_the_same_module_is_compiled_once_and_shared(kept):
    first, again, other = machine.load(adding(1)), machine.load(adding(1)), machine.load(adding(2))

    assert again is first
    assert (call(first, 5), call(other, 5)) == (6, 7)
    assert machine.STATE.compilations == 2


def test_symbols_at_other_addresses_give_another_library(kept):
    text = "declare i64 @there(i64)\ndefine i64 @add(i64 %x) {\n  %y = call i64 @there(i64 %x)\n  ret i64 %y\n}"
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    plus, minus = kind(lambda x: x + 1), kind(lambda x: x - 1)
    found = []
    for target in (plus, minus):
        library = machine.load(text, symbols={"there": ctypes.cast(target, ctypes.c_void_p).value})
        found.append(call(library, 5))

    assert found == [6, 4]
    assert machine.STATE.compilations == 1


WORKER = """
import sys
from pathlib import Path
from core.codegen import machine
from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read
from bench.workloads import WORKLOADS
import numpy as np
from core.runtime.run import Run
w = WORKLOADS["mlp_small"]()
ex = compile_gradient(read(w.program), GradientQuery(loss="loss"), shapes={k: v.shape for k, v in w.feeds.items()})
machine.keep_on_disk(Path(sys.argv[1]), 2**20)
values = {**w.feeds, **w.parameters}
wanted, found = ex.step(values), ex.compiled().step(values)
np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)
print(machine.STATE.compilations)
"""


def test_a_second_process_compiles_nothing(tmp_path):
    found = [
        subprocess.run(
            [sys.executable, "-c", WORKER, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]  # fmt: skip

    assert found == [["1"], ["0"]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda code: code[:-1],
        lambda code: code[:-9] + bytes([code[-9] ^ 1]) + code[-8:],
        lambda code: b"",
        lambda code: b"\x7fELF" + code,
        lambda code: code[:40],
    ],
    ids=["truncated", "a bit", "empty", "foreign", "head"],
)
def test_a_damaged_file_is_not_used_and_is_replaced(kept, spoil):
    machine.load(adding(3))
    file = only_file(kept)
    whole = file.read_bytes()
    file.write_bytes(spoil(whole))
    forget()

    assert call(machine.load(adding(3)), 1) == 4

    assert machine.STATE.compilations == 2
    assert file.read_bytes() == whole


def test_code_under_the_wrong_name_is_not_used(kept):
    machine.load(adding(1))
    only_file(kept).rename(kept / f"{machine.key_of(adding(2))}.o")
    forget()

    assert call(machine.load(adding(2)), 1) == 3


def test_a_file_writable_by_others_is_not_used(kept):
    machine.load(adding(3))
    only_file(kept).chmod(0o666)
    forget()

    assert call(machine.load(adding(3)), 1) == 4
    assert machine.STATE.compilations == 2


def test_a_link_is_not_followed(kept, tmp_path):
    machine.load(adding(3))
    file = only_file(kept)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    forget()

    machine.load(adding(3))

    assert machine.STATE.compilations == 2


def test_the_key_depends_on_text_cpu_features_passes_and_versions(monkeypatch):
    keys = {machine.key_of(adding(1)), machine.key_of(adding(2))}
    host = cpu()
    for other in (replace(host, name="i386"), replace(host, features=host.features + ",-avx")):
        with generating_for(other):
            keys.add(machine.key_of(adding(1)))
    for name, value in (("GENERATOR", -1), ("PASSES", ()), ("OPTIONS", ()), ("LEVEL", 0)):
        with monkeypatch.context() as m:
            m.setattr(machine, name, value)
            keys.add(machine.key_of(adding(1)))
    for module, name in ((machine.llvmlite, "__version__"), (machine.llvm, "llvm_version_info")):
        with monkeypatch.context() as m:
            m.setattr(module, name, "other")
            keys.add(machine.key_of(adding(1)))

    assert len(keys) == 10


def test_only_this_user_can_access_files_and_directory(kept):
    machine.load(adding(1))

    assert kept.stat().st_mode & 0o777 == 0o700
    assert only_file(kept).stat().st_mode & 0o777 == 0o600


def test_the_least_recently_used_entries_are_removed_first(tmp_path):
    cache = DiskCache(tmp_path, 3000)
    for i in range(3):
        cache.put(f"key{i}", bytes(700))
        os.utime(tmp_path / f"key{i}.o", (1000 + i, 1000 + i))
    assert cache.get("key0") == bytes(700)  # used: now key1 is the oldest

    cache.put("key3", bytes(1200))

    assert [cache.get(f"key{i}") is not None for i in range(4)] == [True, False, True, True]
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 3000


def test_an_entry_larger_than_the_limit_is_not_stored(tmp_path):
    cache = DiskCache(tmp_path, 1000)
    cache.put("small", bytes(100))
    cache.put("large", bytes(1000))

    assert (cache.get("small"), cache.get("large")) == (bytes(100), None)


def test_files_of_a_killed_writer_are_removed(tmp_path):
    old, fresh = tmp_path / ".old.part", tmp_path / ".fresh.part"
    for each in (old, fresh):
        each.write_bytes(bytes(10))
    os.utime(old, (1000, 1000))

    DiskCache(tmp_path, LIMIT).put("key", b"code")

    assert not old.exists()
    assert fresh.exists()


def _write_and_read(directory: str, seed: int, until: float) -> None:
    """Exits with 1 when it reads an entry with content that no process wrote."""
    cache = DiskCache(Path(directory), 20_000)
    i = seed
    while time.monotonic() < until:
        i += 1
        key = f"key{i % 7}"
        cache.put(key, key.encode() * 800)
        found = cache.get(f"key{(i + 3) % 7}")
        if found is not None and found != f"key{(i + 3) % 7}".encode() * 800:
            sys.exit(1)


def test_several_processes_write_the_same_entries(tmp_path):
    context = multiprocessing.get_context("spawn")
    until = time.monotonic() + 1.5
    workers = [context.Process(target=_write_and_read, args=(str(tmp_path), k, until)) for k in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)

    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert not list(tmp_path.glob("*.part"))
    for file in tmp_path.glob("*.o"):
        assert DiskCache(tmp_path, LIMIT).get(file.stem) == file.stem.encode() * 800


def test_an_unusable_directory_causes_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(machine, "STATE", machine.CompilerState())
    (tmp_path / "file").write_text("in the way")
    machine.keep_on_disk(tmp_path / "file" / "code", LIMIT)

    with caplog.at_level(logging.WARNING):
        assert call(machine.load(adding(1)), 1) == 2
        assert call(machine.load(adding(2)), 1) == 3

    assert len(caplog.records) == 1


def test_the_cache_never_creates_the_directory_above_its_own(tmp_path, caplog):
    DiskCache(tmp_path / "gone" / "code", LIMIT).put("key", b"code")

    assert not (tmp_path / "gone").exists()
    assert "gone" in caplog.text


def test_a_full_disk_leaves_no_part_of_an_entry(tmp_path, caplog):
    cache = DiskCache(tmp_path / "code", LIMIT)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        cache.put("key", b"code" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert (cache.get("key"), list((tmp_path / "code").iterdir())) == (None, [])
    assert "cannot store object code" in caplog.text
    cache.put("key", b"code" * 1000)
    assert cache.get("key") == b"code" * 1000


def test_a_directory_writable_by_others_is_not_used(tmp_path, caplog):
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)

    DiskCache(directory, LIMIT).put("key", b"code")

    assert not list(directory.iterdir())
    assert "other users may write to it" in caplog.text
