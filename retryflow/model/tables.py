"""The tables. They never change without a migration; a test compares the two on each database.

Where upstream Barbican has a column of the same meaning, its name is kept.
"""

from typing import Any

import sqlalchemy as sa

from retryflow.model.types import JsonText, UtcDateTime, long_text

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_HOLDER_LENGTH = 255


def _order_reference() -> "sa.Column[str]":
    return sa.Column("order_id", sa.String(36), sa.ForeignKey("orders.id", ondelete="CASCADE"), nullable=False)


def _task_columns() -> list["sa.Column[object]"]:
    """What a task brings along from lease to retry row and back; nothing of it is lost on the way."""
    return [
        sa.Column("poll_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("crash_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("retry_since", UtcDateTime),
        sa.Column("poll_since", UtcDateTime),
        sa.Column("step", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", long_text()),
        sa.Column("request_id", sa.String(64)),
    ]


orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("project_id", sa.String(64)),
    sa.Column("type", sa.String(255), nullable=False),
    sa.Column("meta", JsonText),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("sub_status", sa.String(36)),
    sa.Column("sub_status_message", sa.String(255)),
    sa.Column("error_status_code", sa.String(16)),
    sa.Column("error_reason", long_text()),
    sa.Column("plugin_name", sa.String(255)),
    sa.Column("result", JsonText),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    # Lists page by (created_at, id): all orders, or those of one status, project or type.
    sa.Index("ix_orders_created_at_id", "created_at", "id"),
    sa.Index("ix_orders_status_created_at_id", "status", "created_at", "id"),
    sa.Index("ix_orders_project_id_created_at_id", "project_id", "created_at", "id"),
    sa.Index("ix_orders_type_created_at_id", "type", "created_at", "id"),
    **_OPTIONS,
)

order_plugin_metadata = sa.Table(
    "order_plugin_metadata",
    metadata,
    sa.Column("order_id", sa.String(36), sa.ForeignKey("orders.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("value", long_text(), nullable=False),
    **_OPTIONS,
)

order_retry_tasks = sa.Table(
    "order_retry_tasks",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    _order_reference(),
    sa.Column("retry_task", sa.String(255), nullable=False),
    sa.Column("retry_at", UtcDateTime, nullable=False),
    sa.Column("retry_args", long_text(), nullable=False),
    sa.Column("retry_kwargs", long_text(), nullable=False),
    sa.Column("retry_count", sa.Integer, nullable=False, server_default="0"),
    *_task_columns(),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("order_id", "retry_task"),
    sa.Index("ix_order_retry_tasks_retry_at_id", "retry_at", "id"),
    **_OPTIONS,
)

order_task_leases = sa.Table(
    "order_task_leases",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    _order_reference(),
    sa.Column("task", sa.String(255), nullable=False),
    sa.Column("args", long_text(), nullable=False),
    sa.Column("kwargs", long_text(), nullable=False),
    sa.Column("retry_count", sa.Integer, nullable=False, server_default="0"),
    *_task_columns(),
    sa.Column("holder", sa.String(_HOLDER_LENGTH)),
    sa.Column("sent_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("renewals", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("started_at", UtcDateTime),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    # Promise P3: one task of an order is out at a time.
    sa.UniqueConstraint("order_id"),
    sa.Index("ix_order_task_leases_expires_at_id", "expires_at", "id"),
    sa.Index("ix_order_task_leases_holder", "holder"),
    **_OPTIONS,
)

entity_locks = sa.Table(
    "entity_locks",
    metadata,
    sa.Column("entity_to_lock", sa.String(255), primary_key=True),
    sa.Column("worker_host_name", sa.String(_HOLDER_LENGTH), nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("batches", sa.Integer, nullable=False, server_default="0"),
    **_OPTIONS,
)

daemon_processes = sa.Table(
    "daemon_processes",
    metadata,
    sa.Column("holder", sa.String(_HOLDER_LENGTH), primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("boot_id", sa.String(64)),
    sa.Column("pid_namespace", sa.BigInteger),
    sa.Column("start_ticks", sa.BigInteger),
    sa.Column("version", sa.String(64)),
    sa.Column("topic", sa.String(255)),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("seen_at", UtcDateTime, nullable=False),
    **_OPTIONS,
)

order_events = sa.Table(
    "order_events",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    _order_reference(),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("last_at", UtcDateTime, nullable=False),
    sa.Column("count", sa.Integer, nullable=False, server_default="1"),
    sa.Column("event", sa.String(36), nullable=False),
    sa.Column("task", sa.String(255)),
    sa.Column("task_id", sa.String(36)),
    sa.Column("holder", sa.String(_HOLDER_LENGTH)),
    sa.Column("seconds", sa.Double),
    sa.Column("detail", long_text()),
    sa.Index("ix_order_events_order_id_id", "order_id", "id"),
    sa.Index("ix_order_events_last_at", "last_at"),
    **_OPTIONS,
)
