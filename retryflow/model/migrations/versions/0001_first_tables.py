"""The first tables.

Revision ID: 0001
Revises:
"""

from typing import Any

import sqlalchemy as sa

from retryflow.model.migrations.steps import create_index, create_table
from retryflow.model.types import JsonText, UtcDateTime, long_text

revision = "0001"
down_revision = None

_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _order_key(table: str) -> sa.ForeignKey:
    return sa.ForeignKey("orders.id", ondelete="CASCADE", name=f"fk_{table}_order_id")


def _order_reference(table: str) -> "sa.Column[str]":
    return sa.Column("order_id", sa.String(36), _order_key(table), nullable=False)


def _task_columns() -> list["sa.Column[object]"]:
    return [
        sa.Column("poll_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("crash_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("retry_since", UtcDateTime),
        sa.Column("poll_since", UtcDateTime),
        sa.Column("step", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", long_text()),
        sa.Column("request_id", sa.String(64)),
    ]


def upgrade() -> None:
    create_table(
        "orders",
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
        **_OPTIONS,
    )
    create_index("ix_orders_created_at_id", "orders", ["created_at", "id"])
    create_index("ix_orders_status_created_at_id", "orders", ["status", "created_at", "id"])
    create_index("ix_orders_project_id_created_at_id", "orders", ["project_id", "created_at", "id"])
    create_index("ix_orders_type_created_at_id", "orders", ["type", "created_at", "id"])
    create_table(
        "order_plugin_metadata",
        sa.Column("order_id", sa.String(36), _order_key("order_plugin_metadata"), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("value", long_text(), nullable=False),
        **_OPTIONS,
    )
    create_table(
        "order_retry_tasks",
        sa.Column("id", sa.String(36), primary_key=True),
        _order_reference("order_retry_tasks"),
        sa.Column("retry_task", sa.String(255), nullable=False),
        sa.Column("retry_at", UtcDateTime, nullable=False),
        sa.Column("retry_args", long_text(), nullable=False),
        sa.Column("retry_kwargs", long_text(), nullable=False),
        sa.Column("retry_count", sa.Integer, nullable=False, server_default="0"),
        *_task_columns(),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.UniqueConstraint("order_id", "retry_task", name="uq_order_retry_tasks_order_id_retry_task"),
        **_OPTIONS,
    )
    create_index("ix_order_retry_tasks_retry_at_id", "order_retry_tasks", ["retry_at", "id"])
    create_table(
        "order_task_leases",
        sa.Column("id", sa.String(36), primary_key=True),
        _order_reference("order_task_leases"),
        sa.Column("task", sa.String(255), nullable=False),
        sa.Column("args", long_text(), nullable=False),
        sa.Column("kwargs", long_text(), nullable=False),
        sa.Column("retry_count", sa.Integer, nullable=False, server_default="0"),
        *_task_columns(),
        sa.Column("holder", sa.String(255)),
        sa.Column("sent_count", sa.Integer, nullable=False, server_default="0"),
        sa.Column("renewals", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("started_at", UtcDateTime),
        sa.Column("expires_at", UtcDateTime, nullable=False),
        sa.UniqueConstraint("order_id", name="uq_order_task_leases_order_id"),
        **_OPTIONS,
    )
    create_index("ix_order_task_leases_expires_at_id", "order_task_leases", ["expires_at", "id"])
    create_index("ix_order_task_leases_holder", "order_task_leases", ["holder"])
    create_table(
        "entity_locks",
        sa.Column("entity_to_lock", sa.String(255), primary_key=True),
        sa.Column("worker_host_name", sa.String(255), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("batches", sa.Integer, nullable=False, server_default="0"),
        **_OPTIONS,
    )
    create_table(
        "daemon_processes",
        sa.Column("holder", sa.String(255), primary_key=True),
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
    create_table(
        "order_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        _order_reference("order_events"),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("last_at", UtcDateTime, nullable=False),
        sa.Column("count", sa.Integer, nullable=False, server_default="1"),
        sa.Column("event", sa.String(36), nullable=False),
        sa.Column("task", sa.String(255)),
        sa.Column("task_id", sa.String(36)),
        sa.Column("holder", sa.String(255)),
        sa.Column("seconds", sa.Double),
        sa.Column("detail", long_text()),
        **_OPTIONS,
    )
    create_index("ix_order_events_order_id_id", "order_events", ["order_id", "id"])
    create_index("ix_order_events_last_at", "order_events", ["last_at"])
