"""Write the fixture of the present schema: a database with rows in every table, as SQL, and these rows as JSON.

python -m tests.service.store.keep
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from service.store.sqlite_file import APPLICATION, FILE, LAYOUT
from service.store.store import Store
from tests.service.store.rows import all_rows, fill

__all__ = ["FIXTURES", "keep"]

FIXTURES = Path(__file__).parent / "fixtures"


def keep() -> Path:
    """Write the folder; its path."""
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name))
        store.open_now()
        revision = asyncio.run(
            store.read(lambda c: c.execute(text("SELECT version_num FROM alembic_version")).scalar())
        )
        asyncio.run(store.write(fill))
        rows = asyncio.run(store.read(all_rows))
        store.close_now()
        with closing(sqlite3.connect(Path(name) / FILE)) as db:
            lines = [f"PRAGMA application_id = {APPLICATION};", f"PRAGMA user_version = {LAYOUT};", *db.iterdump()]
    folder = FIXTURES / f"schema_{revision}"
    folder.mkdir(exist_ok=True)
    (folder / "backpass.sql").write_text("\n".join(lines) + "\n")
    (folder / "rows.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return folder


if __name__ == "__main__":
    print(keep())
