"""The initial values of programs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "program_values",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("program", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tensors", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "program"),
    )
    op.create_index("ix_program_values_key", "program_values", ["key"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_program_values_key", table_name="program_values")
    op.drop_table("program_values")
