"""Facts of the whole database, the reasons why jobs wait, and lists in the order of their creation."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

LISTS = ("programs", "sessions", "checkpoints", "operations", "datasets", "uploads", "jobs")


def upgrade() -> None:
    op.create_table(
        "facts",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.add_column("jobs", sa.Column("waiting", sa.Text(), nullable=True))
    for table in LISTS:
        op.create_index(f"ix_{table}_tenant_created_id", table, ["tenant", "created", "id"], unique=False)


def downgrade() -> None:
    for table in LISTS:
        op.drop_index(f"ix_{table}_tenant_created_id", table_name=table)
    op.drop_column("jobs", "waiting")
    op.drop_table("facts")
