"""The database's clock: UTC with microseconds, whatever the session prefers (P6). Runs on each database."""

import datetime

import pytest
import sqlalchemy as sa

from retryflow.model.clock import now, seconds_between
from retryflow.model.engine import create_engine
from retryflow.model.tables import order_retry_tasks
from tests.fixtures.retry_list import RetryList

DAY = 86_400.0


def _scalar(retry_list: RetryList, expression: sa.ColumnElement[object]) -> object:
    with retry_list.engine.connect() as connection:
        return connection.execute(sa.select(expression)).scalar_one()


def test_now_is_utc(retry_list: RetryList) -> None:
    before = datetime.datetime.now(datetime.UTC)
    moment = _scalar(retry_list, now())
    assert isinstance(moment, datetime.datetime)
    assert moment.tzinfo is datetime.UTC
    # The servers of the tests may run on another machine; a time zone would be off by an hour at least.
    assert abs(moment - before) < datetime.timedelta(minutes=10)


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1e-6, 1e-5, 90.5, -90.5, DAY, 366 * DAY, -366 * DAY])
def test_an_offset_is_added_in_seconds(retry_list: RetryList, seconds: float) -> None:
    """Also one so small that it is written with an exponent."""
    difference = _scalar(retry_list, seconds_between(now(), now(seconds)))
    assert difference == pytest.approx(seconds, abs=0.5)


def test_the_difference_is_later_minus_earlier(retry_list: RetryList) -> None:
    [row] = retry_list.rows()
    retry_list.sql(
        "UPDATE order_retry_tasks SET retry_at = '2026-03-29 01:00:00.250000', created_at = '2026-03-29 03:00:00'"
    )
    columns = order_retry_tasks.c
    with retry_list.engine.connect() as connection:
        query = sa.select(
            seconds_between(columns.retry_at, columns.created_at), seconds_between(columns.created_at, columns.retry_at)
        ).where(columns.id == row)
        # Across the night in which Europe's clocks go forward.
        assert tuple(connection.execute(query).one()) == pytest.approx((7199.75, -7199.75), abs=0.001)


def test_now_moves_on_within_a_transaction(retry_list: RetryList) -> None:
    """PostgreSQL's now() would stand still, and a lease that is renewed in a long transaction would be born old."""
    with retry_list.engine.begin() as connection:
        first = connection.execute(sa.select(now())).scalar_one()
        wait = {"postgresql": "SELECT pg_sleep(0.05)", "mysql": "SELECT SLEEP(0.05)"}.get(retry_list.kind)
        for _ in range(200):
            if wait:
                connection.exec_driver_sql(wait)
            second = connection.execute(sa.select(now())).scalar_one()
            if second > first:
                break
        assert second > first


def test_the_zone_of_the_database_or_server_changes_nothing(retry_list: RetryList) -> None:
    """Sessions get the zone of the database, role or server; MariaDB's is set by the engine for each session."""
    if retry_list.kind == "sqlite":
        pytest.skip("there is no session time zone")
    if retry_list.kind == "postgresql":
        name = sa.make_url(retry_list.url).database
        with retry_list.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'")
        url = retry_list.url
    else:
        zoned = sa.make_url(retry_list.url).update_query_dict({"init_command": "SET time_zone = '+09:00'"})
        url = zoned.render_as_string(hide_password=False)
    other = create_engine(url)
    show = "SHOW timezone" if retry_list.kind == "postgresql" else "SELECT @@session.time_zone"
    with other.connect() as there, retry_list.engine.connect() as here:
        zone = there.exec_driver_sql(show).scalar()
        assert zone == ("Asia/Tokyo" if retry_list.kind == "postgresql" else "+00:00")
        difference = here.execute(sa.select(now())).scalar_one() - there.execute(sa.select(now())).scalar_one()
    assert abs(difference) < datetime.timedelta(minutes=1)
    other.dispose()


def test_a_moment_comes_back_as_it_was_written(retry_list: RetryList) -> None:
    microseconds = 123456
    tokyo = datetime.timezone(datetime.timedelta(hours=9))
    moment = datetime.datetime(2026, 12, 31, 23, 59, 58, microseconds, tokyo)
    [row] = retry_list.rows()
    columns = order_retry_tasks.c
    with retry_list.engine.begin() as connection:
        connection.execute(order_retry_tasks.update().values(retry_at=moment))
        kept = connection.execute(sa.select(columns.retry_at).where(columns.id == row)).scalar_one()
    assert kept == moment
    assert kept.tzinfo is datetime.UTC
