"""Copies of files of a remote store are deleted when no row names their files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import insert

from service.store.copies import Copies
from service.store.store import Store
from service.store.tables import program_values


def test_copies_of_files_that_another_process_deleted_are_deleted(tmp_path: Path):
    deleted = []

    async def scenario() -> list[str]:
        store = Store(tmp_path)
        await store.open()
        values = {"tenant": "a", "program": "p", "key": "values/named.safetensors", "sha256": "", "size": 0}
        await store.write(lambda db: db.execute(insert(program_values).values(**values, tensors=b"[]")).rowcount)
        directory = tmp_path / "copies"
        directory.mkdir()
        for name in ("named.safetensors", "unnamed", "unnamed.1.partial"):
            (directory / name).write_bytes(b"x")
        swept = Copies(store, tmp_path, lambda: deleted.append(True))
        await swept.sweep()
        await swept.sweep()
        await store.close()
        return sorted(path.name for path in directory.iterdir())

    assert asyncio.run(scenario()) == ["named.safetensors", "unnamed.1.partial"]
    assert deleted == [True]
