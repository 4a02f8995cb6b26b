"""Run by alembic: hands it the connection that ``retryflow.model.schema`` opened."""

from alembic import context

from retryflow.model.schema import VERSION_TABLE
from retryflow.model.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
