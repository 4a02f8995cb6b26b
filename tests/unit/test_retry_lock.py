"""The EntityLock: one at a time, a fence for its holder, and never left for long. Runs on each database."""

import re

import pytest
import sqlalchemy as sa

from retryflow.errors import LockLost
from retryflow.model import locks
from retryflow.model.transaction import transact
from retryflow.retry.lock import EntityLock
from tests.fixtures.retry_list import RetryList, together


def _fence(retry_list: RetryList) -> str | None:
    row = retry_list.lock_row()
    return row["worker_host_name"] if row else None


def test_only_one_of_many_gets_a_free_lock(retry_list: RetryList) -> None:
    several = [retry_list.lock(f"host:{number}:token") for number in range(6)]
    for _ in range(5):
        assert together(*(lock.take for lock in several)).count(True) == 1
        [holder] = [lock for lock in several if lock.fence]
        assert _fence(retry_list) == holder.fence
        holder.clear()
        assert retry_list.lock_row() is None


def test_two_schedulers_of_one_host_are_not_mistaken_for_each_other(retry_list: RetryList) -> None:
    """S8: the identity is one of the process start, not the host's name."""
    first, second = retry_list.lock("host:7:aaaa"), retry_list.lock("host:8:bbbb")
    assert first.take()
    assert not second.take()
    second.clear()
    assert _fence(retry_list) == first.fence


def test_each_take_has_a_fence_of_its_own(retry_list: RetryList) -> None:
    """S6: a scheduler that held the lock before cannot mistake its present hold for the earlier one."""
    lock = retry_list.lock()
    seen = set()
    for _ in range(3):
        assert lock.take()
        seen.add(lock.fence)
        lock.clear()
    assert len(seen) == 3
    assert all(fence and fence.startswith("host:1:token:") for fence in seen)


def test_a_lock_that_is_touched_is_not_taken_over(retry_list: RetryList) -> None:
    """S5: a long drain never looks dead, since each batch touches the lock."""
    holder, other = retry_list.lock("host:1:a"), retry_list.lock("host:2:b")
    assert holder.take()
    retry_list.age_lock(100.0)
    transact(retry_list.engine, holder.touch)
    assert not other.take()
    assert _fence(retry_list) == holder.fence


def test_a_stale_lock_is_taken_over_by_exactly_one_with_a_word_on_the_dead(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """S9."""
    retry_list.take_lock("dead:1:token:nonce", age_seconds=61.0)
    several = [retry_list.lock(f"host:{number}:token") for number in range(6)]
    assert together(*(lock.take for lock in several)).count(True) == 1
    [holder] = [lock for lock in several if lock.fence]
    assert _fence(retry_list) == holder.fence
    [line] = [record.getMessage() for record in caplog.records if "Took over" in record.getMessage()]
    assert re.search(r"from dead:1:token:nonce, which had not touched it for 61 seconds", line)


def test_a_lock_just_short_of_its_time_is_left_alone(retry_list: RetryList) -> None:
    retry_list.take_lock(age_seconds=58.0)
    assert not retry_list.lock().take()
    assert _fence(retry_list) == "other:1:token:nonce"


def test_a_lock_from_the_future_is_stale_too(retry_list: RetryList) -> None:
    """P5: the database's clock was set back after the holder died; nobody waits for it to catch up."""
    retry_list.take_lock(age_seconds=-3600.0)
    assert retry_list.lock().take()


def test_a_holder_touching_between_look_and_take_over_keeps_its_lock(retry_list: RetryList) -> None:
    """S6: the take-over is one conditional statement, so that what was seen before it decides nothing."""
    holder = retry_list.lock("host:1:a")
    assert holder.take()
    retry_list.age_lock(100.0)
    fence = holder.fence
    assert fence is not None
    transact(retry_list.engine, holder.touch)
    taken = transact(
        retry_list.engine, lambda connection: locks.take_over(connection, "new", seen=fence, older_than_seconds=60.0)
    )
    assert not taken
    assert _fence(retry_list) == fence


def test_the_former_holder_touches_nothing_and_clears_nothing(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """S6: renewal and clearing only of one's own row; the log says that the lock was lost."""
    former, new = retry_list.lock("host:1:a"), retry_list.lock("host:2:b")
    assert former.take()
    retry_list.age_lock(61.0)
    assert new.take()
    with pytest.raises(LockLost, match="host:1:a"):
        transact(retry_list.engine, former.touch)
    former.clear()
    assert _fence(retry_list) == new.fence
    assert "was no longer held by host:1:a" in caplog.text


def test_a_lock_lost_makes_the_whole_transaction_fail(retry_list: RetryList) -> None:
    """S5: the touch stands inside the transaction that it protects."""
    [row] = retry_list.rows()
    former = retry_list.lock("host:1:a")
    assert former.take()
    retry_list.age_lock(61.0)
    assert retry_list.lock("host:2:b").take()

    def work(connection: sa.Connection) -> None:
        connection.exec_driver_sql("DELETE FROM order_retry_tasks")
        former.touch(connection)

    with pytest.raises(LockLost):
        transact(retry_list.engine, work)
    assert list(retry_list.retry_rows()) == [row]


def test_touching_always_changes_the_row(retry_list: RetryList) -> None:
    """An UPDATE that changes nothing fences nothing on Galera: the number of batches goes up each time."""
    lock = retry_list.lock()
    assert lock.take()
    for _ in range(3):
        transact(retry_list.engine, lock.touch)
    row = retry_list.lock_row()
    assert row is not None
    assert row["batches"] == 3


@pytest.mark.parametrize("stage", ["insert", "look", "take over"])
def test_an_error_in_taking_the_lock_is_no_success(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """S7: only "inserted" and "taken over" are successes; what is no duplicate key is an error."""
    if stage != "insert":
        retry_list.take_lock(age_seconds=61.0)
    if stage == "look":
        monkeypatch.setattr(locks, "look", _broken)
    elif stage == "take over":
        monkeypatch.setattr(locks, "take_over", _broken)
    else:
        retry_list.sql("DROP TABLE entity_locks")
    lock = retry_list.lock()
    with pytest.raises(Exception, match=r"nowhere|entity_locks"):
        lock.take()
    assert lock.fence is None


def _broken(connection: sa.Connection, *args: object, **kwargs: object) -> None:
    connection.exec_driver_sql("SELECT nothing FROM nowhere")


def test_a_lock_that_could_not_be_cleared_is_its_own_again(retry_list: RetryList) -> None:
    """A scheduler that lost its connection while clearing does not wait a minute for itself."""
    lock = retry_list.lock()
    assert lock.take()
    before = lock.fence
    lock._fence = None
    assert lock.take()
    assert lock.fence != before
    assert _fence(retry_list) == lock.fence


def test_clearing_never_raises(retry_list: RetryList, caplog: pytest.LogCaptureFixture) -> None:
    lock = retry_list.lock()
    assert lock.take()
    retry_list.sql("DROP TABLE entity_locks")
    lock.clear()
    assert "could not be cleared" in caplog.text


def test_an_unclear_commit_of_the_insert_leaves_no_lock_behind(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit was done, but the connection was lost before its answer: the lock must not stand for a minute."""
    lock: EntityLock = retry_list.lock()
    dialect = retry_list.engine.dialect
    commit = dialect.do_commit

    def do_commit(connection: object) -> None:
        commit(connection)  # type: ignore[arg-type]
        monkeypatch.setattr(dialect, "do_commit", commit)
        connection.close()  # type: ignore[attr-defined]
        raise dialect.loaded_dbapi.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    monkeypatch.setattr(dialect, "is_disconnect", lambda *args: True)
    with pytest.raises(Exception, match="Lost connection"):
        lock.take()
    monkeypatch.undo()
    assert retry_list.lock_row() is None
    assert lock.fence is None
