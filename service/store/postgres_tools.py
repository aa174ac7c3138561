"""pg_dump and pg_restore, the programs of PostgreSQL that copy a database."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import sqlalchemy
from sqlalchemy.engine import URL

__all__ = ["ToolError", "dump", "load"]

NAMES = {"username": "PGUSER", "password": "PGPASSWORD", "host": "PGHOST", "port": "PGPORT", "database": "PGDATABASE"}


class ToolError(OSError):
    """A program of PostgreSQL is missing or failed. `str` is a sentence for operators."""


def dump(url: str, to: Path) -> None:
    """Write the database to the new file `to`, in one state, while it is used. Raises ToolError."""
    _run("pg_dump", url, ["--format=custom", "--no-owner", "--no-privileges", f"--file={to}"])


def load(url: str, file: Path) -> None:
    """Bring a dump into an empty database, whole or not at all. Raises ToolError."""
    options = ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges"]
    _run("pg_restore", url, [*options, "--dbname", sqlalchemy.make_url(url).database or "", str(file)])


def _run(program: str, url: str, arguments: list[str]) -> None:
    found = shutil.which(program)
    if found is None:
        raise ToolError(
            f"{program} is not installed: install the client programs of PostgreSQL (Debian: postgresql-client), in a "
            "version that is not older than the server"
        )
    # the address goes by the environment, because arguments are visible to other users
    environment = _environment(sqlalchemy.make_url(url))
    done = subprocess.run([found, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ToolError(f"{program} failed: {' '.join(done.stderr.split())}")


def _environment(url: URL) -> dict[str, str]:
    given = {variable: getattr(url, name) for name, variable in NAMES.items()}
    queried = {f"PG{name.upper()}": value for name, value in url.query.items() if isinstance(value, str)}
    return {**os.environ, **{name: str(value) for name, value in given.items() if value}, **queried}
