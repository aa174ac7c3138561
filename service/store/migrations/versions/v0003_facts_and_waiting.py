"""Facts of the whole database, and the reasons why jobs wait."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "facts",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.add_column("jobs", sa.Column("waiting", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "waiting")
    op.drop_table("facts")
