"""${message}."""

import sqlalchemy as sql
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Change the tables."""
    ${upgrades if upgrades else "raise NotImplementedError"}
