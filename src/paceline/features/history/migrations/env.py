"""Run by alembic for each migration, on the connection and in the transaction of its caller."""

from alembic import context

from paceline.features.history.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
)
context.run_migrations()
