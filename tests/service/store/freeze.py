"""Write the first migration from the tables, as statements. Only before the first release with these tables.

    python -m tests.service.store.freeze && python -m tests.service.store.keep

Later changes are migrations of their own: see docs/contributing.md.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from alembic.autogenerate import produce_migrations, render_python_code
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine

from service.store.migrate import SCRIPTS
from service.store.tables import metadata

__all__ = ["freeze"]

HEAD = '''"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    {upgrade}


def downgrade() -> None:
    {downgrade}
'''


def freeze() -> None:
    """Write `v0001_tables.py`."""
    with create_engine("sqlite://").connect() as connection:
        script = produce_migrations(MigrationContext.configure(connection), metadata)
    assert script.upgrade_ops is not None
    assert script.downgrade_ops is not None
    file = SCRIPTS / "versions" / "v0001_tables.py"
    file.write_text(HEAD.format(upgrade=_rendered(script.upgrade_ops), downgrade=_rendered(script.downgrade_ops)))
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(file)], check=True)


def _rendered(ops: Any) -> str:
    lines = render_python_code(ops).splitlines()
    return "\n".join(line for line in lines if not line.strip().startswith("#")).strip()


if __name__ == "__main__":
    freeze()
