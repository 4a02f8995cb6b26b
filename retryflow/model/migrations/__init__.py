"""Alembic migrations of the tables, in the package so that an installation can always upgrade itself."""
