"""Really working: a worker takes up what waits, a scheduler ticks."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from retryflow.conf import register_all
from retryflow.model import leases, schema
from retryflow.model.clock import now
from retryflow.model.engine import create_engine
from retryflow.model.tables import order_task_leases
from retryflow.model.transaction import read, transact
from retryflow.retry.claim import NotClaimed, claim
from retryflow.retry.settings import Settings
from retryflow.retry.submit import NewOrder, submit
from retryflow.retry.tick import TickReport
from retryflow.service.health import ALIVE, READY, WORKING, Health
from retryflow.service.health_orders import ClaimWatch, renewal
from retryflow.service.health_scheduler import tick_checks

SETTINGS = Settings()


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    made = create_engine(database_url)
    schema.upgrade(made)
    yield made
    made.dispose()


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    made = cfg.ConfigOpts()
    register_all(made)
    made([], default_config_files=[], default_config_dirs=[])
    return made


def wait_since(engine: sa.Engine, seconds: float, **values: object) -> None:
    """Let every lease have been made so long ago."""
    transact(
        engine,
        lambda connection: connection.execute(order_task_leases.update().values(created_at=now(-seconds), **values)),
    )


def test_a_worker_that_leaves_tasks_waiting_does_not_really_work(engine: sa.Engine, conf: cfg.ConfigOpts) -> None:
    at = 1000.0
    watch = ClaimWatch(conf, engine, clock=lambda: at)
    submit(engine, [NewOrder(type="probe", meta={})], settings=SETTINGS)
    wait_since(engine, 300.0)
    watch.look()
    assert watch.check().good, "it has only just begun"
    at += 121.0
    watch.look()
    check = watch.check()
    assert (check.good, check.decides) == (False, {WORKING})
    assert "a task has waited for 30" in check.says
    watch.claimed()
    assert watch.check().good


def test_a_worker_that_nothing_waits_for_or_that_is_full_works(engine: sa.Engine, conf: cfg.ConfigOpts) -> None:
    at = 1000.0
    watch = ClaimWatch(conf, engine, clock=lambda: at)
    at += 1000.0
    watch.look()
    assert watch.check().good
    submit(engine, [NewOrder(type="probe", meta={})], settings=SETTINGS)
    at += 1000.0
    watch.look()
    assert watch.check().good, "it has not waited long"
    wait_since(engine, 300.0)
    watch.busy()
    watch.look()
    assert watch.check().good


def test_only_what_could_be_claimed_counts_as_waiting(engine: sa.Engine) -> None:
    assert read(engine, leases.oldest_waiting_seconds) is None
    submit(engine, [NewOrder(type="probe", meta={})], settings=SETTINGS)
    wait_since(engine, 300.0)
    waited = read(engine, leases.oldest_waiting_seconds)
    assert waited is not None
    assert 299.0 < waited < 360.0
    wait_since(engine, 300.0, crash_count=1)
    assert read(engine, leases.oldest_waiting_seconds) is None, "it may have to wait for another one of its kind"
    wait_since(engine, 300.0, crash_count=0)
    with engine.connect() as connection:
        task_id = connection.execute(sa.select(order_task_leases.c.id)).scalar_one()
    assert not isinstance(claim(engine, task_id, holder="h:1:t", lease_seconds=20.0, also_crashed=False), NotClaimed)
    assert read(engine, leases.oldest_waiting_seconds) is None, "it is held"


def test_a_worker_whose_leases_have_run_out_is_not_ready() -> None:
    assert renewal(last_renewal=980.0, lease_seconds=20.0, now=1000.0).good
    late = renewal(last_renewal=979.9, lease_seconds=20.0, now=1000.0)
    assert (late.good, late.decides) == (False, {READY, WORKING})
    # What the log says at once, a probe need not wait for.
    suspicious = renewal(last_renewal=999.0, lease_seconds=20.0, suspects=True, now=1000.0)
    assert (suspicious.good, suspicious.decides) == (False, {READY, WORKING})
    assert "nothing new is taken in" in suspicious.says


def ticking(ago: float, settings: Settings = SETTINGS, report: TickReport | None = None, lives: bool = True) -> Health:
    return Health(
        tick_checks(
            settings, thread_lives=lives, last_progress=1000.0 - ago, last_report=report or TickReport(), now=1000.0
        )
    )


def test_a_scheduler_that_has_not_ticked_for_two_periods_is_not_ready_and_alive() -> None:
    assert ticking(30.0).answer(READY)
    late = ticking(30.1)
    assert (late.answer(ALIVE), late.answer(READY), late.answer(WORKING)) == (True, False, False)
    never = ticking(float("inf"))
    assert not never.answer(READY)


def test_a_batch_may_take_its_time_out_however_short_the_period_is() -> None:
    short = replace(SETTINGS, schedule_period_seconds=1.0)
    assert ticking(11.1, short).answer(READY)
    assert not ticking(11.3, short).answer(READY)


def test_a_scheduler_whose_tickets_nobody_takes_does_not_really_work() -> None:
    refused = ticking(1.0, report=TickReport(unsent=5))
    assert (refused.answer(READY), refused.answer(WORKING)) == (True, False)
    assert ticking(1.0, report=TickReport(unsent=5, dispatched=1)).answer(WORKING)


def test_a_scheduler_whose_thread_has_died_is_to_be_restarted() -> None:
    assert not ticking(1.0, lives=False).answer(ALIVE)
