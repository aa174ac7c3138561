"""States of tenants."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("state", sa.String(length=16), nullable=True))
    op.add_column("tenants", sa.Column("reason", sa.String(length=256), nullable=True))
    op.add_column("tenants", sa.Column("since", sa.Double(), nullable=True))
    op.add_column("tenants", sa.Column("busy", sa.Double(), nullable=True))


def downgrade() -> None:
    for column in ("busy", "since", "reason", "state"):
        op.drop_column("tenants", column)
